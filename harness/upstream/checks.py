"""How one thing that we rely on is looked up in a version: one class a kind, each says what it saw or raises Drift.

A newcomer adds a kind with one class here, an entry in expectations.py that uses it, and a case in the drift test.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from harness.upstream.flags import flags_of
from harness.upstream.reader import (
    Drift,
    Tree,
    Unreadable,
    assignments,
    callee,
    calls,
    class_,
    definition,
    function,
    is_text,
    parameters,
    scope,
    top_level,
)


@dataclass(frozen=True)
class Seen:
    """What stands there now. `text` is compared between versions, so that a change within what we allow shows."""

    text: str
    path: str
    line: int


class Check(Protocol):
    def look(self, tree: Tree) -> Seen:
        """Raises Drift or Unreadable."""
        ...


def _calls_within(tree: Tree, path: str, within: str, callee: str) -> list[ast.Call]:
    """The calls of `callee` in a definition. Raises Drift where there is none."""
    where = definition(tree, path, within)
    found = calls(where, callee)
    if not found:
        raise Drift(f"{within} calls {callee} no more", path, where.lineno)
    return found


def _keywords(call: ast.Call) -> list[str]:
    return [keyword.arg or "**" for keyword in call.keywords]


def _differences(expected: Sequence[str], found: Sequence[str]) -> str:
    """`missing: a, b; new: c`, or that only the order changed."""
    missing = [item for item in expected if item not in found]
    new = [item for item in found if item not in expected]
    if not missing and [item for item in found if item in expected] != list(expected):
        return f"in another order: {', '.join(found)}"
    parts = [f"missing: {', '.join(missing)}"] if missing else []
    return "; ".join([*parts, f"new: {', '.join(new)}"] if new else parts)


@dataclass(frozen=True)
class File:
    """A module that is run or imported by its name."""

    path: str

    def look(self, tree: Tree) -> Seen:
        tree.module(self.path)
        return Seen("is there", self.path, 1)


@dataclass(frozen=True)
class Signature:
    """A function's parameters, with defaults, in order. `exact`: no further ones; else those may follow."""

    path: str
    name: str
    parameters: tuple[str, ...]
    exact: bool = False

    def look(self, tree: Tree) -> Seen:
        node = function(tree, self.path, self.name)
        found = parameters(node)
        relevant = found if self.exact else found[: len(self.parameters)]
        if tuple(relevant) != self.parameters:
            raise Drift(f"{self.name}: {_differences(self.parameters, found)}", self.path, node.lineno)
        return Seen(", ".join(found), self.path, node.lineno)


@dataclass(frozen=True)
class Fields:
    """Annotated names in the body of a class; further ones may be there."""

    path: str
    cls: str
    names: tuple[str, ...]

    def look(self, tree: Tree) -> Seen:
        node = class_(tree, self.path, self.cls)
        found = {
            statement.target.id: statement
            for statement in node.body
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
        }
        missing = [name for name in self.names if name not in found]
        if missing:
            raise Drift(f"{self.cls} has no {', '.join(missing)} any more", self.path, node.lineno)
        text = "; ".join(f"{name}: {ast.unparse(found[name].annotation)}" for name in self.names)
        return Seen(text, self.path, node.lineno)


@dataclass(frozen=True)
class Members:
    """Names assigned in the body of a class, such as those of an enumeration."""

    path: str
    cls: str
    names: tuple[str, ...]

    def look(self, tree: Tree) -> Seen:
        node = class_(tree, self.path, self.cls)
        found = [t.id for s in node.body if isinstance(s, ast.Assign) for t in s.targets if isinstance(t, ast.Name)]
        missing = [name for name in self.names if name not in found]
        if missing:
            raise Drift(f"{self.cls} has no {', '.join(missing)} any more", self.path, node.lineno)
        return Seen(", ".join(found), self.path, node.lineno)


@dataclass(frozen=True)
class Bound:
    """A name in a module's namespace, however it got there: what `module.name` as a hook's target needs."""

    path: str
    name: str

    def look(self, tree: Tree) -> Seen:
        for node in top_level(tree.module(self.path).body):
            names: list[str] = []
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [alias.asname or alias.name for alias in node.names]
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                names = [node.name]
            elif isinstance(node, ast.Assign):
                names = [target.id for target in node.targets if isinstance(target, ast.Name)]
            if self.name in names:
                origin = f"from {node.module}" if isinstance(node, ast.ImportFrom) else "of its own"
                return Seen(origin, self.path, node.lineno)
        elsewhere = tree.whereabouts(self.name, self.path)
        raise Drift(f"has no {self.name} any more; elsewhere: {elsewhere or 'nowhere'}", self.path)


@dataclass(frozen=True)
class Constant:
    """A name assigned a literal at the top of a module."""

    path: str
    name: str
    value: str

    def look(self, tree: Tree) -> Seen:
        found = assignments(tree.module(self.path), self.name)
        if not found:
            raise Drift(f"{self.name} is gone", self.path)
        text = ast.unparse(found[0].value) if found[0].value else ""
        if text != self.value:
            raise Drift(f"{self.name} is {text}, was {self.value}", self.path, found[0].lineno)
        return Seen(text, self.path, found[0].lineno)


@dataclass(frozen=True)
class Assigned:
    """An assignment within a definition: `target` gets `value`, both as source text.

    Without `value`, any will do, and `target` may also be a key of a dict literal (`meta_info["completion_tokens"]`).
    """

    path: str
    within: str
    target: str
    value: str = ""

    def look(self, tree: Tree) -> Seen:
        where = scope(tree, self.path, self.within)
        found = assignments(where, self.target)
        if not found and not self.value and (line := self._dict_key(where)):
            return Seen("set", self.path, line)
        if not found:
            raise Drift(f"{self.target} is assigned no more", self.path, getattr(where, "lineno", 0))
        values = [ast.unparse(one.value) if one.value else "" for one in found]
        wanted = ast.unparse(ast.parse(self.value, mode="eval")) if self.value else ""
        if self.value and wanted not in values:
            raise Drift(f"{self.target} = {values[0]}, was {wanted}", self.path, found[0].lineno)
        at = values.index(wanted) if self.value else 0
        return Seen(values[at] if self.value else "set", self.path, found[at].lineno)

    def _dict_key(self, where: ast.AST) -> int:
        subscript = ast.parse(self.target, mode="eval").body
        if not isinstance(subscript, ast.Subscript) or not isinstance(subscript.slice, ast.Constant):
            return 0
        key = subscript.slice.value
        lines = [k.lineno for n in ast.walk(where) if isinstance(n, ast.Dict) for k in n.keys if k and is_text(k, key)]
        return min(lines, default=0)


@dataclass(frozen=True)
class Gate:
    """The conditions of `target = a and b and …` within a function: all of them, and no others."""

    path: str
    within: str
    target: str
    conditions: tuple[str, ...]

    def look(self, tree: Tree) -> Seen:
        where = function(tree, self.path, self.within)
        found = assignments(where, self.target)
        if not found:
            elsewhere = tree.whereabouts(self.target, self.path)
            hint = f"; elsewhere: {elsewhere}" if elsewhere else ""
            raise Drift(f"the condition {self.target} is gone{hint}", self.path, where.lineno)
        value = found[0].value
        parts = value.values if isinstance(value, ast.BoolOp) and isinstance(value.op, ast.And) else [value]
        lines = {ast.unparse(part): part.lineno for part in parts if part is not None}
        wanted = [ast.unparse(ast.parse(condition, mode="eval")) for condition in self.conditions]
        if set(lines) != set(wanted):
            new = [line for text, line in lines.items() if text not in wanted]
            raise Drift(
                f"{self.target}: {_differences(wanted, list(lines))}", self.path, new[0] if new else found[0].lineno
            )
        return Seen("; ".join(lines), self.path, found[0].lineno)


@dataclass(frozen=True)
class CallKeywords:
    """A call within a function passes exactly these keywords: what a hook in its place receives."""

    path: str
    within: str
    callee: str
    keywords: tuple[str, ...]

    def look(self, tree: Tree) -> Seen:
        found = _calls_within(tree, self.path, self.within, self.callee)
        for call in found:
            names = _keywords(call)
            if set(names) == set(self.keywords) and not call.args:
                return Seen(", ".join(names), self.path, call.lineno)
        names = _keywords(found[0])
        names += [f"positional {ast.unparse(argument)}" for argument in found[0].args]
        raise Drift(f"{self.callee}(…): {_differences(self.keywords, names)}", self.path, found[0].lineno)


@dataclass(frozen=True)
class CallShape:
    """A call within a function passes so many positional values, and at least these keywords besides."""

    path: str
    within: str
    callee: str
    positional: int
    keywords: tuple[str, ...]

    def look(self, tree: Tree) -> Seen:
        found = _calls_within(tree, self.path, self.within, self.callee)
        for call in found:
            names = _keywords(call)
            if len(call.args) == self.positional and set(self.keywords) <= set(names):
                return Seen(f"{self.positional} values, {', '.join(names)}", self.path, call.lineno)
        names = _keywords(found[0])
        missing = ", ".join(name for name in self.keywords if name not in names) or "none"
        counts = f"{len(found[0].args)} positional values, expected {self.positional}; missing keywords: {missing}"
        raise Drift(f"{self.callee}(…): {counts}", self.path, found[0].lineno)


@dataclass(frozen=True)
class Calls:
    """A file calls something, such as the loading of plug-ins in a process's main function."""

    path: str
    callee: str
    within: str = ""

    def look(self, tree: Tree) -> Seen:
        where = scope(tree, self.path, self.within)
        found = calls(where, self.callee)
        if not found:
            raise Drift(f"{self.callee}() is called no more", self.path, getattr(where, "lineno", 0))
        return Seen("called", self.path, found[0].lineno)


@dataclass(frozen=True)
class EnvDeclared:
    """A variable among SGLang's declared ones, with its type and default."""

    name: str
    declaration: str
    path: str = "sglang/srt/environ.py"

    def look(self, tree: Tree) -> Seen:
        found = assignments(class_(tree, self.path, "Envs"), self.name)
        if not found:
            elsewhere = tree.whereabouts(self.name, self.path)
            read = f"; still named in {elsewhere}" if elsewhere else "; nothing reads it"
            raise Drift(f"{self.name} is declared no more{read}", self.path)
        text = ast.unparse(found[0].value) if found[0].value else ""
        if text != self.declaration:
            raise Drift(f"{self.name} = {text}, was {self.declaration}", self.path, found[0].lineno)
        return Seen(text, self.path, found[0].lineno)


@dataclass(frozen=True)
class EnvRead:
    """A variable that a file reads: `environ.get(name, default)`, `get_bool_env_var(name, …)`, `envs.NAME.get()`."""

    name: str
    path: str
    default: str = ""  # as source; empty: any

    def look(self, tree: Tree) -> Seen:
        for node in ast.walk(tree.module(self.path)):
            if not isinstance(node, ast.Call):
                continue
            if node.args and is_text(node.args[0], self.name):
                default = ast.unparse(node.args[1]) if len(node.args) > 1 else ""
                if self.default and default != self.default:
                    raise Drift(f"{self.name} defaults to {default}, was {self.default}", self.path, node.lineno)
                return Seen(f"default {default or 'of the reader'}", self.path, node.lineno)
            if callee(node) == "get" and ast.unparse(node.func) == f"envs.{self.name}.get":
                return Seen("as declared", self.path, node.lineno)
        elsewhere = tree.whereabouts(self.name, self.path)
        raise Drift(f"{self.name} is read no more; elsewhere: {elsewhere or 'nowhere'}", self.path)


@dataclass(frozen=True)
class Flag:
    """A command-line flag of the server: its default, and values that it must allow."""

    name: str
    default: str = ""  # as source; empty: any
    choices: tuple[str, ...] = ()

    def look(self, tree: Tree) -> Seen:
        flags = flags_of(tree)
        if self.name not in flags:
            close = sorted(name for name in flags if name.startswith(self.name) or self.name.startswith(name + "-"))
            hint = f"; there is {', '.join(close[:3])}" if close else ""
            raise Drift(f"{self.name} is no flag any more{hint}", "sglang/srt/server_args.py")
        flag = flags[self.name]
        if self.default and flag.default != self.default:
            raise Drift(f"{self.name} defaults to {flag.default}, was {self.default}", flag.path, flag.line)
        if self.choices and flag.choices_unread:
            raise Unreadable(f"{flag.path}:{flag.line}: the choices of {self.name} are no literal list")
        missing = [choice for choice in self.choices if flag.choices is not None and choice not in flag.choices]
        if missing:
            raise Drift(f"{self.name} allows {', '.join(missing)} no more", flag.path, flag.line)
        return Seen(flag.describe(), flag.path, flag.line)


@dataclass(frozen=True)
class Metric:
    """A Prometheus metric by its full name, and its kind: Counter, Gauge or Histogram."""

    name: str
    kind: str
    path: str = "sglang/srt/observability/metrics_collector.py"

    def look(self, tree: Tree) -> Seen:
        for node in ast.walk(tree.module(self.path)):
            if isinstance(node, ast.Call) and any(
                k.arg == "name" and is_text(k.value, self.name) for k in node.keywords
            ):
                if callee(node) != self.kind:
                    raise Drift(f"{self.name} is a {callee(node)}, was a {self.kind}", self.path, node.lineno)
                labels = next((ast.unparse(k.value) for k in node.keywords if k.arg == "labelnames"), "none")
                return Seen(f"{self.kind}, labels {labels}", self.path, node.lineno)
        elsewhere = tree.whereabouts(self.name, self.path)
        raise Drift(f"{self.name} is exposed no more; elsewhere: {elsewhere or 'nowhere'}", self.path)


@dataclass(frozen=True)
class Route:
    """An HTTP endpoint: `@app.get("/path")` or a similar decorator."""

    url: str
    method: str
    path: str = "sglang/srt/entrypoints/http_server.py"

    def look(self, tree: Tree) -> Seen:
        other = ""
        for node in ast.walk(tree.module(self.path)):
            if not isinstance(node, ast.Call) or not node.args or not is_text(node.args[0], self.url):
                continue
            methods = next((ast.unparse(k.value) for k in node.keywords if k.arg == "methods"), "")
            if callee(node) == self.method or self.method.upper() in methods:
                return Seen(f"{self.method} {self.url}", self.path, node.lineno)
            other = f"; now: {callee(node)} {methods}"
        raise Drift(f"{self.method} {self.url} is served no more{other}", self.path)


@dataclass(frozen=True)
class Text:
    """A piece of a string, such as of a log line that we parse."""

    path: str
    text: str
    within: str = ""

    def look(self, tree: Tree) -> Seen:
        where = scope(tree, self.path, self.within)
        lines = [
            node.lineno
            for node in ast.walk(where)
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and self.text in node.value
        ]
        if not lines:
            raise Drift(f"{self.text!r} is written no more", self.path, getattr(where, "lineno", 0))
        return Seen(self.text, self.path, min(lines))


@dataclass(frozen=True)
class Expression:
    """An expression, as source text, somewhere within a definition: a formula or a condition that we count on."""

    path: str
    within: str
    source: str

    def look(self, tree: Tree) -> Seen:
        where = definition(tree, self.path, self.within)
        wanted = ast.parse(self.source, mode="eval").body
        kind, text = type(wanted), ast.dump(wanted)
        lines = [node.lineno for node in ast.walk(where) if isinstance(node, kind) and ast.dump(node) == text]
        if not lines:
            raise Drift(f"{self.within} has no {ast.unparse(wanted)} any more", self.path, where.lineno)
        return Seen(ast.unparse(wanted), self.path, min(lines))
