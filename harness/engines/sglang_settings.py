"""SGLang's settings in a scenario, and what can be wrong with them.

Flags as in SGLang 0.5.16 and 0.5.23.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field

from harness.engines import tiny_qwen35
from harness.engines.sglang_versions import version_of_image, versions
from harness.fields import Container, Count, ServerSettings, Strict

SIMULATE = "SGLANG_SIMULATE_ACC_LEN"
ARM_VARIABLE, EVIDENCE_VARIABLE = "MTPBENCH_VERIFY", "MTPBENCH_EVIDENCE"  # of kernel/sglang_plugin.py
# The backend whose target-verify the plug-in takes over.
_HOOKED_BACKEND = {"amd": "aiter", "nvidia": "triton"}
_VERIFIABLE_DRAFTS = 4
# Flags that a typed key or the harness itself sets; value: what to write instead.
_RESERVED = {
    "model": "`model`",
    "model-path": "`model`",
    "host": "nothing: servers listen on 127.0.0.1 only",
    "port": "nothing: a free port is chosen",
    "served-model-name": "nothing: it identifies our own process",
    "tp": "`tp` of the scenario",
    "tp-size": "`tp` of the scenario",
    "tensor-parallel-size": "`tp` of the scenario",
    "load-format": "`load_format`",
    "enable-metrics": "nothing: metrics are always on",
    "incremental-streaming-output": "nothing: streams are always incremental",
    "speculative-algorithm": "`speculation`",
    "speculative-algo": "`speculation`",
    "speculative-num-steps": "`speculation.steps`",
    "speculative-eagle-topk": "`speculation.topk`",
    "speculative-num-draft-tokens": "`speculation.draft_tokens`",
}
_PLACEHOLDER = re.compile(r"\$(\w+)")


class SglangSpeculation(Strict):
    """MTP through SGLang's EAGLE worker (`NEXTN` is its alias)."""

    algorithm: Literal["EAGLE", "NEXTN"] = "EAGLE"
    """--speculative-algorithm"""

    steps: Count = 3
    """--speculative-num-steps: drafting passes of the MTP head a step."""

    topk: Count = 1
    """--speculative-eagle-topk: 1 drafts a chain."""

    draft_tokens: Count = 4
    """Tokens verified a step, the bonus token's position included: steps + 1 for a chain (topk 1)."""

    simulate_accept_length: Annotated[float, Field(ge=1)] | None = None
    """Sets SGLANG_SIMULATE_ACC_LEN: this mean accept length, bonus token included, whatever the model says.
    The text is then meaningless."""


class SglangSettings(ServerSettings):
    """`server:` of SGLang."""

    engine: Literal["sglang"]
    """SGLang."""

    model: Annotated[str, Field(min_length=1)]
    """A folder, a hub name, or a model made on first use: `tiny-qwen3.5-KIND` with a kind of
    harness/engines/tiny_qwen35.py, such as dense-16-1, moe-32-2 and wide-122b."""

    version: Annotated[str, Field(pattern=r"^[0-9]+\.[0-9]+\.[0-9]+[A-Za-z0-9.]*$")] | None = None
    """SGLang's version, such as "0.5.23", whose flags and variables `validate` knows. Default: what the tag of the
    container's image says, else nothing is checked."""

    gpu_vendor: Literal["amd", "nvidia"]
    """Decides between HIP_VISIBLE_DEVICES and CUDA_VISIBLE_DEVICES, and how a container gets its devices."""

    gpus: list[Annotated[int, Field(ge=0)]] | None = None
    """Ids of the GPUs that may be used; the first `tp` of them are. Default: 0, 1, … (see --gpus)."""

    python: str | None = None
    """Interpreter in which SGLang is installed. Default: the one that runs mtpbench; python3 in a container."""

    load_format: Literal["auto", "dummy"] = "auto"
    """`dummy`: random weights, for timing without the checkpoint. The text is then meaningless."""

    speculation: SglangSpeculation | None = None
    """Absent or null: one token a step."""

    verify: Literal["generic", "in-tree", "upstream"] | None = None
    """Who serves target-verify, through the plug-in kernel/sglang_plugin.py, with evidence that it did. `generic`:
    AITER's unified attention (AMD) or this repository's generic kernel (NVIDIA). `in-tree`: this repository's
    verify kernel. `upstream`: whatever SGLang takes, counted. Absent: SGLang unhooked, without evidence."""

    flags: dict[str, str | int | float | bool | list[int | str] | None] = {}
    """Further flags without their dashes: `page-size: 16`, `trust-remote-code: true`. A list is several values of one
    flag. null or false removes one that the base sets. `$max_concurrency` is the largest concurrency, `$max_context`
    the longest request."""

    container: Container | None = None
    """Run it in a container: image, mounts. Absent: on this host."""


def problems(settings: SglangSettings) -> list[tuple[str, str]]:
    """Keys that can't be as they are, each with what to do about it."""
    found = [
        (f"flags.{flag}", f"--{flag} can't be set here; use {instead}")
        for flag, instead in _RESERVED.items()
        if flag in settings.flags
    ]
    for flag, value in settings.flags.items():
        if flag.startswith("-"):
            found.append((f"flags.{flag}", "write flags without their dashes"))
        for name in _PLACEHOLDER.findall(str(value)):
            if name not in ("max_concurrency", "max_context"):
                found.append((f"flags.{flag}", f"${name} is unknown: $max_concurrency, $max_context"))
    if settings.speculation and settings.flags.get("stream-interval", 1) != 1:
        found.append(
            (
                "flags.stream-interval",
                "must be 1: MTP steps jump over larger intervals and distort TTFT and ITL",
            )
        )
    if SIMULATE in settings.env:
        found.append((f"env.{SIMULATE}", "use `speculation.simulate_accept_length`"))
    kind = tiny_kind(settings)
    if kind is None and settings.model.startswith(_TINY):
        known = ", ".join(_TINY + name for name in tiny_qwen35.KINDS)
        found.append(("model", f"unknown tiny model; known: {known}"))
    if kind and settings.container:
        found.append(("model", "a tiny model is made on this host: mount one and give its path instead"))
    if kind and not tiny_qwen35.KINDS[kind]["weights"] and settings.load_format != "dummy":
        found.append(("load_format", f"{settings.model} has no weights: use dummy"))
    found += _version_problems(settings)
    found += _verify_problems(settings)
    spec = settings.speculation
    if spec and spec.topk == 1 and spec.draft_tokens != spec.steps + 1:
        found.append(("speculation.draft_tokens", f"must be steps + 1 = {spec.steps + 1} when topk is 1"))
    if spec and (spec.simulate_accept_length or 0) > spec.draft_tokens:
        found.append(
            (
                "speculation.simulate_accept_length",
                f"can't exceed draft_tokens = {spec.draft_tokens}",
            )
        )
    if settings.flags.get("enable-deterministic-inference") and (settings.flags.get("attention-backend") == "aiter"):
        found.append(
            (
                "flags.enable-deterministic-inference",
                "SGLang does not allow it with the aiter backend",
            )
        )
    return found


def version_of(settings: SglangSettings) -> str:
    """The version that a server is meant to have; empty where nothing says it."""
    if settings.version:
        return settings.version
    return version_of_image(settings.container.image) if settings.container else ""


def _version_problems(settings: SglangSettings) -> list[tuple[str, str]]:
    """Flags that the server's version does not know. Of a version that is not in the table, nothing is said unless the
    scenario names it."""
    known, name = versions(), version_of(settings)
    if name in known:
        set_flags = [flag for flag, value in settings.flags.items() if value is not None and value is not False]
        return known[name].problems(set_flags)
    if settings.version:
        return [("version", f"the flags of {name} are not known here: mtpbench doctor --upstream {name} --flags FILE; "
                            f"known: {', '.join(known)}")]  # fmt: skip
    return []


def unread_variables(settings: SglangSettings) -> tuple[str, list[str]]:
    """The server's version and the variables that nothing in it reads; none where the version is not known."""
    name = version_of(settings)
    known = versions().get(name)
    return name, known.unread(settings.env) if known else []


def _verify_problems(settings: SglangSettings) -> list[tuple[str, str]]:
    """What would make the verify kernel's gate reject every call, or the plug-in wait for calls in vain."""
    if settings.verify is None:
        return []
    found, flags, spec = [], settings.flags, settings.speculation
    if ARM_VARIABLE in settings.env:
        found.append((f"env.{ARM_VARIABLE}", "use `verify`"))
    if spec is None:
        found.append(("verify", "needs `speculation`: without drafts nothing is verified"))
    backend = _HOOKED_BACKEND[settings.gpu_vendor]
    of_decode, of_prefill = (
        flag if flags.get(flag) is not None else "attention-backend"
        for flag in ("decode-attention-backend", "prefill-attention-backend")
    )
    if flags.get(of_decode) != backend:
        found.append((f"flags.{of_decode}", f"must be {backend}: the plug-in hooks that backend's target-verify"))
    if flags.get(of_prefill) != flags.get(of_decode) and flags.get("speculative-attention-mode") != "decode":
        found.append(
            (
                "flags.speculative-attention-mode",
                f"must be decode: SGLang's default sends target-verify to {flags.get(of_prefill)}, the backend of "
                "prefill, and the plug-in would wait for it in vain",
            )
        )
    if settings.verify == "upstream":
        return found
    if flags.get("kv-cache-dtype") != "fp8_e4m3":
        found.append(("flags.kv-cache-dtype", "must be fp8_e4m3: `auto` is bf16, and the gate would reject each call"))
    if settings.gpu_vendor == "amd" and flags.get("page-size") != 16:
        found.append(("flags.page-size", "must be 16: the gate would reject each call"))
    if spec and spec.topk != 1:
        found.append(("speculation.topk", "must be 1: the kernel verifies chains"))
    if spec and spec.draft_tokens > _VERIFIABLE_DRAFTS:
        found.append(("speculation.draft_tokens", f"must be at most {_VERIFIABLE_DRAFTS}: the kernel verifies no more"))
    return found


_TINY = "tiny-qwen3.5-"


def tiny_kind(settings: SglangSettings) -> str | None:
    """The kind of tiny model that is made on first use; None for any other model."""
    kind = settings.model.removeprefix(_TINY)
    return kind if settings.model.startswith(_TINY) and kind in tiny_qwen35.KINDS else None
