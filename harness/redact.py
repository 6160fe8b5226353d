"""What may be written down of an environment and of a command line: no secrets, no credentials in URLs."""

from __future__ import annotations

import re
from collections.abc import Mapping

_SECRET = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|API_?KEY|PRIVATE|AUTH", re.IGNORECASE)


def harmless(environment: Mapping[str, str]) -> dict[str, str]:
    """The part of an environment that may be written down: no secrets, no credentials in URLs."""
    return {
        key: re.sub(r"://[^/@\s]+@", "://***@", value)
        for key, value in sorted(environment.items())
        if not _SECRET.search(key)
    }


def harmless_command(argv: tuple[str, ...]) -> tuple[str, ...]:
    """A command line with the values of secret flags and variables masked."""
    out, hide = [], False
    for word in argv:
        if hide:
            out.append("***")
            hide = False
            continue
        name, equals, _ = word.partition("=")
        variable = re.match(r"--env=([^=]+)=", word)
        if word.startswith("--") and re.search(r"key|secret|password|hf-token", name, re.IGNORECASE):
            out.append(f"{name}=***" if equals else word)
            hide = not equals
        elif variable and _SECRET.search(variable[1]):
            out.append(f"--env={variable[1]}=***")
        else:
            out.append(re.sub(r"://[^/@\s]+@", "://***@", word))
    return tuple(out)
