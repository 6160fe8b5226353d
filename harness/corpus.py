"""Real texts that every Python ships. Standard library only: also used in a server's interpreter."""

from __future__ import annotations

import importlib
import sysconfig
from pathlib import Path

CHARACTERS = 700_000

# Fixed names, so that the corpus does not depend on what else is installed.
_CODE_MODULES = [
    "argparse",
    "ast",
    "asyncio/base_events",
    "bisect",
    "calendar",
    "codecs",
    "configparser",
    "csv",
    "dataclasses",
    "datetime",
    "decimal",
    "difflib",
    "dis",
    "doctest",
    "enum",
    "fractions",
    "ftplib",
    "functools",
    "gzip",
    "heapq",
    "imaplib",
    "inspect",
    "ipaddress",
    "json/decoder",
    "json/encoder",
    "locale",
    "logging/__init__",
    "logging/handlers",
    "mailbox",
    "mimetypes",
    "optparse",
    "os",
    "pathlib",
    "pdb",
    "pickle",
    "pickletools",
    "platform",
    "plistlib",
    "pprint",
    "pydoc",
    "random",
    "selectors",
    "shelve",
    "shutil",
    "smtplib",
    "socket",
    "sqlite3/dump",
    "ssl",
    "statistics",
    "string",
    "subprocess",
    "tarfile",
    "tempfile",
    "textwrap",
    "threading",
    "tokenize",
    "traceback",
    "turtle",
    "types",
    "typing",
    "unittest/case",
    "unittest/mock",
    "urllib/parse",
    "urllib/request",
    "uuid",
    "wave",
    "weakref",
    "zipfile",
]


def corpus(kind: str, characters: int = CHARACTERS) -> list[str]:
    """The first documents of a corpus, at most so many characters, and never more than CHARACTERS, in all."""
    limit = min(characters, CHARACTERS)
    documents = _prose() if kind != "code" else _code()
    kept, total = [], 0
    for document in documents:
        if total >= limit:
            break
        kept.append(document[: limit - total])
        total += len(kept[-1])
    return kept


def _prose() -> list[str]:
    topics: dict[str, str] = importlib.import_module("pydoc_data.topics").topics
    return [topics[name] for name in sorted(topics)]


def _code() -> list[str]:
    library = Path(sysconfig.get_path("stdlib"))
    paths = [library / f"{name}.py" for name in _CODE_MODULES]
    return [p.read_text(encoding="utf-8") for p in paths if p.is_file()]
