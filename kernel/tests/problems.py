"""Attention problems for the tests: seeded inputs in any page order, padding full of NaN."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from kernel.call import Pages, TokenSlots
from kernel.config import Arch
from kernel.gate import AttentionCase
from kernel.reference import reference_attention, relative_error

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
# Few programs keep the interpreter quick and still cut every item; an odd number cuts unevenly.
SMALL_HOPPER = Arch("sm_90", 5)
SMALL_CDNA = Arch("gfx950", 5)
PAGE = 16
HEAD = 256
# One tolerance for the whole package: relative error against fp32, and against the generic arm.
MAX_ERROR = 3e-3
MAX_ERROR_OVER_GENERIC = 1.2


@dataclass(frozen=True)
class Problem:
    """Inputs of one call, in both layouts."""

    q: torch.Tensor
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    cu_seqlens_q: torch.Tensor
    seqused_k: torch.Tensor
    block_table: torch.Tensor
    softmax_scale: float = HEAD**-0.5
    k_descale: torch.Tensor | float | None = 1.0
    v_descale: torch.Tensor | float | None = 1.0

    @property
    def max_seqlen_q(self) -> int:
        return int(self.cu_seqlens_q.diff().max())

    @property
    def max_seqlen_k(self) -> int:
        return max(1, int(self.block_table.shape[1]) * PAGE)

    def case(self, arch: Arch) -> AttentionCase:
        """What the gate sees of this problem."""
        return AttentionCase(
            arch=arch.name,
            query_heads=self.q.shape[1],
            kv_heads=self.k_cache.shape[2],
            head_size=HEAD,
            page_size=PAGE,
            q_dtype="bfloat16",
            kv_dtype="float8_e4m3fn",
            batch=self.seqused_k.shape[0],
            max_seqlen_q=self.max_seqlen_q,
            max_seqlen_k=self.max_seqlen_k,
        )


def make_problem(
    kv_lengths: Sequence[int],
    query_lengths: Sequence[int],
    *,
    kv_heads: int = 1,
    group: int = 16,
    seed: int = 0,
    spare_pages: int = 3,
    length_dtype: torch.dtype = torch.int32,
) -> Problem:
    """Random q and KV; every slot that no sequence owns holds NaN, and pages come shuffled.

    Args:
        kv_lengths: KV tokens of each sequence, its query tokens included.
        query_lengths: 1-4 for each sequence.
        group: query heads a KV head.
    """
    generator = torch.Generator().manual_seed(seed)
    width = max(1, max(math.ceil(n / PAGE) for n in kv_lengths)) + 2
    needed = sum(math.ceil(n / PAGE) for n in kv_lengths)
    order = torch.randperm(needed + spare_pages, generator=generator)
    # Unused entries are out of range: reading one would fault or give NaN.
    table = torch.full((len(kv_lengths), width), 2**30)
    cache = torch.full((2, needed + spare_pages, PAGE, kv_heads, HEAD), math.nan)
    taken = 0
    for seq, length in enumerate(kv_lengths):
        pages = order[taken : taken + math.ceil(length / PAGE)]
        taken += len(pages)
        table[seq, : len(pages)] = pages
        values = torch.randn(2, length, kv_heads, HEAD, generator=generator)
        for side in range(2):
            for number, page in enumerate(pages.tolist()):
                rows = values[side, number * PAGE : (number + 1) * PAGE]
                cache[side, page, : len(rows)] = rows
    fp8 = cache.to(torch.float8_e4m3fn).to(DEVICE)
    q = torch.randn(sum(query_lengths), group * kv_heads, HEAD, generator=generator)
    offsets = torch.tensor([0, *query_lengths]).cumsum(0)
    return Problem(
        q=q.to(torch.bfloat16).to(DEVICE),
        k_cache=fp8[0],
        v_cache=fp8[1],
        cu_seqlens_q=offsets.to(length_dtype).to(DEVICE),
        seqused_k=torch.tensor(list(kv_lengths), dtype=length_dtype, device=DEVICE),
        block_table=table.to(length_dtype).to(DEVICE),
    )


Operation = Callable[..., torch.Tensor]


def run(operation: Operation, problem: Problem, arch: Arch | None) -> torch.Tensor:
    """Call a paged operation on ``problem`` with an output poisoned with NaN."""
    out = torch.full_like(problem.q, math.nan)
    operation(
        problem.q,
        problem.k_cache,
        problem.v_cache,
        out,
        Pages(problem.seqused_k, problem.block_table),
        cu_seqlens_q=problem.cu_seqlens_q,
        max_seqlen_q=problem.max_seqlen_q,
        max_seqlen_k=problem.max_seqlen_k,
        softmax_scale=problem.softmax_scale,
        k_descale=problem.k_descale,
        v_descale=problem.v_descale,
        arch=arch,
    )
    return out


def expected(problem: Problem) -> torch.Tensor:
    """The fp32 answer."""
    return reference_attention(
        problem.q,
        problem.k_cache,
        problem.v_cache,
        cu_seqlens_q=problem.cu_seqlens_q,
        seqused_k=problem.seqused_k,
        block_table=problem.block_table,
        softmax_scale=problem.softmax_scale,
        k_descale=problem.k_descale,
        v_descale=problem.v_descale,
    )


def token_layout(problem: Problem) -> TokenSlots:
    """The same problem as pool slots."""
    indices, drafts, indptr = [], [], [0]
    queries = problem.cu_seqlens_q.diff().tolist()
    for seq, (length, query) in enumerate(zip(problem.seqused_k.tolist(), queries, strict=True)):
        pos = torch.arange(length, device=DEVICE)
        slots = problem.block_table[seq].long()[pos // PAGE] * PAGE + pos % PAGE
        indices.append(slots[: length - query])
        drafts.append(slots[length - query :])
        indptr.append(indptr[-1] + length - query)
    return TokenSlots(
        kv_indptr=torch.tensor(indptr, dtype=torch.int32, device=DEVICE),
        kv_indices=torch.cat(indices),
        draft_slots=torch.cat(drafts),
    )


def assert_accurate(actual: torch.Tensor, generic: torch.Tensor, reference: torch.Tensor) -> None:
    """The tolerance table: absolute ceiling, and no worse than the generic arm by a fifth."""
    error = relative_error(actual, reference)
    baseline = relative_error(generic, reference)
    assert error <= MAX_ERROR, f"relative error {error:.2e} exceeds {MAX_ERROR}"
    limit = MAX_ERROR_OVER_GENERIC * baseline
    assert error <= limit, f"relative error {error:.2e}, generic arm {baseline:.2e}"


def with_descales(problem: Problem, k: float, v: float) -> Problem:
    """``problem`` with other descales."""
    return replace(problem, k_descale=k, v_descale=v)
