"""Puts a verify kernel into SGLang servers.

SGLang finds :func:`register` through its entry-point group ``sglang.srt.plugins`` and calls it in
the launcher and in every scheduler process.  The environment variable ``MTPBENCH_VERIFY`` picks
who serves target-verify:

=========  ==================================  ====================================
arm        aiter backend (AMD)                 Triton backend (NVIDIA)
=========  ==================================  ====================================
generic    AITER's unified attention, KV head  the generic arm of this package
           as it lies in the pool
in-tree    this package's verify kernel        this package's verify kernel
upstream   what SGLang does by itself          what SGLang does by itself
=========  ==================================  ====================================

Draft-extend has the same shape, a few query tokens a sequence on a long KV cache, and the arms
``generic`` and ``in-tree`` serve it too, as SGLang's own MTP kernel does on AMD from 0.5.19 on:
under the Triton backend it took more of a step than target-verify.  ``MTPBENCH_DRAFT_EXTEND=0``
leaves it alone, to tell the two effects apart.  ``MTPBENCH_DECODE=1`` has them serve plain decode and
the steps of the draft model, too, one query token a sequence, where the aiter backend calls a function
for it (from 0.5.20 on SGLang's assembly does; earlier AITER's kernel with queries in bf16).

Unset, nothing is hooked.  What the gate rejects keeps the path it had and is counted by reason;
:mod:`kernel.evidence` writes the counts down.  SGLang logs a plug-in's exceptions and serves on,
which would measure the baseline in the arm's name, so every failure here ends the process.

Written against SGLang 0.5.16 and 0.5.23.  What is hooked lies in :mod:`kernel.sglang_aiter` and
:mod:`kernel.sglang_triton`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from kernel import sglang_aiter, sglang_triton
from kernel.evidence import ARM_VARIABLE, FOLDER_VARIABLE, Evidence
from kernel.sglang_common import DECODE, DRAFT_EXTEND, UPSTREAM, PluginError, exists, resolve, served_modes, version

ARMS = ("generic", "in-tree", UPSTREAM)

_engaged = False  # an installed mtpbench and the harness's folder may both name this entry point


def register() -> None:
    """The entry point.  Ends the process if an arm is asked for and can't be engaged."""
    global _engaged
    arm = os.environ.get(ARM_VARIABLE, "")
    if not arm or _engaged:
        return
    try:
        engage(arm)
        _engaged = True
    except Exception as error:
        # Not an Exception: SGLang would log it and serve without the arm.
        raise SystemExit(f"mtpbench: {ARM_VARIABLE}={arm} can't be engaged: {error}") from error


def engage(arm: str) -> Evidence:
    """Place the hooks of ``arm`` in this process.

    Raises:
        PluginError: unknown arm, or a hook that could not be placed.
    """
    if arm not in ARMS:
        raise PluginError(f"unknown arm; known: {', '.join(ARMS)}")
    import torch
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    folder = os.environ.get(FOLDER_VARIABLE)
    evidence = Evidence(arm, {"sglang": version("sglang")}, Path(folder) if folder else None)
    # On AMD a server may be started with either backend.
    hooks = sglang_aiter.hooks(arm, evidence) if torch.version.hip is not None else []
    if torch.version.hip is None or exists(sglang_triton.TARGET.rpartition(".")[0].rpartition(".")[0]):
        hooks += sglang_triton.hooks(arm, evidence)
    evidence.facts["hooks"] = [hook.target for hook in hooks]
    evidence.facts["serves_draft_extend"] = DRAFT_EXTEND in served_modes(arm)
    evidence.facts["serves_decode"] = DECODE in served_modes(arm)
    for hook in hooks:
        before = resolve(hook)
        HookRegistry.register(hook.target, hook.around, HookType.AROUND)
        HookRegistry.apply_hooks()  # only logs what it can't place
        if resolve(hook) is before:
            raise PluginError(f"SGLang did not place the hook on {hook.target}: its log says why")
    evidence.start()
    print(f"mtpbench: verify arm {arm}, hooks on {', '.join(evidence.facts['hooks'])}", file=sys.stderr)
    return evidence
