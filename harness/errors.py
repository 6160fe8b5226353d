"""Every error that the harness raises on purpose.

    MtpbenchError            one sentence for a person, and a hint that says what to do next
    ├── ScenarioError        a scenario file is wrong: a list of problems, each with file, line and key
    ├── ResultFileError      another tool's result file is wrong: a list of problems, each with file, line and key
    ├── WorkloadError        prompts can't be made as asked
    ├── MissingPackageError  an optional package is needed
    ├── StoreError           results can't be written or read
    │   └── ResumeError      an interrupted run can't be continued
    └── ServerError          carries the tail of the server's log
        ├── ServerStartError   never became ready, or is not the process that we started
        ├── ServerDiedError    its process ended
        ├── ServerWedgedError  its process lives but serves nothing
        └── InvalidLaunchError it serves something else than was asked for

The command line turns each into a message and exit code 2. Anything else is a bug: one sentence, exit code 70, and
the traceback in a file. `Interrupted` is Ctrl-C, and stands apart as KeyboardInterrupt does.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


class MtpbenchError(Exception):
    """Base of all expected errors; `hint` says what to do next."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class Interrupted(BaseException):
    """Ctrl-C or SIGTERM, wherever the program was."""


@dataclass(frozen=True)
class Problem:
    """One thing wrong in a scenario file. `line` counts from 1; 0 when no line can be named."""

    file: str
    line: int
    key: str
    message: str

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        return f"{place}: {self.key + ': ' if self.key else ''}{self.message}"


class ScenarioError(MtpbenchError):
    """A scenario file is wrong; `problems` lists everything found, not only the first."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = problems
        self.hint = "`mtpbench schema` prints every key with its type and meaning."


class ResultFileError(MtpbenchError):
    """Another tool's result file can't be imported; `problems` says where and why."""

    def __init__(self, problems: list[Problem], hint: str = "") -> None:
        super().__init__("\n".join(str(problem) for problem in problems), hint)
        self.problems = problems


class WorkloadError(MtpbenchError):
    """Prompts can't be made as the scenario asks."""


class MissingPackageError(MtpbenchError):
    """An optional package is needed for what was asked."""

    def __init__(self, package: str, purpose: str, extra: str) -> None:
        super().__init__(
            f"{purpose} needs the package {package}, which is not installed",
            f"pip install 'mtpbench[{extra}]' (or: pip install {package})",
        )


class StoreError(MtpbenchError):
    """Results can't be written or read."""


class ResumeError(StoreError):
    """An interrupted run can't be continued here."""


class ServerError(MtpbenchError):
    """Something is wrong with a server; `log_tail` holds its last lines, `log_path` the whole log."""

    def __init__(
        self,
        message: str,
        hint: str = "",
        *,
        log_path: Path | None = None,
        log_tail: tuple[str, ...] = (),
    ) -> None:
        super().__init__(message, hint)
        self.log_path = log_path
        self.log_tail = log_tail


class ServerStartError(ServerError):
    """The server never became ready, or another process answers in its place."""


class ServerDiedError(ServerError):
    """The server's process ended."""


class ServerWedgedError(ServerError):
    """The server's process lives, but nothing comes from it."""


class InvalidLaunchError(ServerError):
    """The server runs, and what it serves is not what was to be measured: nothing is measured on it."""
