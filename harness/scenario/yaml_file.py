"""YAML → Scenario, strictly: every error names file, line and key. The only place that imports yaml."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError

from harness.engines.registry import ENGINES
from harness.errors import Problem, ScenarioError
from harness.fields import FROM_FILE, is_file, merge
from harness.scenario.format import Arm, Scenario
from harness.scenario.problems import semantic_problems

MAX_BYTES = 1_000_000
MAX_NODES = 20_000  # of a document with aliases, once they are followed
MAX_DEPTH = 50
KeyPath = tuple[str | int, ...]

# YAML 1.1 reads 010 as 8, 1:30 as 90, yes as true and 2026-11-30 as a day. What a person would not expect is refused
# with its line; days stay text, and 1e-3, which it takes for text, is a number.
_TAG = "tag:yaml.org,2002:"
_WHOLE = re.compile(r"[-+]?(0|[1-9][0-9]{0,17})")
_NUMBER = re.compile(r"[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]{1,3})?")


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag != f"{_TAG}timestamp"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


_Loader.add_implicit_resolver(
    f"{_TAG}float", re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def _misread(node: yaml.ScalarNode) -> str:
    """Why a scalar is likely to mean something else than its writer thinks; empty where it does not."""
    kind, text = node.tag.removeprefix(_TAG), str(node.value)
    if kind in ("binary", "timestamp", "merge", "value"):  # others than those it knows, SafeLoader refuses itself
        return f"the tag {node.tag.replace(_TAG, '!!')} is not allowed"
    if kind == "bool" and text.lower() not in ("true", "false"):
        return f"YAML reads {text} as a truth value: write true or false, or quote the text"
    if kind == "int" and not _WHOLE.fullmatch(text):
        return f"{text[:20]} is no plain whole number: write it in decimal digits, or quote the text"
    if kind == "float" and not _NUMBER.fullmatch(text):
        return f"{text[:20]} is no plain number: write it in decimal digits, or quote the text"
    return ""


def load(path: Path) -> Scenario:
    """Reads and checks a scenario file. Raises ScenarioError with everything that is wrong."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ScenarioError([Problem(str(path), 0, "", f"larger than {MAX_BYTES} bytes: not a scenario")])
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ScenarioError([Problem(str(path), 0, "", f"can't be read: {error}")]) from error
    return parse(text, str(path))


def parse(text: str, file: str) -> Scenario:
    """Reads and checks the text of a scenario; `file` is only for messages and for finding `workload.file`."""
    value, lines = read_yaml(text, file)
    if not isinstance(value, dict):
        raise ScenarioError([Problem(file, 1, "", "a scenario is a mapping of keys")])
    report = _Report(file, lines)
    scenario = _validate(value, report)
    for key, message in semantic_problems(scenario):
        report.add(key, message)
    report.finish()
    workload_file = scenario.workload.file
    if workload_file is not None:
        if not is_file(Path(file).parent / workload_file):
            report.add(("workload", "file"), f"{workload_file[:200]!r} is not a file beside {file}")
            report.finish()
        resolved = (Path(file).parent / workload_file).resolve()
        workload = scenario.workload.model_copy(update={"file": str(resolved)})
        scenario = scenario.model_copy(update={"workload": workload})
    return scenario


def _validate(value: dict[str, Any], report: _Report) -> Scenario:
    engine = value.get("server", {}).get("engine") if isinstance(value.get("server"), dict) else None
    if not isinstance(engine, str) or engine not in ENGINES:
        allowed = ", ".join(sorted(ENGINES))
        report.add(("server", "engine"), f"{engine!r} is no engine; allowed: {allowed}")
        report.finish()
    report.engine = str(engine)
    try:
        scenario = Scenario.model_validate(value, context=FROM_FILE)
    except ValidationError as error:
        report.add_all(error, ())
        # Arms are checked all the same, so that one look shows everything.
        report.add_arms(value)
        report.finish()
        raise AssertionError("finish() raises when there are problems") from error
    report.add_arms(value)
    report.finish()
    return scenario


class _Report:
    """Collects problems, finding the line of each key."""

    def __init__(self, file: str, lines: Mapping[KeyPath, int]) -> None:
        self.file, self.lines = file, lines
        self.engine = ""
        self.problems: list[Problem] = []

    def add(self, key: KeyPath, message: str) -> None:
        path = key
        while path and path not in self.lines:
            path = path[:-1]
        problem = Problem(self.file, self.lines.get(path, 1), ".".join(map(str, key)), message)
        if problem not in self.problems:
            self.problems.append(problem)

    def add_all(self, error: ValidationError, prefix: KeyPath) -> None:
        details = error.errors()
        # The other form of a length, {min, max}, was meant: its own error says more.
        said = [one for one in details if not (one["type"] == "int_type" and isinstance(one["input"], dict))]
        for detail in said or details:
            key = self._key(prefix, detail)
            self.add(key, _wording(detail, key, lambda path: _fields_at(path, self.engine)))

    def _key(self, prefix: KeyPath, detail: Any) -> KeyPath:
        """The key as it stands in the file: pydantic's path also names union members, which no file has."""
        key = prefix
        for position, part in enumerate(detail["loc"]):
            last = position == len(detail["loc"]) - 1
            if (*key, part) in self.lines or (last and detail["type"] == "missing"):
                key = (*key, part)
        return key

    def add_arms(self, value: dict[str, Any]) -> None:
        arms, server = value.get("arms"), value.get("server")
        if not isinstance(arms, dict) or not isinstance(server, dict):
            return
        known = {problem.message for problem in self.problems}
        for name, changes in arms.items():
            if not isinstance(changes, dict):
                self.add(
                    ("arms", name),
                    "an arm is a mapping of what it changes in `server`; {} for nothing",
                )
                continue
            if "engine" in changes and changes["engine"] != server.get("engine"):
                self.add(("arms", name, "engine"), "all arms of a scenario run on one engine")
                continue
            try:
                Arm.model_validate({"name": str(name), "server": merge(server, changes)}, context=FROM_FILE)
            except ValidationError as error:
                before = len(self.problems)
                self.add_all(error, ("arms", name))
                # What the base already says wrong is not said again for every arm.
                self.problems[before:] = [p for p in self.problems[before:] if p.message not in known]

    def finish(self) -> None:
        if self.problems:
            raise ScenarioError(sorted(self.problems, key=lambda p: (p.line, p.key)))


def problems_of(
    error: ValidationError, file: str, lines: Mapping[KeyPath, int], allowed: Callable[[KeyPath], list[str]]
) -> list[Problem]:
    """For other strict files: everything that is wrong, each with its line. `allowed` lists the keys at a path."""
    found = []
    for detail in error.errors():
        key: KeyPath = tuple(detail["loc"])
        path = key
        while path and path not in lines:
            path = path[:-1]
        message = _wording(detail, key, allowed)
        found.append(Problem(file, lines.get(path, 1), ".".join(map(str, key)), message))
    return sorted(found, key=lambda problem: (problem.line, problem.key))


def _wording(detail: Any, key: KeyPath, fields: Callable[[KeyPath], Iterable[str]]) -> str:
    """Pydantic's message in the words of a person who writes such a file."""
    kind, message = detail["type"], detail["msg"]
    if kind == "extra_forbidden":
        name = str(key[-1])
        allowed = sorted(fields(key[:-1]))
        close = difflib.get_close_matches(name, allowed, 1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        return f"unknown key; {hint}allowed: {', '.join(allowed)}"
    if kind == "missing":
        return "this key is required"
    if kind == "value_error":
        return str(message).removeprefix("Value error, ")
    given = detail.get("input")
    shown = f" (given: {given!r})" if isinstance(given, str | int | float | bool | None) else ""
    return f"{message[0].lower()}{message[1:]}{shown}"


def _fields_at(path: KeyPath, engine: str) -> set[str]:
    """Names of the keys allowed at `path`."""
    if path[:1] == ("arms",):
        path = ("server", *path[2:])
    if path[:1] == ("factors",):
        path = ("factors", *path[2:])  # the name of a factor is free
    kinds: list[type[BaseModel]] = [Scenario]
    for part in path:
        kinds = [
            model
            for kind in kinds
            if part in kind.model_fields
            for model in _models_in(kind.model_fields[str(part)].annotation)
        ]
        if part == "server":
            kinds = [k for k in kinds if engine in get_args(k.model_fields["engine"].annotation)]
    return {name for kind in kinds for name in kind.model_fields}


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models_in(argument)


def to_yaml(value: Any) -> str:
    """A document for people: keys in the order given, long lines kept whole, text as it is."""
    return str(yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=1000))


def read_yaml(text: str, file: str, *, aliases: bool = False) -> tuple[Any, dict[KeyPath, int]]:
    """The value of a document and the line of every key, counted from 1.

    With `aliases`, as another program's file may need them, they may make the document no larger than `MAX_NODES`.
    Raises ScenarioError for what is no YAML, and for aliases, repeats, tags and numbers that are easily misread.
    """
    loader = None
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
        if root is None:
            raise ScenarioError([Problem(file, 1, "", "the file is empty")])
        lines: dict[KeyPath, int] = {}
        problems: list[Problem] = []
        _walk(root, (), lines, problems, file, None if aliases else set())
        if problems:
            raise ScenarioError(problems)
        return loader.construct_document(root), lines
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        message = getattr(error, "problem", None) or str(error)
        raise ScenarioError([Problem(file, mark.line + 1 if mark else 0, "", f"not valid YAML: {message}")]) from error
    except (RecursionError, ValueError, OverflowError) as error:
        message = "nested too deeply" if isinstance(error, RecursionError) else str(error)[:200]
        raise ScenarioError([Problem(file, 0, "", f"not valid YAML: {message}")]) from error
    finally:
        if loader is not None:
            loader.dispose()


def _walk(
    node: yaml.Node,
    path: KeyPath,
    lines: dict[KeyPath, int],
    problems: list[Problem],
    file: str,
    seen: set[int] | None,
) -> None:
    lines.setdefault(path, node.start_mark.line + 1)
    key_text = ".".join(map(str, path))
    # Aliases can blow a small file up to gigabytes, and hide where a value comes from.
    if seen is None and (len(lines) > MAX_NODES or len(path) > MAX_DEPTH):
        raise ScenarioError([Problem(file, node.start_mark.line + 1, key_text, "YAML aliases make it far too large")])
    if seen is not None and id(node) in seen and not isinstance(node, yaml.ScalarNode):
        problems.append(Problem(file, node.start_mark.line + 1, key_text, "YAML aliases (*name) are not allowed"))
        return
    if seen is not None:
        seen.add(id(node))
    if len(path) > MAX_DEPTH:
        problems.append(Problem(file, node.start_mark.line + 1, "", "not valid YAML: nested too deeply"))
        return
    if isinstance(node, yaml.ScalarNode):
        if wrong := _misread(node):
            problems.append(Problem(file, node.start_mark.line + 1, key_text, wrong))
    elif isinstance(node, yaml.SequenceNode):
        for index, child in enumerate(node.value):
            _walk(child, (*path, index), lines, problems, file, seen)
    elif isinstance(node, yaml.MappingNode):
        for key, child in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode) or key.tag != "tag:yaml.org,2002:str":
                shown = getattr(key, "value", "?")
                problems.append(Problem(file, line, key_text, f"the key {shown!r} must be text; quote it"))
                continue
            here = (*path, key.value)
            if here in lines:
                problems.append(Problem(file, line, ".".join(map(str, here)), "this key stands there twice"))
            lines[here] = line
            _walk(child, here, lines, problems, file, seen)
