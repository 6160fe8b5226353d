"""`mtpbench environment`: what machine this is."""

from __future__ import annotations

import json
import sys

from harness.cli.group import verbs_of_a_file
from harness.machine.fingerprint import fingerprint
from harness.machine.telemetry import open_source

verbs = verbs_of_a_file()


@verbs.command()
def environment() -> None:
    """Print this machine's fingerprint, as each run records it."""
    sys.stdout.write(json.dumps(fingerprint(open_source()), indent=1) + "\n")
