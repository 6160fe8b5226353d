"""SGLang's sources, cut down to what a test says."""

from __future__ import annotations

from harness.upstream.reader import Tree


class Sources(Tree):
    """A version held in memory."""

    def __init__(self, version: str, files: dict[str, str]) -> None:
        super().__init__(version, "memory", list(files))
        self.files = files

    def text(self, path: str) -> str:
        return self.files[path]
