"""Verify attention for speculative decoding: a Triton kernel that reads each KV byte once.

Importing this package, :mod:`kernel.gate` or :mod:`kernel.config` pulls in neither torch nor
Triton, so a launcher can ask "would the kernel run?" on a machine without either.
The public call is :func:`kernel.ops.mtp_verify_attention`.
"""

from __future__ import annotations

from kernel.config import Arch, GenericConfig, LaunchConfig, select, select_generic
from kernel.gate import AttentionCase, reject_reason

__all__ = [
    "Arch",
    "AttentionCase",
    "GenericConfig",
    "LaunchConfig",
    "reject_reason",
    "select",
    "select_generic",
]
