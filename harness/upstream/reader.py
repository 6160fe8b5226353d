"""SGLang's source, read from a wheel or a folder with `ast`; never imported, never executed."""

from __future__ import annotations

import ast
import re
import warnings
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from harness.errors import MtpbenchError

# SGLang's largest source file has 0.4 MB; a wheel with more is not what it says it is.
MAX_FILE_BYTES = 16 * 2**20

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class UpstreamError(MtpbenchError):
    """Wheels can't be had or read: nothing can be said about drift."""


class Drift(Exception):
    """What is relied on is gone or means something else; `line` is 0 where there is none to name."""

    def __init__(self, message: str, path: str, line: int = 0) -> None:
        super().__init__(message)
        self.message, self.path, self.line = message, path, line


class Unreadable(Exception):
    """A file can't be parsed by this Python: neither drift nor its absence can be told."""


class Tree:
    """The source files of one version. Subclasses say where they come from."""

    def __init__(self, version: str, origin: str, paths: Sequence[str]) -> None:
        self.version, self.origin = version, origin
        self.paths = frozenset(paths)
        self._modules: dict[str, ast.Module] = {}
        self.memo: dict[str, Any] = {}  # what is read out of many files at once, by name

    def text(self, path: str) -> str:
        raise NotImplementedError

    def module(self, path: str) -> ast.Module:
        """The syntax tree of a file. Raises Drift where the file is gone, Unreadable where it can't be parsed."""
        if path not in self.paths:
            raise Drift("the file is gone", path)
        if path not in self._modules:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # an odd escape sequence of theirs is not our business
                    self._modules[path] = ast.parse(self.text(path))
            except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
                raise Unreadable(f"{path}: {error}") from error
        return self._modules[path]

    def whereabouts(self, name: str, but: str) -> str:
        """Where else `name` stands as a whole word, for a message: definitions first. Empty when nowhere."""
        word = re.compile(rf"(?<![\w-]){re.escape(name)}(?![\w-])")
        found: list[tuple[bool, str, int]] = []
        for path in sorted(self.paths - {but}):
            if "/test" in path or not path.endswith(".py"):
                continue
            text = self.text(path)
            if name not in text:
                continue
            for number, line in enumerate(text.splitlines(), 1):
                if word.search(line):
                    defines = bool(re.search(rf"\b(def|class)\s+{re.escape(name)}\b", line))
                    found.append((not defines, path, number))
                    break
        return ", ".join(f"{path}:{line}" for _, path, line in sorted(found)[:2])


class WheelTree(Tree):
    """A wheel file, read in place."""

    def __init__(self, path: Path) -> None:
        try:
            self._zip = zipfile.ZipFile(path)
        except (OSError, zipfile.BadZipFile) as error:
            raise UpstreamError(f"{path} can't be read as a wheel: {error}", "Fetch it again.") from error
        names = self._zip.namelist()
        version = next((m[1] for n in names if (m := re.match(r"sglang-([^/]+)\.dist-info/METADATA$", n))), None)
        if version is None:
            raise UpstreamError(f"{path} is not a wheel of sglang", "Give a file named sglang-VERSION-….whl.")
        super().__init__(version, str(path), [name for name in names if name.endswith(".py")])

    def text(self, path: str) -> str:
        if self._zip.getinfo(path).file_size > MAX_FILE_BYTES:
            raise Unreadable(f"{path} is larger than {MAX_FILE_BYTES // 2**20} MB")
        try:
            return self._zip.read(path).decode()
        except (zipfile.BadZipFile, UnicodeDecodeError, NotImplementedError, OSError) as error:
            raise Unreadable(f"{path}: {error}") from error


def release(version: str) -> tuple[int, ...]:
    """`0.5.23.post1` → (0, 5, 23, 1), for comparing; a release candidate counts as its release."""
    numbers = re.match(r"\d+(?:\.\d+)*(?:\.?post\d+)?", version)
    return tuple(int(n) for n in re.findall(r"\d+", numbers[0])) if numbers else ()


def top_level(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a module or class, those inside `if`, `try` and `with` included."""
    for statement in body:
        yield statement
        for field in ("body", "orelse", "finalbody"):
            if not isinstance(statement, Definition):
                yield from top_level(getattr(statement, field, []))
        for handler in getattr(statement, "handlers", []):
            yield from top_level(handler.body)


def definition(tree: Tree, path: str, name: str) -> Definition:
    """The function, class or method `name` (`Class.method`) of a file. Raises Drift."""
    node: ast.Module | Definition = tree.module(path)
    for part in name.split("."):
        found = [n for n in top_level(node.body) if isinstance(n, Definition) and n.name == part]
        if not found:
            elsewhere = tree.whereabouts(part, path)
            hint = f"; {part} is now in {elsewhere}" if elsewhere else f"; {part} is nowhere else"
            raise Drift(f"{name} is gone{hint}", path, getattr(node, "lineno", 0))
        node = found[-1]
    assert isinstance(node, Definition)
    return node


def function(tree: Tree, path: str, name: str) -> ast.FunctionDef | ast.AsyncFunctionDef:
    node = definition(tree, path, name)
    if isinstance(node, ast.ClassDef):
        raise Drift(f"{name} is a class now, it was a function", path, node.lineno)
    return node


def class_(tree: Tree, path: str, name: str) -> ast.ClassDef:
    node = definition(tree, path, name)
    if not isinstance(node, ast.ClassDef):
        raise Drift(f"{name} is a function now, it was a class", path, node.lineno)
    return node


def scope(tree: Tree, path: str, within: str) -> ast.Module | Definition:
    """The whole file, or the definition named `within`."""
    return definition(tree, path, within) if within else tree.module(path)


def parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    """`["self", "q", "save=True", "*", "sinks=None"]`: names and defaults without annotations."""
    arguments = node.args
    plain = [*arguments.posonlyargs, *arguments.args]
    padding: list[ast.expr | None] = [None] * (len(plain) - len(arguments.defaults))
    out = [_parameter(a, d) for a, d in zip(plain, [*padding, *arguments.defaults], strict=True)]
    if arguments.vararg:
        out.append(f"*{arguments.vararg.arg}")
    elif arguments.kwonlyargs:
        out.append("*")
    out += [_parameter(a, d) for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]
    if arguments.kwarg:
        out.append(f"**{arguments.kwarg.arg}")
    return out


def _parameter(argument: ast.arg, default: ast.expr | None) -> str:
    return argument.arg if default is None else f"{argument.arg}={ast.unparse(default)}"


def callee(node: ast.Call) -> str:
    """The last part of the called name: `envs.X.get` → `get`."""
    function = node.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def calls(node: ast.AST, name: str) -> list[ast.Call]:
    """Every call of `name` below a node, in order."""
    found = [n for n in ast.walk(node) if isinstance(n, ast.Call) and callee(n) == name]
    return sorted(found, key=lambda n: (n.lineno, n.col_offset))


def assignments(node: ast.AST, target: str) -> list[ast.Assign | ast.AnnAssign]:
    """Every assignment to `target`, written as source (`x`, `state["key"]`), in order."""
    wanted = ast.unparse(ast.parse(target, mode="eval"))
    found: list[ast.Assign | ast.AnnAssign] = []
    for one in ast.walk(node):
        targets = one.targets if isinstance(one, ast.Assign) else [one.target] if isinstance(one, ast.AnnAssign) else []
        if isinstance(one, ast.Assign | ast.AnnAssign) and wanted in map(ast.unparse, targets):
            found.append(one)
    return sorted(found, key=lambda n: n.lineno)


def is_text(node: ast.AST | None, value: object) -> bool:
    return isinstance(node, ast.Constant) and node.value == value
