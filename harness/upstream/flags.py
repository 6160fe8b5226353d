"""The command-line flags of a version: what `python -m sglang.launch_server` accepts, read from its source.

SGLang declares them twice over: as annotated fields (`name: A[type, Arg(…)] = default`) from which argparse is filled,
and as plain `add_argument` calls, mostly for deprecated spellings. 0.5.16 has all fields in server_args.py; by 0.5.23
they lie in arg_groups/fields/.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass

from harness.upstream.reader import Drift, Tree, callee, top_level

_MAIN = "sglang/srt/server_args.py"
_FIELDS = "sglang/srt/arg_groups/fields/"
_CHOICES = "sglang/srt/arg_groups/choices.py"


@dataclass(frozen=True)
class Flag:
    """One flag. `choices` is None where any value goes, or where they can't be read (`choices_unread`)."""

    default: str
    path: str
    line: int
    choices: tuple[str, ...] | None = None
    choices_unread: bool = False
    deprecated: str = ""  # what replaces it

    def describe(self) -> str:
        parts = [f"default {self.default}"]
        if self.choices is not None:
            parts.append(f"choices {', '.join(self.choices)}")
        if self.deprecated:
            parts.append(f"deprecated for {self.deprecated}")
        return "; ".join(parts)


def flags_of(tree: Tree) -> dict[str, Flag]:
    """All flags by name, dashes included; read once a tree. Raises Drift where not even the file is there."""
    if "flags" not in tree.memo:
        tree.memo["flags"] = _read(tree)
    flags: dict[str, Flag] = tree.memo["flags"]
    return flags


def _read(tree: Tree) -> dict[str, Flag]:
    files = [_MAIN, *sorted(path for path in tree.paths if path.startswith(_FIELDS))]
    modules = {path: tree.module(path) for path in files}
    constants: dict[str, ast.expr] = {}
    for path in [*([_CHOICES] if _CHOICES in tree.paths else []), *files]:
        for node in ast.walk(tree.module(path)):  # local names too: choices that a platform adds to
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                constants.setdefault(node.targets[0].id, node.value)
    flags: dict[str, Flag] = {}
    # First the fields: `add_argument` may take its default from one (`_declared_default("name")`).
    declared: dict[str, str] = {}
    for path, module in modules.items():
        for node in module.body:
            if isinstance(node, ast.ClassDef):
                for field in top_level(node.body):
                    if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                        declared[field.target.id] = ast.unparse(field.value) if field.value else "(required)"
                        _add_field(field, field.target.id, path, constants, flags)
    for path, module in modules.items():
        for node in ast.walk(module):
            if isinstance(node, ast.Call) and callee(node) == "add_argument":
                _add_argument(node, path, constants, declared, flags)
    if not flags:
        raise Drift("no flag is declared as it used to be", _MAIN)
    return flags


def _add_field(
    field: ast.AnnAssign, name: str, path: str, constants: dict[str, ast.expr], flags: dict[str, Flag]
) -> None:
    annotation = field.annotation
    if not (isinstance(annotation, ast.Subscript) and isinstance(annotation.value, ast.Name)):
        return
    if annotation.value.id not in ("A", "Annotated") or not isinstance(annotation.slice, ast.Tuple):
        return
    argument = next((a for a in annotation.slice.elts[1:] if isinstance(a, ast.Call) and callee(a) == "Arg"), None)
    described = any(isinstance(a, ast.Constant) and isinstance(a.value, str) for a in annotation.slice.elts[1:])
    if argument is None and not described:
        return
    options = {k.arg: k.value for k in argument.keywords} if argument else {}
    if isinstance(no_cli := options.get("no_cli"), ast.Constant) and no_cli.value:
        return
    default = ast.unparse(field.value) if field.value else "(required)"
    flag = _flag(default, path, field.lineno, options.get("choices"), constants)
    spelled = options.get("cli_name")
    main = spelled.value if isinstance(spelled, ast.Constant) else "--" + name.replace("_", "-")
    flags[str(main)] = flag
    for alias in _texts(options.get("aliases"), constants) or ():
        flags[alias] = flag


def _add_argument(
    call: ast.Call, path: str, constants: dict[str, ast.expr], declared: dict[str, str], flags: dict[str, Flag]
) -> None:
    names = [a.value for a in call.args if isinstance(a, ast.Constant) and str(a.value).startswith("--")]
    options = {k.arg: k.value for k in call.keywords}
    given = options.get("default", ast.Constant(None))
    default = ast.unparse(given)
    if isinstance(given, ast.Call) and callee(given) == "_declared_default" and isinstance(given.args[0], ast.Constant):
        default = declared.get(str(given.args[0].value), default)
    flag = _flag(default, path, call.lineno, options.get("choices"), constants)
    if "Deprecated" in ast.unparse(options.get("action", ast.Constant(""))):
        new = options.get("new_flag")
        flag = Flag(
            flag.default, path, call.lineno, deprecated=str(new.value) if isinstance(new, ast.Constant) else "?"
        )
    for name in names:
        flags.setdefault(str(name), flag)


def _flag(default: str, path: str, line: int, choices: ast.expr | None, constants: dict[str, ast.expr]) -> Flag:
    values = _texts(choices, constants)
    return Flag(default, path, line, values, choices_unread=choices is not None and values is None)


def _texts(node: ast.expr | None, constants: dict[str, ast.expr], depth: int = 0) -> tuple[str, ...] | None:
    """The strings of a literal list, of a name for one, or of a sum of such; None where it is anything else."""
    if node is None or depth > 8:
        return None
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        parts: list[str] = []
        for element in node.elts:
            if isinstance(element, ast.Starred):
                inner = _texts(element.value, constants, depth + 1)
                if inner is None:
                    return None
                parts += inner
            elif isinstance(element, ast.Constant):
                parts.append(str(element.value))
            else:
                return None
        return tuple(parts)
    if isinstance(node, ast.Name) and node.id in constants:
        return _texts(constants[node.id], constants, depth + 1)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.BitOr):
        left, right = _texts(node.left, constants, depth + 1), _texts(node.right, constants, depth + 1)
        return left + right if left is not None and right is not None else None
    if (
        isinstance(node, ast.Call)
        and callee(node) in ("list", "set", "frozenset", "tuple", "sorted")
        and len(node.args) == 1
    ):
        return _texts(node.args[0], constants, depth + 1)
    return None
