"""Building blocks of scenario files, shared by scenarios and engines. Only pydantic is imported here."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, WithJsonSchema

from harness.units import DURATION_PATTERN, RATE_PATTERN, parse_duration, parse_rate

# Validation context of a file that a person wrote: there, a number needs its unit. Stored runs hold seconds.
FROM_FILE = {"units": "required"}


def _unitless(value: object, info: ValidationInfo) -> bool:
    return isinstance(value, float) and info.context != FROM_FILE


def _duration(value: object, info: ValidationInfo) -> object:
    return value if _unitless(value, info) else parse_duration(value)


def _rate(value: object, info: ValidationInfo) -> object:
    return value if _unitless(value, info) else parse_rate(value)


Duration = Annotated[
    float,
    BeforeValidator(_duration),
    WithJsonSchema({"type": "string", "pattern": DURATION_PATTERN, "examples": ["12ms", "90s", "20min"]}),
]


def _above_zero(value: float) -> float:
    if value <= 0:
        raise ValueError("must be above zero")
    return value


Timeout = Annotated[Duration, AfterValidator(_above_zero)]
Rate = Annotated[
    float,
    BeforeValidator(_rate),
    WithJsonSchema({"type": "string", "pattern": RATE_PATTERN, "examples": ["0.5/s", "30/min"]}),
]
NAME_PATTERN = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
Name = Annotated[str, Field(pattern=NAME_PATTERN.pattern)]
Count = Annotated[int, Field(ge=1, strict=True)]


class Strict(BaseModel):
    """Frozen, and unknown keys are errors."""

    # strict: `seed: "1"`, `chat: 1` and `temperature: true` are mistakes, not other ways to write a value.
    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, strict=True, allow_inf_nan=False
    )


class ServerSettings(Strict):
    """What every engine's `server:` section has."""

    env: dict[str, str] = {}
    """Environment variables of the server. Quote numbers: SGLANG_USE_AITER: "1"."""

    ready_timeout: Timeout = 600.0
    """How long the server may take to become ready."""

    stall_timeout: Timeout = 8.0
    """How long all streams together may be silent, once one of them decodes, before the server is called
    wedged. Raise it where a single prefill step takes longer than this."""

    silence_timeout: Timeout = 180.0
    """How long nothing at all may arrive while requests wait, whatever the server says of its health. Raise it where a
    prefill takes longer than this."""

    request_timeout: Timeout = 600.0
    """How long one request may take from its start to its last token."""


class Container(Strict):
    """Runs the server in a container instead of on this host."""

    image: Annotated[str, Field(min_length=1)]
    """Image reference; pin it by digest where results are to be compared."""

    runtime: Literal["docker", "podman"] = "docker"
    """Which command runs it."""

    shm_size: str = "32g"
    """Size of /dev/shm, which NCCL and RCCL need."""

    mounts: list[str] = []
    """`host:container[:ro]`, such as a model cache."""

    pass_env: list[str] = []
    """Names of variables handed through from this process without being recorded, such as HF_TOKEN."""

    extra_args: list[str] = []
    """Further arguments of `docker run`."""


def no_truth_value(value: object) -> object:
    """For literals of numbers: Python calls true equal to 1."""
    if isinstance(value, bool):
        raise ValueError(f"a number is needed, not {str(value).lower()}")
    return value


def is_file(path: Path) -> bool:
    """Is it a file? A name that no file can have is none."""
    try:
        return path.is_file()
    except (OSError, ValueError):  # a name of thousands of characters; a zero byte
        return False


def merge(base: Any, override: Any) -> Any:
    """`override` laid over `base`: mappings are merged key by key, anything else replaces."""
    if isinstance(base, dict) and isinstance(override, dict):
        return base | {key: merge(base.get(key), value) for key, value in override.items()}
    return override
