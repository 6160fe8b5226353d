"""What importers share: a file read safely, values taken strictly, numbers named as the tool names them.

The file is hostile until proven otherwise: too large, cut off, not UTF-8, deeply nested, NaN for a number, text where a
number belongs, a key twice. Each is an error that names the file, the line or key, and what to do.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from harness.errors import Problem, ResultFileError
from harness.store.imported_runs import Number, Point, Scalar

MAX_BYTES = 128 * 2**20  # parsed, that is a gigabyte and more
MAX_POINTS = 10_000
MAX_NUMBER = 1e15  # no rate, latency or count is larger, and squares of it are still numbers
MAX_TEXT = 300  # characters of a setting: a command line fits, a prompt does not

# By unit, more than any server or any test of one can reach; nothing here can be negative.
_LARGEST = {"s": 1e8, "ms": 1e11, "us": 1e14, "tokens/s": 1e9, "1/s": 1e9, "%": 100.0, "tokens/step": 1e3}

_STATISTIC = r"(mean|avg|median|std|min|max|p\d{1,3}(?:\.\d{1,3})?)"


@dataclass(frozen=True)
class Document:
    """A file, parsed. JSON: one value, on line 1. JSON lines (two and more): one value for each line that has one."""

    name: str
    sha256: str
    values: tuple[tuple[int, Any], ...]
    lines: bool


@dataclass(frozen=True)
class Field:
    """A number that a tool reports. `{stat}` in its name is mean, median, std, min, max or a percentile (p99).

    Not imported are numbers that no Field names: a format that grows is a decision here, not an accident.
    """

    name: str
    unit: str
    higher_is_better: bool | None
    meaning: str

    def matches(self, key: str) -> bool:
        pattern = re.escape(self.name).replace(r"\{stat\}", _STATISTIC)
        return re.fullmatch(pattern, key) is not None

    def direction(self, key: str) -> bool | None:
        """A spread has none, whatever the metric has."""
        return None if re.search(r"(^|[_.])std([_.]|$)", key) else self.higher_is_better


@dataclass(frozen=True)
class Parsed:
    """What an importer found: the tool's version ("" unknown), the points, and the keys that it left."""

    tool_version: str
    points: tuple[Point, ...]
    ignored: tuple[str, ...]


class Importer(Protocol):
    """One format. `headline`: the numbers that a table shows first; `source`: where the definitions were read."""

    format: str
    tool: str
    source: str
    fields: tuple[Field, ...]
    headline: tuple[str, ...]

    def recognises(self, document: Document) -> bool:
        """Is it this format, by its keys? Must be false for every other format."""
        ...

    def read(self, document: Document) -> Parsed:
        """Raises ResultFileError."""
        ...


def printable(text: str) -> str:
    """Names from a file go to terminals: escape sequences and line breaks become visible and inert."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def fail(file: str, line: int, key: str, message: str, hint: str) -> ResultFileError:
    return ResultFileError([Problem(printable(file), line, printable(key[:MAX_TEXT]), printable(message))], hint)


def load_document(path: Path) -> Document:
    """Reads a file. Raises ResultFileError that says what is wrong with it."""
    name = printable(path.name)
    if not path.is_file():  # a folder, a pipe or a device is not read
        raise fail(str(path), 0, "", "is no file", "Give the result file that the tool wrote.")
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise fail(str(path), 0, "", f"can't be read: {error.strerror}", "Check its permissions.") from error
    if len(content) > MAX_BYTES:
        hint = "Write it again without per-request details (such as --output-details, --save-detailed)."
        raise fail(name, 0, "", f"is larger than {MAX_BYTES // 2**20} MB", hint)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        hint = "Results are JSON; is it compressed, or another file?"
        raise fail(name, 0, "", f"is not UTF-8 text (byte {error.start})", hint) from error
    lines, values = _parse(name, text)
    return Document(name, hashlib.sha256(content).hexdigest(), tuple(values), lines)


def _parse(name: str, text: str) -> tuple[bool, list[tuple[int, Any]]]:
    """Whole, or line by line where its first line is complete by itself."""
    numbered = [(n, line) for n, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not numbered:
        raise fail(name, 0, "", "is empty", "Did the tool finish? Give the file that it wrote.")
    if len(numbered) == 1 or not _first_line_is_complete(numbered):
        return False, [(1, _loads(name, 0, text))]
    if len(numbered) > MAX_POINTS:
        raise fail(name, 0, "", f"has more than {MAX_POINTS} results", "Split it.")
    return True, [(number, _loads(name, number, line)) for number, line in numbered]


def _first_line_is_complete(numbered: Sequence[tuple[int, str]]) -> bool:
    try:
        return isinstance(json.loads(numbered[0][1]), dict)
    except (ValueError, RecursionError):
        return False


def _loads(name: str, line: int, text: str) -> Any:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        value = dict(pairs)
        if len(value) < len(pairs):
            twice = next(key for n, (key, _) in enumerate(pairs) if key in {k for k, _ in pairs[:n]})
            raise fail(name, line, twice, "stands there twice", "The file was edited or merged; give the original.")
        return value

    try:
        return json.loads(text, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        at = line or error.lineno
        cut_off = error.pos >= len(text.rstrip()) - 1 or "Unterminated" in error.msg
        message = (
            "is cut off: JSON ends in the middle" if cut_off else f"is not JSON: {error.msg} (column {error.colno})"
        )
        hint = (
            "Was the tool interrupted? Remove the last line, or run it again." if cut_off else "Give the original file."
        )
        raise fail(name, at, "", message, hint) from error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits; nesting without end
        raise fail(
            name, line, "", f"can't be parsed: {str(error)[:120]}", "Give the file that the tool wrote."
        ) from error


class Item:
    """An object of a file, from which values are taken strictly: a wrong type is an error with line and key."""

    def __init__(self, file: str, line: int, path: str, value: Any) -> None:
        """`line` is 0 where a file is one value; `path` leads to this object from there."""
        self._file, self._line, self._path = file, line, path
        if not isinstance(value, dict):
            raise self.problem("", f"an object is expected, not {_kind(value)}")
        self.data: dict[str, Any] = value

    @classmethod
    def of(cls, document: Document, line: int, path: str, value: Any) -> Item:
        return cls(document.name, line if document.lines else 0, path, value)

    def problem(self, key: str, message: str) -> ResultFileError:
        full = ".".join(part for part in (self._path, key) if part)
        return fail(self._file, self._line, full, message, "Give the file as the tool wrote it, or name its --format.")

    def number(self, key: str) -> float | None:
        """A finite number; None where the key is absent or null."""
        value = self.data.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.problem(key, f"a number is expected, not {_kind(value)}")
        if isinstance(value, float) and not math.isfinite(value):
            raise self.problem(key, f"is {value}: not a measurement. Did every request fail?")
        if abs(value) > MAX_NUMBER:
            raise self.problem(key, "is too large a number for a measurement")
        return float(value)

    def all_numbers(self, key: str) -> list[float]:
        """The number, or the list of numbers, under a key."""
        value = self.data.get(key)
        entries = {f"{key}[{n}]": one for n, one in enumerate(value)} if isinstance(value, list) else {key: value}
        inner = Item(self._file, self._line, self._path, entries)
        return [number for name in entries if (number := inner.number(name)) is not None]

    def count(self, key: str) -> int | None:
        number = self.number(key)
        if number is None:
            return None
        if number < 0 or number != int(number):
            raise self.problem(key, f"a count is expected, not {number:g}")
        return int(number)

    def text(self, key: str) -> str:
        value = self.data.get(key)
        if value is None:
            return ""
        if not isinstance(value, str):
            raise self.problem(key, f"text is expected, not {_kind(value)}")
        return printable(value[:MAX_TEXT])

    def inner(self, key: str) -> Item | None:
        """The object under a key; None where there is none."""
        value = self.data.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.problem(key, f"an object is expected, not {_kind(value)}")
        return self._at(key, value)

    def items(self, key: str) -> list[Item]:
        """The objects in the list under a key; empty where there is none."""
        value = self.data.get(key)
        if value is None:
            return []
        if not isinstance(value, list):
            raise self.problem(key, f"a list is expected, not {_kind(value)}")
        return [self._at(f"{key}[{n}]", one) for n, one in enumerate(value)]

    def settings(self, keys: Iterable[str], prefix: str = "") -> dict[str, Scalar]:
        """Those of the keys that hold a short text, a finite number or a truth value."""
        found: dict[str, Scalar] = {}
        for key in keys:
            value = self.data.get(key)
            if printable(key) != key or len(key) > MAX_TEXT:
                continue
            if isinstance(value, str):
                found[prefix + key] = printable(value[:MAX_TEXT])
            elif isinstance(value, bool) or (isinstance(value, int | float) and abs(value) < MAX_NUMBER):
                found[prefix + key] = value
        return found

    def numbers(self, fields: Sequence[Field], skip: Iterable[str] = ()) -> tuple[Number, ...]:
        """Every number that a field names, under its own key."""
        found = []
        for key in self.data:
            for one in fields:
                if key not in skip and one.matches(key) and (value := self.number(key)) is not None:
                    if not 0 <= value <= _LARGEST.get(one.unit, MAX_NUMBER):
                        raise self.problem(key, f"{value:g} {one.unit} is no measurement: it can't be")
                    found.append(Number(key, value, one.unit, one.direction(key)))
                    break
        return tuple(found)

    def _at(self, key: str, value: Any) -> Item:
        return Item(self._file, self._line, f"{self._path}.{key}".lstrip("."), value)


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "a truth value", type(None): "null"}
    return names.get(type(value), "a number")


def left_over(items: Iterable[Item], taken: Iterable[str], fields: Sequence[Field]) -> tuple[str, ...]:
    """Keys that were not taken, sorted: what a reader of the result can't find in it."""
    known = set(taken)
    keys = {key for item in items for key in item.data}
    return named(key for key in keys - known if not any(f.matches(key) for f in fields))


def named(keys: Iterable[str]) -> tuple[str, ...]:
    """Keys as a record lists them: sorted, short, inert."""
    return tuple(sorted({printable(key[:MAX_TEXT]) for key in keys}))
