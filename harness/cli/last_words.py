"""How a verb ends that does not end well: one sentence, what to do next, and an exit code that automation can trust."""

from __future__ import annotations

import contextlib
import errno
import sys
import tempfile
import traceback
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

from rich.text import Text

from harness import __version__
from harness.cli.common import (
    EXIT_INTERRUPTED,
    EXIT_INVALID,
    EXIT_UNFORESEEN,
    default_cache,
    err,
    interruptible,
    print_error,
)
from harness.errors import Interrupted, MtpbenchError, ServerError
from harness.redact import harmless_command, masked

# What the machine refuses, and what a person can do about it. Any other OSError is a bug of ours.
_REFUSED = {
    errno.ENOSPC: "Free some space, or some inodes (df -i); finished passes are saved, --resume goes on.",
    errno.EDQUOT: "Your quota is used up; finished passes are saved, --resume goes on.",
    errno.EROFS: "It is on a read-only file system: choose another place.",
    errno.EACCES: "Check its permissions, or choose another place.",
    errno.EPERM: "Check its permissions, or choose another place.",
    errno.EMFILE: "Raise the limit of open files (ulimit -n), or lower the concurrency.",
    errno.ENFILE: "The machine has no file descriptors left: end other programs.",
    errno.ENAMETOOLONG: "Choose a shorter name.",
    errno.ENOTDIR: "A part of its path is no folder.",
    errno.EISDIR: "It is a folder.",
    errno.EIO: "The disk or the network below it fails.",
    errno.ENOMEM: "The machine has no memory left.",
    errno.EAGAIN: "The machine allows no further process (ulimit -u).",
}


@contextlib.contextmanager
def last_words() -> Iterator[None]:
    """Exit code 2 for an expected error, 130 for Ctrl-C, 70 for anything unforeseen."""
    try:
        with interruptible():
            yield
    except MtpbenchError as error:
        log, tail = (error.log_path, error.log_tail) if isinstance(error, ServerError) else (None, ())
        print_error(err, error, error.hint, log, tail)
        sys.exit(EXIT_INVALID)
    except (Interrupted, KeyboardInterrupt):
        err.print(Text("interrupted", style="bold yellow"))
        sys.exit(EXIT_INTERRUPTED)
    except OSError as error:
        if error.errno not in _REFUSED:
            sys.exit(_unforeseen(error))
        what = f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror)
        print_error(err, MtpbenchError(what), _REFUSED[error.errno], None, ())
        sys.exit(EXIT_INVALID)
    except Exception as error:
        sys.exit(_unforeseen(error))


def _unforeseen(error: Exception) -> int:
    """Keeps the traceback in a file and says where."""
    stamp = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    command = " ".join(harmless_command(tuple(sys.argv)))
    text = f"mtpbench {__version__}\n{command}\n\n{''.join(traceback.format_exception(error))}"
    saved = _save(f"traceback-{stamp}.txt", masked(text))
    first = (str(error).splitlines() or [""])[0][:300]
    sentence = f"this is a bug of mtpbench, or something that it does not know: {type(error).__name__}: {first}"
    print_error(err, MtpbenchError(masked(sentence)), f"report it with {saved}. Finished passes are saved.", None, ())
    return EXIT_UNFORESEEN


def _save(name: str, text: str) -> str:
    for folder in (default_cache() / "tracebacks", Path(tempfile.gettempdir())):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8", errors="replace")
        except OSError:
            continue
        return str(folder / name)
    sys.stderr.write(text)
    return "the traceback above, which could not be saved anywhere"
