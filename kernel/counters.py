"""Counters that programs of one launch wait by."""

from __future__ import annotations

import torch

from kernel.gate import MAX_BATCH

COUNTER_ROWS = 256
_rows: dict[torch.device, torch.Tensor] = {}
_row_of: dict[tuple[torch.device, int], int] = {}


def counters(device: torch.device) -> torch.Tensor:
    """Zeros that every launch leaves as zeros: programs of an item that are done.

    A stream has a row of its own, as launches of different streams may run at the same time.  Graphs
    captured on one stream share its row, so they must not be replayed at the same time.
    """
    if device not in _rows:
        rows = torch.zeros((COUNTER_ROWS, MAX_BATCH), dtype=torch.int32, device=device)
        if torch.cuda.is_current_stream_capturing():
            return rows[0]  # the graph itself makes them zeros, and other graphs must not rely on it
        torch.cuda.synchronize(device)  # once: other streams may use their rows next
        _rows[device] = rows
    key = (device, torch.cuda.current_stream(device).cuda_stream)
    row = _row_of.setdefault(key, len(_row_of))
    if row >= COUNTER_ROWS:
        return torch.zeros(MAX_BATCH, dtype=torch.int32, device=device)
    return _rows[device][row]
