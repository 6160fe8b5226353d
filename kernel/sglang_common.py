"""What the plug-in's two backends share: which batches an arm serves, and what is counted."""

from __future__ import annotations

import inspect
import os
import pkgutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from typing import Any

from kernel.evidence import Evidence

# Our own reasons, beside the gate's: what only the engine's call shows.
OTHER_PATH = "other_path"  # the backend never came to the call that we replace
UPSTREAM = "upstream"

TARGET_VERIFY = "target_verify"
DRAFT_EXTEND = "draft_extend"
DECODE = "decode"
# Each mode's switch: 1 has the arm serve it, 0 leaves it alone; and what holds where it is not set.
SWITCHES = {
    DRAFT_EXTEND: ("MTPBENCH_DRAFT_EXTEND", "1"),
    DECODE: ("MTPBENCH_DECODE", "0"),
}

Call = Callable[..., Any]


class PluginError(Exception):
    """The arm can't be engaged; the message says why and what to do."""


@dataclass(frozen=True)
class Hook:
    """A function of SGLang to wrap, with the parameters that the wrapper relies on."""

    target: str
    parameters: tuple[str, ...]
    around: Call


def served_modes(arm: str) -> tuple[str, ...]:
    """The modes of a batch that an arm serves: target-verify, and those whose switch is on.

    Raises:
        PluginError: a switch is neither 0 nor 1.
    """
    if arm == UPSTREAM:
        return (TARGET_VERIFY,)
    modes = [TARGET_VERIFY]
    for mode, (variable, default) in SWITCHES.items():
        value = os.environ.get(variable, default)
        if value not in ("0", "1"):
            raise PluginError(f"{variable} must be 0 or 1, not {value!r}")
        if value == "1":
            modes.append(mode)
    return tuple(modes)


@dataclass
class Served:
    """A batch of few query tokens a sequence while the backend works on it; ``calls`` of attention seen so far."""

    evidence: Evidence
    mode: str
    sequences: int
    calls: int = 0

    def count_served(self, query_length: int, captured: bool, body: str) -> None:
        """One call that the arm's kernel took."""
        if self.mode == TARGET_VERIFY:
            self.evidence.count_served(self.sequences, query_length, captured, body)
        else:
            self.evidence.count_other(self.mode, "served")

    def count_passed(self, reason: str, captured: bool) -> None:
        """One call handed on to the engine's own path."""
        if self.mode == TARGET_VERIFY:
            self.evidence.count_passed(reason, self.sequences, captured)
        else:
            self.evidence.count_other(self.mode, reason)


def served_batch(evidence: Evidence, batch: Any, modes: Iterable[str]) -> Served | None:
    """Is this batch one that the arm serves?"""
    mode = batch.forward_mode
    if mode.is_target_verify():
        return Served(evidence, TARGET_VERIFY, len(batch.seq_lens))
    if DRAFT_EXTEND in modes and mode.is_draft_extend_v2():
        return Served(evidence, DRAFT_EXTEND, len(batch.seq_lens))
    if DECODE in modes and mode.is_decode():
        return Served(evidence, DECODE, len(batch.seq_lens))
    return None


def resolve(hook: Hook) -> Any:
    """The function that a hook wraps.

    Raises:
        PluginError: it is not there, or lacks a parameter that the wrapper relies on.
    """
    try:
        found = pkgutil.resolve_name(hook.target)
    except (ImportError, AttributeError) as error:
        raise PluginError(f"{hook.target} is not there ({error}): this SGLang is not one that we know") from error
    known = inspect.signature(found, follow_wrapped=True).parameters
    missing = [name for name in hook.parameters if name not in known]
    if missing and not any(p.kind is p.VAR_KEYWORD for p in known.values()):
        raise PluginError(f"{hook.target} no longer has {', '.join(missing)}: this SGLang is not one that we know")
    return found


def version(package: str) -> str:
    """An installed package's version."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "unknown"


def exists(module: str) -> bool:
    """Whether a module can be imported."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # not even its package
        return False


def seen(evidence: Evidence, device: Any) -> bool:
    """Note rank and device once; is a graph being captured?"""
    import torch

    if evidence.rank is None:
        ready = torch.distributed.is_available() and torch.distributed.is_initialized()
        evidence.world_size = torch.distributed.get_world_size() if ready else 1
        if device.type == "cuda":
            evidence.facts["device"] = torch.cuda.get_device_name(device)
        evidence.rank = torch.distributed.get_rank() if ready else 0
    return bool(device.type == "cuda" and torch.cuda.is_current_stream_capturing())


def device_name(device: Any) -> str:
    """ISA name of a GPU, or the device's type."""
    from kernel import checks

    try:
        return checks.device_arch(device).name
    except ValueError:  # no GPU
        return str(device.type)


def gate_case(q: Any, k: Any, *, layout: str, window: int, softcap: Any, sinks: Any, **rest: Any) -> Any:
    """What the gate sees of a call: the same from either backend.

    Args:
        q: queries.
        k: the cache of K.
        layout: ``paged`` or ``tokens``.
        window: tokens of a sliding window, this one included; 0 or less for none.
        softcap: of the logits; anything false for none.
        sinks: attention sinks, or None.
        rest: counts: ``batch``, ``max_seqlen_q``, ``max_seqlen_k``, and ``tree_width`` if not 1.
    """
    from kernel.checks import attention_case

    return attention_case(
        device_name(q.device), q, k, layout=layout, sliding_window=max(window, 0), softcap=int(bool(softcap)),
        sinks=int(sinks is not None), **rest,
    )  # fmt: skip
