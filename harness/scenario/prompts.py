"""Seed → prompts: distinct, exactly as long as asked, the same in every arm and launch.

Corpora are texts that every Python ships. The server's own tokeniser turns them into ids; a prompt is a
stretch of ids that begins where no other prompt of the run does, so that no prefix cache can help.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from harness.corpus import corpus
from harness.errors import WorkloadError
from harness.load.dialects import Prompt
from harness.model import LoadLevel
from harness.scenario.format import Scenario
from harness.scenario.workload import TokenRange, Workload

Tokenize = Callable[[str], Awaitable[list[int]]]
Detokenize = Callable[[Sequence[int]], Awaitable[str]]

# Two prompts that differ within their first HEAD tokens share no page of any size that SGLang uses by default.
HEAD = 16
_DRAWS_A_PROMPT = 50
# Small workloads do not wait for the whole corpus: they get ten times the text that they send.
_LEAST_CHARACTERS = 60_000
_CHARACTERS_A_TOKEN = 40
_CHUNK = 60_000  # characters a tokeniser request


@dataclass(frozen=True)
class Item:
    """One request to make: its prompt and how many tokens to generate."""

    prompt: Prompt
    output_tokens: int


def corpus_digest(workload: Workload) -> str:
    """Identifies the texts that prompts come from: two Python versions ship different ones."""
    if workload.file:
        return hashlib.sha256(Path(workload.file).read_bytes()).hexdigest()[:16]
    return hashlib.sha256("\0".join(corpus(workload.prompts)).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Block:
    """Which part of a run's prompts belongs to a pass: `first` is a position over the whole run."""

    first: int
    count: int
    workload: Workload  # of this pass: where lengths are swept, one of them


def plan_blocks(scenario: Scenario) -> dict[tuple[LoadLevel, int, bool], Block]:
    """A block of prompts for each (level, pass, is warm-up): a function of the scenario alone.

    So an arm sees the same prompts as the others, and a resumed run the same as if it had not been stopped. Factors
    come last, so that a scenario's own passes have the same prompts with and without them.
    """
    blocks, position = {}, 0
    for index in range(scenario.passes):
        for level in scenario.levels():
            workload, arrival = scenario.workload_of(level), scenario.arrival_of(level)
            for warmup, count in ((True, arrival.warmups(level)), (False, arrival.requests(level))):
                blocks[level, index, warmup] = Block(position, count, workload)
                position += count
    return blocks


class PromptBook(Protocol):
    """All prompts of a run, by position."""

    def item(self, position: int) -> Item: ...


def items_of(book: PromptBook, block: Block) -> list[Item]:
    """The requests of a pass."""
    return [book.item(position) for position in range(block.first, block.first + block.count)]


async def make_book(scenario: Scenario, tokenize: Tokenize, detokenize: Detokenize) -> PromptBook:
    """The prompts of a scenario, by the server's tokeniser. Raises WorkloadError when they don't suffice."""
    workload = scenario.workload
    blocks = plan_blocks(scenario).values()  # in order of their positions
    needed = sum(block.count for block in blocks)
    if workload.file is not None:
        lines = await _from_file(workload, tokenize)
        _check_enough(len(lines), needed, f"{workload.file} holds {len(lines)} prompts")
        return ListBook(lines)
    longest = max((block.workload.max_input or 0 for block in blocks), default=0)
    characters = max(_LEAST_CHARACTERS, _CHARACTERS_A_TOKEN * needed * longest)
    ids: list[int] = []
    for document in corpus(workload.prompts, characters):
        for start in range(0, len(document), _CHUNK):
            ids += await tokenize(document[start : start + _CHUNK])
    book = CorpusBook(workload, ids, [block.workload for block in blocks for _ in range(block.count)])
    if not workload.chat:
        return book
    items = [book.item(position) for position in range(needed)]
    texts = [await detokenize(item.prompt.ids) for item in items]
    return ListBook(
        [
            Item(Prompt(item.prompt.tokens, text=text), item.output_tokens)
            for item, text in zip(items, texts, strict=True)
        ]
    )


def _check_enough(available: int, needed: int, what: str) -> None:
    if needed > available:
        raise WorkloadError(
            f"{what}, the scenario needs {needed} (warm-up included; none is used twice in a launch)",
            "Lower requests_per_slot, passes or the concurrencies, or give more prompts.",
        )


class ListBook:
    """Prompts that are there as they are."""

    def __init__(self, items: Sequence[Item]) -> None:
        self._items = items

    def item(self, position: int) -> Item:
        return self._items[position]


class CorpusBook:
    """Prompts cut from a tokenised corpus: each begins where no other does. Made on demand."""

    def __init__(self, workload: Workload, ids: Sequence[int], workloads: Sequence[Workload]) -> None:
        """`workloads`: that of each prompt, by position, which says how long it is."""
        self._workload, self._ids, self._workloads = workload, ids, workloads
        needed = len(workloads)
        self._vocabulary: list[int] = []
        self._starts: list[int] = []
        if workload.prompts == "random":
            self._vocabulary = sorted(set(ids))
        else:
            self._starts = _distinct_starts(ids, needed, random.Random(workload.seed))
            _check_enough(
                len(self._starts), needed, f"the {workload.prompts} corpus yields {len(self._starts)} distinct prompts"
            )

    def item(self, position: int) -> Item:
        draw = random.Random(f"{self._workload.seed}/{position}")
        length, output = draw_lengths(self._workloads[position], draw)
        shared = self._ids[: self._workload.shared_prefix_tokens]
        own = self._own(position, length - len(shared), draw)
        return Item(Prompt(length, ids=(*shared, *own)), output)

    def _own(self, position: int, length: int, draw: random.Random) -> list[int]:
        if self._workload.prompts == "random":
            return draw.choices(self._vocabulary, k=length)
        start = self._starts[position]
        out = list(self._ids[start : start + length])
        while len(out) < length:  # the corpus ends: go on from its beginning
            out += self._ids[: length - len(out)]
        return out


def draw_lengths(workload: Workload, draw: random.Random) -> tuple[int, int]:
    """Input and output tokens of a prompt of one pass, see `Scenario.workload_of`."""
    assert workload.input_tokens is not None, "checked by Workload"
    return _length(workload.input_tokens, draw), _length(workload.output_tokens, draw)


def _length(length: int | TokenRange | list[int], draw: random.Random) -> int:
    assert not isinstance(length, list), "each pass of a swept length has its own"
    return draw.randint(length.min, length.max) if isinstance(length, TokenRange) else length


def _distinct_starts(ids: Sequence[int], needed: int, draw: random.Random) -> list[int]:
    """Random positions with different next HEAD tokens; fewer than `needed` where a corpus is too small."""
    seen: set[tuple[int, ...]] = set()
    starts: list[int] = []
    for _ in range(_DRAWS_A_PROMPT * needed):
        if len(starts) == needed or len(ids) < HEAD:
            break
        start = draw.randrange(len(ids) - HEAD + 1)
        head = tuple(ids[start : start + HEAD])
        if head not in seen:
            seen.add(head)
            starts.append(start)
    return starts


async def _from_file(workload: Workload, tokenize: Tokenize) -> list[Item]:
    assert workload.file is not None
    path = Path(workload.file)
    items = []
    for where, entry in _entries(path):
        default = workload.max_output
        output = next(
            (entry[k] for k in ("output_tokens", "max_tokens", "output_length", "output_len") if k in entry),
            default,
        )
        if not isinstance(output, int) or output < 1:
            raise WorkloadError(f"{where}: the number of output tokens must be a whole number from 1: {output!r}")
        ids = entry.get("input_ids", entry.get("prompt_token_ids"))
        if ids is not None:
            if not isinstance(ids, list) or not ids or not all(isinstance(token, int) for token in ids):
                raise WorkloadError(f"{where}: `input_ids` must be a list of whole numbers")
            items.append(Item(Prompt(len(ids), ids=tuple(ids)), output))
            continue
        text = _text_of(entry)
        if not text:
            known = "prompt, messages, conversations, input_ids"
            raise WorkloadError(f"{where}: no prompt found; one of these keys is needed: {known}")
        tokens = await tokenize(text)
        limit = workload.max_input
        tokens = tokens[:limit] if limit else tokens
        prompt = Prompt(len(tokens), text=text) if workload.chat else Prompt(len(tokens), ids=tuple(tokens))
        items.append(Item(prompt, output))
    return items


def _entries(path: Path) -> list[tuple[str, dict[str, Any]]]:
    """(where, object) for each line of a JSON Lines file, or each element of a JSON array."""
    text = path.read_text(encoding="utf-8")
    parsed: list[tuple[str, Any]] = []
    try:
        if text.lstrip().startswith("["):
            parsed = [(f"{path} entry {n}", value) for n, value in enumerate(json.loads(text), 1)]
        else:
            for number, line in enumerate(text.split("\n"), 1):
                where = f"{path}:{number}"
                if line.strip():
                    parsed.append((where, json.loads(line)))
    except ValueError as error:
        place = where if "where" in locals() else str(path)
        raise WorkloadError(f"{place}: not JSON: {error}", "One JSON object a line, or one array.") from error
    for where, value in parsed:
        if not isinstance(value, dict):
            raise WorkloadError(f"{where}: a JSON object is needed, found {type(value).__name__}")
    return parsed


def _text_of(entry: dict[str, Any]) -> str:
    """The prompt of an entry: all turns up to the last one of the user."""
    if isinstance(entry.get("prompt"), str):
        return str(entry["prompt"])
    turns = entry.get("messages") or entry.get("conversations") or []
    said: list[str] = []
    end = 0
    for turn in turns if isinstance(turns, list) else []:
        if not isinstance(turn, dict):
            return ""
        said.append(str(turn.get("content", turn.get("value", ""))))
        if turn.get("role", turn.get("from")) in ("user", "human"):
            end = len(said)
    return "\n\n".join(said[:end])


def poisson_offsets(rate: float, count: int, seed: int) -> list[float]:
    """Arrival times in seconds from the start: exponential gaps with mean 1 / rate."""
    draw = random.Random(f"arrivals/{seed}/{rate:g}")
    offsets, now = [], 0.0
    for _ in range(count):
        now += draw.expovariate(rate)
        offsets.append(now)
    return offsets
