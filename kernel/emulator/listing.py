"""An AMDGCN assembly listing as data."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_LABEL = re.compile(r"^\s*([.\w$]+):\s*$")
_INSTRUCTION = re.compile(r"^\s+((?:s|v|ds|global|buffer|flat|scratch)_[a-z0-9_]+)\s*(.*)$")
_NUMBER = re.compile(r"^\s*\.(\w+)[: ]\s*(\d+)\s*$")
_WORD = re.compile(r"[^\s\[\]]+(?:\[[^\]]*\])?[^\s\[\]]*")


@dataclass(frozen=True)
class Instruction:
    """One line: ``name operand, operand, ... modifier modifier:value``.

    Attributes:
        name: the opcode without its encoding (``_e32``, ``_e64``).
        operands: as they are written.
        modifiers: name -> value; an empty string for one without a value.
        text: the whole line.
    """

    name: str
    operands: tuple[str, ...]
    modifiers: dict[str, str]
    text: str

    @property
    def to_lds(self) -> bool:
        """A load from global memory whose data go to LDS, not to registers."""
        return "lds" in self.modifiers or "_load_lds_" in self.name


@dataclass(frozen=True)
class Listing:
    """A kernel.

    Attributes:
        instructions: in order.
        labels: name -> number of the instruction that follows.
        numbers: directives and metadata with a number, the first of each name: ``vgpr_count``, ``amdhsa_…``.
    """

    instructions: list[Instruction]
    labels: dict[str, int]
    numbers: dict[str, int] = field(default_factory=dict)

    @property
    def entry(self) -> int:
        """The first instruction of the kernel."""
        return next(place for name, place in self.labels.items() if not name.startswith("."))

    def loops(self) -> list[range]:
        """What lies between a label and a later branch back to it."""
        found = []
        for place, instruction in enumerate(self.instructions):
            if instruction.name.startswith(("s_branch", "s_cbranch")):
                start = self.labels[instruction.operands[0]]
                if start <= place:
                    found.append(range(start, place + 1))
        return found


def parse(text: str) -> Listing:
    """The instructions, labels and numbers of a listing."""
    listing = Listing([], {})
    for line in text.splitlines():
        code = re.split(r";|//", line)[0].rstrip()
        if label := _LABEL.match(code):
            listing.labels.setdefault(label[1], len(listing.instructions))
        elif number := _NUMBER.match(code):
            listing.numbers.setdefault(number[1], int(number[2]))
        elif instruction := _INSTRUCTION.match(code):
            listing.instructions.append(_instruction(instruction[1], instruction[2].strip(), code.strip()))
    return listing


def _instruction(name: str, rest: str, text: str) -> Instruction:
    name = re.sub(r"_e(32|64)$", "", name)
    parts = [part.strip() for part in re.split(r",(?![^\[(]*[\])])", rest)] if rest else []
    modifiers: dict[str, str] = {}
    if parts:
        # The last operand carries the modifiers, separated by spaces.
        words = _WORD.findall(parts[-1])
        if name == "s_waitcnt":
            words = ["", *words]
        parts[-1] = words[0]
        for word in words[1:]:
            key, _, value = word.partition(":")
            modifiers[key] = value
    if name == "s_waitcnt":
        parts = []
    if parts and parts[0].split(":")[0] in ("offset", "lds"):
        raise ValueError(f"cannot read {text!r}")
    return Instruction(name, tuple(parts), modifiers, text)
