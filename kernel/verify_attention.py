"""Triton bodies only: no allocation, no environment, no architecture.

Verify attention has 2-4 query tokens a sequence and 16 query heads a KV head.  All of them fit
one tile of ``ROWS`` rows, so each KV byte is read once.  The KV of an item (a sequence and a KV
head) is cut into pieces of equal size, one a program.  The cut follows the real lengths, which
only the device knows under a graph, so each program works out its own place from them.

Each program leaves one partial result, and a second kernel sums those of each item.  Their number
follows the programs that the device holds, not the batch.

Row ``r`` of a tile is query token ``r // GROUP`` and head ``r % GROUP`` of its item.
"""

# Triton parses these functions itself and forbids most annotations on their parameters.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

import triton
import triton.language as tl

from kernel.arithmetic import operand, output, power_of_two_near

LOG2_E = tl.constexpr(1.4426950408889634)
SMALLEST_NORMAL = tl.constexpr(2.0**-126)


@triton.jit
def sequence_length(cu_seqlens_q_ptr, lengths_ptr, seq, mask, TOKENS: tl.constexpr):
    """KV tokens of ``seq`` (a scalar or a block), its query tokens included; 0 off the mask."""
    if TOKENS:
        # lengths_ptr holds offsets of the prefix alone, the draft tokens come on top.
        length = tl.load(lengths_ptr + seq + 1, mask, 0) - tl.load(lengths_ptr + seq, mask, 0)
        length = length.to(tl.int32)
        length += tl.load(cu_seqlens_q_ptr + seq + 1, mask, 0).to(tl.int32)
        length -= tl.load(cu_seqlens_q_ptr + seq, mask, 0).to(tl.int32)
    else:
        length = tl.load(lengths_ptr + seq, mask, 0).to(tl.int32)
    return length


@triton.jit
def sequence_pieces(
    cu_seqlens_q_ptr,
    lengths_ptr,
    batch,
    kv_heads,
    slots,
    even_pieces,
    b,
    TILE: tl.constexpr,
    MIN_TILES: tl.constexpr,
    TOKENS: tl.constexpr,
):
    """Pieces that each item of the sequences ``b`` is cut into, 0 for an empty sequence.

    A piece has at most ``size`` tiles.  Either bound keeps their number within the launch: there
    are at most ``total / size + items`` of them, and ``even_pieces`` an item if that cuts the longest;
    the second is tighter when lengths are equal.  :func:`kernel.config.split` makes both numbers.
    """
    lengths = sequence_length(cu_seqlens_q_ptr, lengths_ptr, b, b < batch, TOKENS)
    tiles = tl.cdiv(lengths, TILE)  # [BATCH_BLOCK]
    total = tl.sum(tiles, 0) * kv_heads
    size = tl.minimum(tl.cdiv(total, slots), tl.cdiv(tl.max(tiles, 0), even_pieces))
    return tl.cdiv(tiles, tl.maximum(size, MIN_TILES))  # [BATCH_BLOCK]


@triton.jit
def find_piece(
    cu_seqlens_q_ptr,
    lengths_ptr,
    batch,
    kv_heads,
    slots,
    even_pieces,
    b,
    program,
    TILE: tl.constexpr,
    MIN_TILES: tl.constexpr,
    BATCH_BLOCK: tl.constexpr,
    TOKENS: tl.constexpr,
):
    """Where a program's piece lies: sequence, KV head, piece, pieces of the item, tiles, length.

    The first tile and the tile past the last are equal for a program beyond the last piece.
    """
    pieces = sequence_pieces(
        cu_seqlens_q_ptr, lengths_ptr, batch, kv_heads, slots, even_pieces, b, TILE, MIN_TILES, TOKENS
    )  # [BATCH_BLOCK]
    # program at which the next sequence starts
    ends = tl.cumsum(pieces, 0) * kv_heads  # [BATCH_BLOCK]
    seq = tl.sum((ends <= program).to(tl.int32), 0)
    exists = seq < BATCH_BLOCK
    seq_start = tl.sum(tl.where(b < seq, pieces, 0), 0) * kv_heads
    seq_pieces = tl.maximum(tl.sum(tl.where(b == seq, pieces, 0), 0), 1)
    head = (program - seq_start) // seq_pieces
    piece = (program - seq_start) % seq_pieces
    length = sequence_length(cu_seqlens_q_ptr, lengths_ptr, seq, exists, TOKENS)
    tiles = tl.cdiv(length, TILE)
    share = tiles // seq_pieces
    rest = tiles % seq_pieces  # the first ``rest`` pieces have one tile more
    first = piece * share + tl.minimum(piece, rest)
    last = first + share + (piece < rest).to(tl.int32)
    return seq, head, piece, seq_pieces, first, last, length


# Counts that change with the batch must not make Triton compile again in a running server.
@triton.jit(do_not_specialize=["batch", "kv_heads", "slots", "even_pieces", "index_stride"])
def verify_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    partial_ptr,  # fp16 (launched programs, ROWS, HEAD): means of V, weighted by exp2(s - max)
    partial_lse_ptr,  # fp32 (launched programs, ROWS): log2 of the sums of exp2(s)
    cu_seqlens_q_ptr,
    lengths_ptr,  # paged: KV lengths; tokens: offsets into index_ptr
    index_ptr,  # paged: block table; tokens: slots of the prefixes
    draft_ptr,  # tokens: slots of the query tokens; paged: unused
    k_descale_ptr,  # one fp32, or None
    logit_scale,  # softmax scale, times k_descale where that is a number
    batch,
    kv_heads,
    slots,
    even_pieces,
    index_stride,
    q_stride_token,
    q_stride_head,
    k_stride_page,
    k_stride_slot,
    k_stride_head,
    v_stride_page,
    v_stride_slot,
    v_stride_head,
    GROUP: tl.constexpr,
    HEAD: tl.constexpr,
    ROWS: tl.constexpr,
    PAGE: tl.constexpr,
    TILE: tl.constexpr,
    MIN_TILES: tl.constexpr,
    BATCH_BLOCK: tl.constexpr,
    TOKENS: tl.constexpr,
    FP16: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """One piece of one item."""
    program = tl.program_id(0)
    b = tl.arange(0, BATCH_BLOCK)  # [BATCH_BLOCK]
    seq, head, _, _, first, last, length = find_piece(
        cu_seqlens_q_ptr,
        lengths_ptr,
        batch,
        kv_heads,
        slots,
        even_pieces,
        b,
        program,
        TILE,
        MIN_TILES,
        BATCH_BLOCK,
        TOKENS,
    )
    if first >= last:
        return  # more programs than pieces

    scale = logit_scale * LOG2_E
    if k_descale_ptr is not None:
        scale *= tl.load(k_descale_ptr)

    row = tl.arange(0, ROWS)  # [ROWS]
    d = tl.arange(0, HEAD)  # [HEAD]
    t = tl.arange(0, TILE)  # [TILE]
    token = row // GROUP  # [ROWS]
    q_start = tl.load(cu_seqlens_q_ptr + seq).to(tl.int64)
    q_length = (tl.load(cu_seqlens_q_ptr + seq + 1) - q_start).to(tl.int32)
    real_row = token < q_length  # [ROWS]
    q_offset = (q_start + token) * q_stride_token + (head * GROUP + row % GROUP) * q_stride_head  # [ROWS] i64
    q = tl.load(q_ptr + q_offset[:, None] + d[None, :], mask=real_row[:, None], other=0.0)  # [ROWS, HEAD] bf16
    # A negative scale goes into Q, so that a row's largest product has its largest logit.
    q = q.to(tl.float32) * tl.where(scale < 0, -1.0, 1.0)
    row_scale = tl.full([ROWS], 1.0, tl.float32) * tl.abs(scale)  # [ROWS]
    if FP16:
        # bf16 has fp32's range and fp16 and E4M3 have not: each row leaves a power of two outside.
        unit, inverse = power_of_two_near(tl.max(tl.abs(q), 1))  # [ROWS]
        q = q * inverse[:, None]  # [ROWS, HEAD], |q| < 4
        row_scale = unit * row_scale
    q = operand(q, FP16, INTERPRETED)  # [ROWS, HEAD]
    # Not 0 even for a row of zeros: that times a masked logit would be NaN.
    row_scale = tl.maximum(row_scale, SMALLEST_NORMAL)

    prefix = length - q_length
    visible = prefix + token  # [ROWS] last position a row may see
    if TOKENS:
        index_row = index_ptr + tl.load(lengths_ptr + seq).to(tl.int64)
        draft_row = draft_ptr + q_start - prefix
    else:
        index_row = index_ptr + seq.to(tl.int64) * index_stride
    k_head = k_ptr + head.to(tl.int64) * k_stride_head
    v_head = v_ptr + head.to(tl.int64) * v_stride_head

    top = tl.full([ROWS], float("-inf"), tl.float32)  # [ROWS] largest logit so far
    norm = tl.zeros([ROWS], tl.float32)  # [ROWS]
    acc = tl.zeros([ROWS, HEAD], tl.float32)  # [ROWS, HEAD]
    for tile in range(first, last):
        pos = tile * TILE + t  # [TILE]
        # Past the end the last token is read again: no load needs a mask, no stray NaN meets
        # a weight of zero, and nothing outside the table is touched.
        real = tl.minimum(pos, length - 1)
        if TOKENS:
            place = tl.where(real < prefix, index_row + real, draft_row + real)
            page = tl.load(place).to(tl.int64)  # [TILE] slots
            slot = 0
        else:
            page = tl.load(index_row + real // PAGE).to(tl.int64)  # [TILE]
            slot = real % PAGE
        k_offset = page * k_stride_page + slot * k_stride_slot  # [TILE] i64
        v_offset = page * v_stride_page + slot * v_stride_slot
        k = tl.load(k_head + k_offset[:, None] + d[None, :])  # [TILE, HEAD] e4m3
        v = tl.load(v_head + v_offset[:, None] + d[None, :])  # [TILE, HEAD] e4m3
        s = tl.dot(q, tl.trans(operand(k, FP16, INTERPRETED)))  # [ROWS, TILE]
        s = tl.where(pos[None, :] <= visible[:, None], s, float("-inf"))
        new_top = tl.maximum(top, tl.max(s, 1) * row_scale)  # [ROWS]
        # A row that has seen nothing yet has no largest logit to subtract.
        anchor = tl.where(new_top == float("-inf"), 0.0, new_top)
        weight = tl.math.exp2(s * row_scale[:, None] - anchor[:, None])  # [ROWS, TILE]
        shrink = tl.math.exp2(top - anchor)  # [ROWS]
        norm = norm * shrink + tl.sum(weight, 1)
        acc = acc * shrink[:, None]
        acc = tl.dot(operand(weight, FP16, INTERPRETED), operand(v, FP16, INTERPRETED), acc)  # [ROWS, HEAD]
        top = new_top

    # Writing whole items to the output from here would save their round trip through scratch, but
    # a second epilogue holds its addresses and masks beside the accumulator (NOTES.md).
    place = program.to(tl.int64) * ROWS + row  # [ROWS]
    # Divided by its sum a partial result is a mean of V and fits fp16: half the traffic of fp32.
    seen = norm > 0  # a row may see nothing of this piece
    norm = tl.where(seen, norm, 1.0)
    tl.store(partial_ptr + place[:, None] * HEAD + d[None, :], (acc * (1.0 / norm)[:, None]).to(tl.float16))
    tl.store(partial_lse_ptr + place, tl.where(seen, top + tl.math.log2(norm), float("-inf")))


@triton.jit(do_not_specialize=["batch", "kv_heads", "slots", "even_pieces", "rows"])
def reduce_kernel(
    out_ptr,
    partial_ptr,
    partial_lse_ptr,
    cu_seqlens_q_ptr,
    lengths_ptr,
    v_descale_ptr,
    out_scale,  # v_descale where that is a number
    batch,
    kv_heads,
    slots,
    even_pieces,
    rows,
    out_stride_token,
    out_stride_head,
    GROUP: tl.constexpr,
    HEAD: tl.constexpr,
    TILE: tl.constexpr,
    MIN_TILES: tl.constexpr,
    BATCH_BLOCK: tl.constexpr,
    TOKENS: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK: tl.constexpr,
    COLUMNS: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """``BLOCK`` rows x ``COLUMNS`` elements of an item's output, from its partial results."""
    item = tl.program_id(0)
    seq = item // kv_heads
    head = item % kv_heads
    q_start = tl.load(cu_seqlens_q_ptr + seq).to(tl.int64)
    q_length = tl.load(cu_seqlens_q_ptr + seq + 1) - q_start
    if tl.program_id(1) * BLOCK // GROUP >= q_length:
        return
    row = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)  # [BLOCK]
    token = row // GROUP
    d = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)  # [COLUMNS]
    out_row = (q_start + token) * out_stride_token + (head * GROUP + row % GROUP) * out_stride_head  # [BLOCK] i64
    out = out_ptr + out_row[:, None] + d[None, :]
    real_row = (token < q_length)[:, None]
    b = tl.arange(0, BATCH_BLOCK)  # [BATCH_BLOCK]
    pieces = sequence_pieces(
        cu_seqlens_q_ptr, lengths_ptr, batch, kv_heads, slots, even_pieces, b, TILE, MIN_TILES, TOKENS
    )  # [BATCH_BLOCK]
    seq_pieces = tl.sum(tl.where(b == seq, pieces, 0), 0)
    if seq_pieces == 0:
        # No program visits an empty sequence.
        tl.store(out, tl.zeros([BLOCK, COLUMNS], tl.bfloat16), mask=real_row)
        return
    start = tl.sum(tl.where(b < seq, pieces, 0), 0) * kv_heads + head * seq_pieces

    top = tl.full([BLOCK], float("-inf"), tl.float32)  # [BLOCK]
    norm = tl.zeros([BLOCK], tl.float32)  # [BLOCK]
    acc = tl.zeros([BLOCK, COLUMNS], tl.float32)  # [BLOCK, COLUMNS]
    for offset in range(0, seq_pieces, CHUNK):
        # Rows first: the compiler then gives each warp rows of its own, and pieces add up in registers.
        p = offset + tl.arange(0, CHUNK)  # [CHUNK] pieces
        real = (p < seq_pieces)[None, :]
        place = (start + p).to(tl.int64)[None, :] * rows + row[:, None]  # [BLOCK, CHUNK]
        lse = tl.load(partial_lse_ptr + place, mask=real, other=float("-inf"))  # [BLOCK, CHUNK]
        part = tl.load(
            partial_ptr + place[:, :, None] * HEAD + d[None, None, :],
            mask=real[:, :, None],
            other=0.0,
        )  # [BLOCK, CHUNK, COLUMNS]
        new_top = tl.maximum(top, tl.max(lse, 1))  # [BLOCK]
        anchor = tl.where(new_top == float("-inf"), 0.0, new_top)
        weight = tl.math.exp2(lse - anchor[:, None])  # [BLOCK, CHUNK]
        shrink = tl.math.exp2(top - anchor)  # [BLOCK]
        norm = norm * shrink + tl.sum(weight, 1)
        acc = acc * shrink[:, None] + tl.sum(part.to(tl.float32) * weight[:, :, None], 1)
        top = new_top
    v_scale = out_scale
    if v_descale_ptr is not None:
        v_scale *= tl.load(v_descale_ptr)
    # A padding row sees no key at all; it gets zeros, not 0 / 0.
    result = acc * (v_scale / tl.where(norm > 0, norm, 1.0))[:, None]
    tl.store(out, output(result, INTERPRETED), mask=real_row)
