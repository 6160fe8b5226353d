"""What may be written down: no secrets, told by the name of their variable or flag, and by their shape.

The one place that masks. Everything that a run stores goes through `masked_json` or `masked`, before it is written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

MASK = "***"
_SECRET = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|API_?KEY|ACCESS_?KEY|PRIVATE|AUTH", re.IGNORECASE)
# Names with such a word that hold no secret: counts of tokens, which model tokenises.
_NO_SECRET = re.compile(
    r"TOKENS\b|_TOKENS|TOKENI[SZ]|AUTHOR|(NUM|DRAFT|MAX)_TOKEN|_TOKEN_(IDS?|LIMIT|BUDGET)", re.IGNORECASE
)
_SHORTEST = 4  # characters: what is shorter is a switch, no secret
_IN_URL = re.compile(r"(?<=://)[^/@\s\"']+(?=@)")
_SHAPES = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{20,}"  # Hugging Face
    r"|sk-[A-Za-z0-9_-]{20,}"  # OpenAI and others
    r"|gh[opsru]_[A-Za-z0-9]{30,}|github_pat_[A-Za-z0-9_]{30,}|glpat-[A-Za-z0-9_-]{20,}"
    r"|AKIA[0-9A-Z]{16}|ASIA[0-9A-Z]{16}"  # AWS
    r"|xox[abprs]-[A-Za-z0-9-]{10,}|AIza[A-Za-z0-9_-]{35}"  # Slack, Google
    r"|nvapi-[A-Za-z0-9_-]{20,}"
    r"|eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,})"  # JSON web tokens
    r"|(?<=[Bb]earer )[A-Za-z0-9._~+/=-]{8,}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)"
)


def secret_name(name: str) -> bool:
    """Does a variable of this name hold a secret?"""
    return bool(_SECRET.search(name)) and not _NO_SECRET.search(name)


def masked(text: str) -> str:
    """Text in which whatever has the shape of a secret is `***`."""
    return _SHAPES.sub(MASK, _IN_URL.sub(MASK, text))


def harmless(environment: Mapping[str, str]) -> dict[str, str]:
    """The part of an environment that may be written down: no secrets, no credentials in URLs."""
    return {key: masked(value) for key, value in sorted(environment.items()) if not _SECRET.search(key)}


def masked_env(environment: Mapping[str, Any]) -> dict[str, Any]:
    """An environment that may be written down with every name in it: secrets are masked, not left out."""
    return {
        key: MASK if secret_name(key) and isinstance(value, str) and len(value) >= _SHORTEST else masked_json(value)
        for key, value in environment.items()
    }


def masked_json(value: Any) -> Any:
    """A JSON value in which secrets are masked: by shape anywhere, by name below a key `env` or `environment`."""
    if isinstance(value, str):
        return masked(value)
    if isinstance(value, Mapping):
        return {
            key: masked_env(inner) if key in ("env", "environment") and _texts(inner) else masked_json(inner)
            for key, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return [masked_json(inner) for inner in value]
    return value


def _texts(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(inner, str) for inner in value.values())


def secrets_in(environment: Mapping[str, str]) -> list[str]:
    """Names of the variables whose value would be masked."""
    return [name for name, value in environment.items() if masked_env({name: value})[name] != value]


def masked_text(text: str, environment: Mapping[str, str]) -> str:
    """A scenario file as it may be kept: the values of its secret variables, and secrets by shape, are masked."""
    for name in secrets_in(environment):
        if secret_name(name) and len(environment[name]) >= _SHORTEST:
            text = text.replace(environment[name], MASK)
    return masked(text)


def harmless_command(argv: tuple[str, ...]) -> tuple[str, ...]:
    """A command line with the values of secret flags and variables masked."""
    out, hide = [], False
    for word in argv:
        if hide:
            out.append(MASK)
            hide = False
            continue
        name, equals, _ = word.partition("=")
        variable = re.match(r"--env=([^=]+)=", word)
        if word.startswith("--") and re.search(r"key|secret|password|hf-token", name, re.IGNORECASE):
            out.append(f"{name}={MASK}" if equals else word)
            hide = not equals
        elif variable and _SECRET.search(variable[1]):
            out.append(f"--env={variable[1]}={MASK}")
        else:
            out.append(masked(word))
    return tuple(out)
