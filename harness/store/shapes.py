"""Are a record's values of the types that it declares? Records are read from files that anybody may have written."""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Mapping
from enum import Enum
from typing import Any

from harness.model import Event

_LARGEST = 1e15  # no time, count or reading is beyond it, and squares of it are still numbers
_DEPTH = 40  # of JSON within JSON


@functools.cache
def _fields(kind: type) -> tuple[tuple[str, Any], ...]:
    hints = typing.get_type_hints(kind)
    return tuple((field.name, hints[field.name]) for field in dataclasses.fields(kind))


def check(value: Any, hint: Any, where: str = "") -> None:
    """Raises ValueError that names the field whose value is of another type, not finite, or absurdly large."""
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        if not isinstance(value, hint):
            raise ValueError(f"{where or hint.__name__} is no {hint.__name__}")
        for name, inner in _fields(hint):
            check(getattr(value, name), inner, name)
        return
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        plain(value, where)
    elif origin is tuple:
        if not isinstance(value, tuple):
            raise ValueError(f"{where} is no list")
        if arguments == (Event, ...):
            _events(value)
        elif len(arguments) == 2 and arguments[1] is ...:
            for one in value:
                check(one, arguments[0], where)
        else:
            if len(value) != len(arguments):
                raise ValueError(f"{where} has {len(value)} entries, not {len(arguments)}")
            for one, inner in zip(value, arguments, strict=True):
                check(one, inner, where)
    elif origin in (dict, Mapping):
        if not isinstance(value, Mapping):
            raise ValueError(f"{where} is no object")
        for key, one in value.items():
            check(key, arguments[0], where)
            check(one, arguments[1], f"{where}.{key}"[:80])
    elif origin in (typing.Union, types.UnionType):
        if not any(_fits(value, inner, where) for inner in arguments):
            raise ValueError(f"{where} can't be {str(value)[:40]!r}")
    elif hint is float:
        _number(value, where)
    elif hint is int:
        if type(value) is not int or abs(value) > _LARGEST:
            raise ValueError(f"{where} is no whole number: {str(value)[:40]!r}")
    elif hint is type(None):
        if value is not None:
            raise ValueError(f"{where} is not null")
    elif isinstance(hint, type) and (issubclass(hint, Enum) or hint in (str, bool)):
        if not isinstance(value, hint):
            raise ValueError(f"{where} is no {hint.__name__}: {str(value)[:40]!r}")
    else:
        raise TypeError(f"no check is known for {hint!r} of {where}")


def _fits(value: Any, hint: Any, where: str) -> bool:
    try:
        check(value, hint, where)
    except ValueError:
        return False
    return True


def _number(value: Any, where: str) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or abs(value) > _LARGEST:
        raise ValueError(f"{where} is no number: {str(value)[:40]!r}")


def _events(events: tuple[Any, ...]) -> None:
    """Times in order, counts that grow."""
    tokens, t = 0, -math.inf
    for event in events:
        _number(event.t, "events")
        if type(event.tokens) is not int or not tokens < event.tokens <= _LARGEST or event.t < t:
            raise ValueError("events do not follow each other")
        tokens, t = event.tokens, event.t


def plain(value: Any, where: str, depth: int = 0) -> None:
    """JSON that is not nested too deeply, with numbers that are numbers."""
    if depth > _DEPTH:
        raise ValueError(f"{where} is nested too deeply")
    if isinstance(value, Mapping):
        for key, one in value.items():
            plain(one, f"{where}.{key}"[:80], depth + 1)
    elif isinstance(value, list | tuple):
        for one in value:
            plain(one, where, depth + 1)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        _number(value, where)
