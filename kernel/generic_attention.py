"""Triton bodies of the generic arm: the baseline where AITER is missing.

One query token a workgroup for 16 heads a KV head (two for 8), as AITER's unified attention packs it: each
KV byte is read once for every query token (or two).  KV is cut into a number of segments that the host picks
from the padded length; a reduction sums their fp32 partial results.
"""

# Triton parses these functions itself and forbids most annotations on their parameters.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

import triton
import triton.language as tl

from kernel.arithmetic import operand, output
from kernel.verify_attention import sequence_length

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit(do_not_specialize=["query_blocks", "segments", "index_stride"])
def generic_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    out_ptr,
    partial_ptr,  # fp32 (batch, query blocks, KV heads, segments, ROWS, HEAD)
    partial_max_ptr,  # fp32 (batch, query blocks, KV heads, segments, ROWS)
    partial_sum_ptr,
    cu_seqlens_q_ptr,
    lengths_ptr,  # paged: KV lengths; tokens: offsets into index_ptr
    index_ptr,  # paged: block table; tokens: slots of the prefixes
    draft_ptr,  # tokens: slots of the query tokens; paged: unused
    k_descale_ptr,
    v_descale_ptr,
    logit_scale,
    out_scale,
    query_blocks,  # of a sequence: max_seqlen_q / (ROWS / GROUP), rounded up
    segments,
    index_stride,
    q_stride_token,
    q_stride_head,
    k_stride_page,
    k_stride_slot,
    k_stride_head,
    v_stride_page,
    v_stride_slot,
    v_stride_head,
    out_stride_token,
    out_stride_head,
    GROUP: tl.constexpr,
    HEAD: tl.constexpr,
    ROWS: tl.constexpr,
    PAGE: tl.constexpr,
    TILE: tl.constexpr,
    DIRECT: tl.constexpr,  # one segment, written straight to the output
    TOKENS: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """One segment of the KV that a block of query tokens sees."""
    seq = tl.program_id(0) // query_blocks
    first_token = tl.program_id(0) % query_blocks * (ROWS // GROUP)
    head = tl.program_id(1)
    segment = tl.program_id(2)
    q_start = tl.load(cu_seqlens_q_ptr + seq).to(tl.int64)
    q_length = (tl.load(cu_seqlens_q_ptr + seq + 1) - q_start).to(tl.int32)
    if first_token >= q_length:
        return
    row = tl.arange(0, ROWS)  # [ROWS] query tokens x query heads of this KV head
    token = first_token + row // GROUP  # [ROWS]
    real_row = token < q_length
    token = tl.minimum(token, q_length - 1)
    length = sequence_length(cu_seqlens_q_ptr, lengths_ptr, seq, seq >= 0, TOKENS)
    visible = length - q_length + token + 1  # [ROWS] KV tokens a row sees
    seen = tl.maximum(tl.max(visible, 0), 0)  # by the last token
    per_segment = tl.cdiv(tl.cdiv(seen, TILE), segments)
    first = segment * per_segment
    last = tl.minimum(first + per_segment, tl.cdiv(seen, TILE))

    d = tl.arange(0, HEAD)  # [HEAD]
    t = tl.arange(0, TILE)  # [TILE]
    q_row = (q_start + token) * q_stride_token + (head * GROUP + row % GROUP) * q_stride_head  # [ROWS]
    q = tl.load(q_ptr + q_row[:, None] + d[None, :])  # [ROWS, HEAD] bf16
    q = operand(q, False, INTERPRETED)
    scale = logit_scale * LOG2_E
    if k_descale_ptr is not None:
        scale *= tl.load(k_descale_ptr)
    if TOKENS:
        index = index_ptr + tl.load(lengths_ptr + seq).to(tl.int64)
        prefix = length - q_length
        drafts = draft_ptr + q_start - prefix
    else:
        index = index_ptr + seq.to(tl.int64) * index_stride
    k_head = k_ptr + head.to(tl.int64) * k_stride_head
    v_head = v_ptr + head.to(tl.int64) * v_stride_head

    top = tl.full([ROWS], float("-inf"), tl.float32)  # [ROWS]
    norm = tl.zeros([ROWS], tl.float32)  # [ROWS]
    acc = tl.zeros([ROWS, HEAD], tl.float32)  # [ROWS, HEAD]
    for tile in range(first, last):
        pos = tile * TILE + t  # [TILE]
        # Past the end the last visible token is read again, so that no load needs a mask.
        real = tl.minimum(pos, seen - 1)
        if TOKENS:
            place = tl.where(real < prefix, index + real, drafts + real)
            page = tl.load(place).to(tl.int64)  # [TILE] a slot is a page of one token
        else:
            page = tl.load(index + real // PAGE).to(tl.int64)  # [TILE]
        k_offset = page * k_stride_page + (real % PAGE) * k_stride_slot
        v_offset = page * v_stride_page + (real % PAGE) * v_stride_slot
        k = tl.load(k_head + k_offset[:, None] + d[None, :])  # [TILE, HEAD] e4m3
        v = tl.load(v_head + v_offset[:, None] + d[None, :])  # [TILE, HEAD] e4m3
        s = tl.dot(q, tl.trans(operand(k, False, INTERPRETED))) * scale  # [ROWS, TILE]
        s = tl.where(pos[None, :] < visible[:, None], s, float("-inf"))
        new_top = tl.maximum(top, tl.max(s, 1))
        # The first of two tokens may see nothing of a tile that the second sees.
        anchor = tl.where(new_top == float("-inf"), 0.0, new_top)
        weight = tl.math.exp2(s - anchor[:, None])  # [ROWS, TILE]
        shrink = tl.math.exp2(top - anchor)
        norm = norm * shrink + tl.sum(weight, 1)
        acc = acc * shrink[:, None]
        acc = tl.dot(operand(weight, False, INTERPRETED), operand(v, False, INTERPRETED), acc)  # [ROWS, HEAD]
        top = new_top

    if DIRECT:
        v_scale = out_scale
        if v_descale_ptr is not None:
            v_scale *= tl.load(v_descale_ptr)
        out_row = (q_start + token) * out_stride_token + (head * GROUP + row % GROUP) * out_stride_head
        result = acc * (v_scale / tl.where(norm > 0, norm, 1.0))[:, None]
        tl.store(out_ptr + out_row[:, None] + d[None, :], output(result, INTERPRETED), mask=real_row[:, None])
    else:
        item = tl.program_id(0).to(tl.int64) * tl.num_programs(1) + head
        base = (item * segments + segment) * ROWS
        # An empty segment leaves only its -inf; the reduction never reads the rest.
        tl.store(partial_max_ptr + base + row, top)
        if last > first:
            tl.store(partial_sum_ptr + base + row, norm)
            tl.store(partial_ptr + (base + row)[:, None] * HEAD + d[None, :], acc)


@triton.jit(do_not_specialize=["query_blocks"])
def generic_reduce_kernel(
    out_ptr,
    partial_ptr,
    partial_max_ptr,
    partial_sum_ptr,
    cu_seqlens_q_ptr,
    v_descale_ptr,
    out_scale,
    query_blocks,  # of a sequence: max_seqlen_q / (ROWS / GROUP), rounded up
    out_stride_token,
    out_stride_head,
    GROUP: tl.constexpr,
    HEAD: tl.constexpr,
    ROWS: tl.constexpr,
    SEGMENTS: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """One output row, from the segments of its query tokens."""
    seq = tl.program_id(0) // query_blocks
    head = tl.program_id(1)
    row = tl.program_id(2)
    token = tl.program_id(0) % query_blocks * (ROWS // GROUP) + row // GROUP
    q_start = tl.load(cu_seqlens_q_ptr + seq).to(tl.int64)
    if token >= tl.load(cu_seqlens_q_ptr + seq + 1) - q_start:
        return
    segment = tl.arange(0, SEGMENTS)  # [SEGMENTS]
    d = tl.arange(0, HEAD)  # [HEAD]
    item = tl.program_id(0).to(tl.int64) * tl.num_programs(1) + head
    place = (item * SEGMENTS + segment) * ROWS + row  # [SEGMENTS]
    tops = tl.load(partial_max_ptr + place)
    top = tl.max(tops, 0)
    used = tops > float("-inf")
    weight = tl.math.exp2(tops - tl.where(top == float("-inf"), 0.0, top))  # [SEGMENTS]
    norm = tl.sum(tl.load(partial_sum_ptr + place, mask=used, other=0.0) * weight, 0)
    part = tl.load(partial_ptr + place[:, None] * HEAD + d[None, :], mask=used[:, None], other=0.0)  # [SEGMENTS, HEAD]
    v_scale = out_scale
    if v_descale_ptr is not None:
        v_scale *= tl.load(v_descale_ptr)
    result = tl.sum(part * weight[:, None], 0) * (v_scale / tl.where(norm > 0, norm, 1.0))
    out_row = (q_start + token) * out_stride_token + (head * GROUP + row % GROUP) * out_stride_head
    tl.store(out_ptr + out_row + d, output(result, INTERPRETED))
