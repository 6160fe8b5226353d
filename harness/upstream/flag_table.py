"""The flags and variables of several versions as one table, from which `validate` knows what a version accepts.

`mtpbench doctor --upstream VERSION… --flags FILE` writes it; harness/engines/sglang_flags.json is the one that is
shipped, read by harness/engines/sglang_versions.py. Names only: no text of SGLang's is kept.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence

from harness.upstream.flags import flags_of
from harness.upstream.reader import Tree, release

# Variables are declared in environ.py, or read where they are needed: any whole word is one.
_VARIABLE = re.compile(r"\bSGLANG_[A-Z0-9_]+\b")
_PARTS = ("/test", "/benchmark", "/tools/")


def flag_table(trees: Sequence[Tree]) -> str:
    """JSON: what every version has, and what only some of them have, by version; deprecated flags with their heirs."""
    trees = sorted(trees, key=lambda tree: release(tree.version))
    versions = [tree.version for tree in trees]
    flags = [flags_of(tree) for tree in trees]
    document = {
        "versions": versions,
        "flags": _shared(versions, [set(found) for found in flags], lambda name: name.removeprefix("--")),
        "deprecated": {
            version: {
                name.removeprefix("--"): flag.deprecated.removeprefix("--")
                for name, flag in sorted(found.items())
                if flag.deprecated
            }
            for version, found in zip(versions, flags, strict=True)
        },
        "variables": _shared(versions, [_variables(tree) for tree in trees], str),
    }
    return json.dumps(document, indent=0) + "\n"


def _variables(tree: Tree) -> set[str]:
    found: set[str] = set()
    for path in tree.paths:
        if path.endswith(".py") and not any(part in path for part in _PARTS):
            found.update(_VARIABLE.findall(tree.text(path)))
    return found


def _shared(versions: Sequence[str], found: Sequence[set[str]], spell: Callable[[str], str]) -> dict[str, list[str]]:
    """`all`: in every version; `VERSION`: what that one has besides."""
    everywhere = set.intersection(*found)
    out = {"all": sorted(map(spell, everywhere))}
    for version, names in zip(versions, found, strict=True):
        out[version] = sorted(map(spell, names - everywhere))
    return out
