"""`mtpbench version`."""

from __future__ import annotations

import sys

from harness import __version__
from harness.cli.group import verbs_of_a_file

verbs = verbs_of_a_file()


@verbs.command()
def version() -> None:
    """Print the version."""
    sys.stdout.write(__version__ + "\n")
