"""How many files a process may open: a stream is one, and running out of them looks like a server that refuses."""

from __future__ import annotations

from harness.errors import MtpbenchError

_OTHERS = 64  # what a process holds besides its streams


def allow_files(streams: int) -> None:
    """Raises the soft limit where the hard one allows it. Raises MtpbenchError where it does not."""
    try:
        import resource
    except ImportError:  # not on this system, which then has other limits
        return
    needed = streams + _OTHERS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise MtpbenchError(
            f"{streams} streams need {needed} open files, and this process may have {hard}",
            f"ulimit -n {needed}, or a lower concurrency (in an open loop: max_in_flight).",
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
