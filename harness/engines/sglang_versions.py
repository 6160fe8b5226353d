"""Which flags and variables the versions of SGLang have that scenarios name; read from their wheels beforehand.

The table beside this file is written by
`mtpbench doctor --upstream VERSION… --flags harness/engines/sglang_flags.json`.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

_TABLE = Path(__file__).with_name("sglang_flags.json")
_IMAGE = re.compile(r":v(\d+\.\d+\.\d+(?:\.post\d+)?)-rocm")


@dataclass(frozen=True)
class Version:
    """What one version accepts. `deprecated`: flag → the one that replaces it."""

    name: str
    flags: frozenset[str]
    deprecated: Mapping[str, str]
    variables: frozenset[str]

    def problems(self, flags: Iterable[str]) -> list[tuple[str, str]]:
        """(key, what is wrong) of flags that this version refuses."""
        found = []
        for flag in flags:
            if flag not in self.flags:
                close = difflib.get_close_matches(flag, self.flags, 1)
                hint = f"; did you mean {close[0]!r}?" if close else ""
                found.append((f"flags.{flag}", f"SGLang {self.name} has no --{flag}{hint}"))
        return found

    def unread(self, variables: Iterable[str]) -> list[str]:
        """Those of SGLang's variables that nothing in this version reads: they do nothing."""
        return [name for name in variables if name.startswith("SGLANG_") and name not in self.variables]


@lru_cache
def versions() -> dict[str, Version]:
    """All that the table holds, oldest first."""
    table: dict[str, Any] = json.loads(_TABLE.read_text(encoding="utf-8"))
    return {
        name: Version(
            name,
            frozenset([*table["flags"]["all"], *table["flags"][name]]),
            table["deprecated"][name],
            frozenset([*table["variables"]["all"], *table["variables"][name]]),
        )
        for name in table["versions"]
    }


def version_of_image(image: str) -> str:
    """The version that the tag of a ROCm image says (`…:v0.5.19-rocm720-mi35x-20260908`); empty where it says none."""
    found = _IMAGE.search(image)
    return found[1] if found else ""
