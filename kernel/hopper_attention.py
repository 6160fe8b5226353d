"""The verify kernel by hand for Hopper, in Gluon: FP8 K and V reach the matrix units through registers.

Same cut and partial results as :func:`kernel.verify_attention.verify_kernel`.  Both products are
transposed, so that K and V are the operand that WGMMA takes from registers:

    S^T[kv, row] = K[kv, head] Q^T[head, row]        O^T[head, row] += V^T[head, kv] P^T[kv, row]

A cache is read as 16-bit pairs of elements, which ``ldmatrix`` lays out as WGMMA wants 16-bit
operands; one conversion instruction makes two exact fp16 values of a pair.  So K and V never return
to shared memory, and only Q (once) and P (64 x 64 fp16 a step) are written there.

The order in which QK sums over the head is free: of four neighbouring elements the first two go to
one product and the others to a second, with Q stored to match.  PV has one accumulator for the even
elements of the head and one for the odd.

The largest logit is lazy: a row keeps a reference, and only when a logit exceeds it by 8 binary
orders does the tile find the true maximum and rescale.  Weights of up to 2^8 fit fp16 well.

Where the device holds all programs at once, those of an item wait for each other at the end, and
each then sums up a share of the item's output: no second kernel, no second look for the pieces.
"""

# Gluon parses these functions itself and forbids most annotations on their parameters.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    async_copy,
    fence_async_shared,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from kernel import arithmetic, verify_attention
from kernel.hopper_reduction import sum_own_shares, write_zeros

# Triton 3.9's names for them, and 3.6's.
copy_async = getattr(async_copy, "async_load", None) or async_copy.async_copy_global_to_shared
barrier = getattr(gl, "barrier", None) or gl.thread_barrier
# The cut is the other kernel's, to the letter.
sequence_length = gluon.jit(verify_attention.sequence_length.fn)
find_piece = gluon.jit(verify_attention.find_piece.fn)
power_of_two_near = gluon.jit(arithmetic.power_of_two_near.fn)

LOG2_E = gl.constexpr(1.4426950408889634)
HEAD = gl.constexpr(256)
PAIRS = gl.constexpr(128)  # 16-bit pairs of a head
ROWS = gl.constexpr(64)
PAGE = gl.constexpr(16)
TILE = gl.constexpr(64)
WARPS = gl.constexpr(4)
# 16-bit columns of K, and tokens of V, that go to the matrix units at a time: what of them waits there
# in registers.  With 32 columns Triton 3.6.0 spills.
QK_CHUNK = gl.constexpr(16)
PV_CHUNK = gl.constexpr(16)
LARGEST_UNIT = gl.constexpr(2.0**13)

# Logits, and both halves of the result.
SCORES = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16]))
LEFT = gl.constexpr(gl.DotOperandLayout(0, SCORES, 2))
# A warp copies a page, a thread 16 bytes of every second slot.
COPY = gl.constexpr(
    gl.DistributedLinearLayout(
        reg_bases=[[0, 1], [0, 2], [0, 4], [2, 0], [4, 0], [8, 0]],
        lane_bases=[[0, 8], [0, 16], [0, 32], [0, 64], [1, 0]],
        warp_bases=[[16, 0], [32, 0]],
        block_bases=[],
        shape=[64, 128],
    )
)
# The same threads for (page, slot): a thread needs one page number.
SLOT = gl.constexpr(
    gl.DistributedLinearLayout(
        reg_bases=[[0, 2], [0, 4], [0, 8]],
        lane_bases=[[0, 0], [0, 0], [0, 0], [0, 0], [0, 1]],
        warp_bases=[[1, 0], [2, 0]],
        block_bases=[],
        shape=[4, 16],
    )
)
QUERY = gl.constexpr(gl.BlockedLayout([1, 16], [8, 4], [4, 1], [1, 0]))
PARTIAL = gl.constexpr(gl.BlockedLayout([1, 8], [1, 32], [4, 1], [1, 0]))
THREADS = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))
VOTES = gl.constexpr(gl.BlockedLayout([1, 1], [1, 32], [1, 4], [1, 0]))  # all in each thread
SUMS = gl.constexpr(gl.BlockedLayout([16, 1], [2, 16], [1, 4], [0, 1]))
# Shared memory: K and V as ldmatrix reads them, and plain lines.
RAW = gl.constexpr(gl.SwizzledSharedLayout(8, 1, 8, [1, 0]))
LINE = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0]))


@gluon.jit
def _converted(pairs):
    """fp16 of the elements that even 16-bit columns hold, and of those in odd ones."""
    return gl.inline_asm_elementwise(
        """{
        .reg .b16 low, high;
        mov.b32 {low, high}, $2;
        cvt.rn.f16x2.e4m3x2 $0, low;
        cvt.rn.f16x2.e4m3x2 $1, high;
        }""",
        "=r,=r,r",
        [pairs],
        dtype=(gl.float16, gl.float16),
        is_pure=True,
        pack=2,
    )


@gluon.jit
def _converted_apart(pairs):
    """fp16 of the first element of each pair, and of the second."""
    return gl.inline_asm_elementwise(
        """{
        .reg .b16 low, high;
        .reg .b32 sorted;
        prmt.b32 sorted, $2, 0, 0x3120;
        mov.b32 {low, high}, sorted;
        cvt.rn.f16x2.e4m3x2 $0, low;
        cvt.rn.f16x2.e4m3x2 $1, high;
        }""",
        "=r,=r,r",
        [pairs],
        dtype=(gl.float16, gl.float16),
        is_pure=True,
        pack=2,
    )


@gluon.jit
def _any_in_warp(x):
    """1 in every lane of a warp that holds an ``x`` above 8, else 0."""
    return gl.inline_asm_elementwise(
        """{
        .reg .pred any;
        setp.gt.f32 any, $1, 0f41000000;
        vote.sync.any.pred any, any, 0xffffffff;
        selp.b32 $0, 1, 0, any;
        }""",
        "=r,f",
        [x],
        dtype=gl.int32,
        is_pure=False,
        pack=1,
    )


@gluon.jit
def _by_thread(x):
    """A tile of logits as (threads, elements of one thread)."""
    x = gl.reshape(x, [WARPS, 2, 8, 8, 4, 2])
    return gl.reshape(gl.permute(x, [0, 2, 4, 1, 3, 5]), [WARPS * 32, 32])


@gluon.jit
def _row_sums(x):
    """Sums of the logits of one thread and row: (warps, 8, rows)."""
    return gl.sum(gl.reshape(x, [WARPS, 2, 8, ROWS]), 1)


@gluon.jit
def _places(index_row, draft_row, tile, length, prefix, TOKENS: gl.constexpr):
    """Page numbers of a tile's pages, or slots of its tokens, as int32; past the end the last again."""
    if TOKENS:
        pos = tile * TILE + gl.arange(0, TILE, THREADS)
        pos = gl.minimum(pos, length - 1)
        place = gl.load(gl.where(pos < prefix, index_row + pos, draft_row + pos))
    else:
        page = tile * (TILE // PAGE) + gl.arange(0, TILE // PAGE, gl.SliceLayout(1, SLOT))
        place = gl.load(index_row + gl.minimum(page, (length - 1) // PAGE))
    return place.to(gl.int32)


@gluon.jit
def _start_copy(
    k_tile,
    v_tile,
    k_pairs,
    v_pairs,
    head_offset,
    places,
    tile,
    length,
    stride_page,
    stride_slot,
    TOKENS: gl.constexpr,
):
    """Start the copies of a tile's K and V."""
    if TOKENS:
        offset = gl.convert_layout(places, gl.SliceLayout(1, COPY)).to(gl.int64) * stride_page + head_offset
    else:
        # Past the end the last token is read again: no load needs a mask, no stray NaN meets a
        # weight of zero, and nothing outside the table is touched.
        start = tile * TILE + gl.arange(0, TILE // PAGE, gl.SliceLayout(1, SLOT)) * PAGE
        slot = gl.arange(0, PAGE, gl.SliceLayout(0, SLOT))
        last_page = (length - 1) // PAGE * PAGE
        real = gl.minimum(start[:, None] + slot[None, :], length - 1) - gl.minimum(start, last_page)[:, None]
        offset = (places.to(gl.int64) * stride_page + head_offset)[:, None] + real * stride_slot
        offset = gl.convert_layout(gl.reshape(offset, [TILE]), gl.SliceLayout(1, COPY), assert_trivial=True)
    offset = gl.multiple_of(offset, 8)[:, None] + gl.arange(0, PAIRS, gl.SliceLayout(0, COPY))[None, :]
    copy_async(k_tile, k_pairs + offset)
    copy_async(v_tile, v_pairs + offset)
    async_copy.commit_group()


@gluon.jit
def _is_vacant(cu_seqlens_q_ptr, lengths_ptr, batch, kv_heads, b, item, TOKENS: gl.constexpr):
    """1 if ``item`` exists and its sequence has no KV, so that no program has a piece of it."""
    lengths = sequence_length(cu_seqlens_q_ptr, lengths_ptr, b, b < batch, TOKENS)
    mine = (b * kv_heads <= item) & (item < (b + 1) * kv_heads) & (b < batch)
    return gl.sum((mine & (lengths <= 0)).to(gl.int32), 0)


@gluon.jit
def _stored_query(q, scale):
    """Q [ROWS, HEAD] bf16 in shared memory as fp16, in the order of the products with K.

    Also what stays outside the product: a factor of each row in shared memory, the same for all rows, and whether any
    row's is not 1.
    """
    # scale = fraction x power: the power goes into Q, where it is exact, the fraction (1 to 2) stays outside.
    power, inverse_power = power_of_two_near(gl.abs(scale))
    fraction = gl.abs(scale) * inverse_power
    q = q.to(gl.float32)
    # bf16 has fp32's range and fp16 has not: what a row's power has beyond 2^13 is left outside.
    unit, inverse = power_of_two_near(gl.max(gl.abs(q), 1))  # [ROWS]
    wanted = gl.minimum(unit * power, 2.0**126)
    inside = gl.minimum(wanted, LARGEST_UNIT)
    # A negative scale goes into Q too, so that a row's largest product has its largest logit.
    q = (q * (inverse * inside * gl.where(scale < 0, -1.0, 1.0))[:, None]).to(gl.float16)
    outside = gl.where(wanted > LARGEST_UNIT, wanted / LARGEST_UNIT, 1.0)
    wide = gl.max(outside, 0) > 1.0
    units = gl.allocate_shared_memory(gl.float32, [ROWS], LINE, outside)
    # Chunk by chunk, for each first what meets even 16-bit columns of K, then the rest.
    QK_PARTS: gl.constexpr = PAIRS // QK_CHUNK
    q = gl.permute(gl.reshape(q, [ROWS, QK_PARTS, QK_CHUNK // 2, 2, 2]), [1, 3, 0, 2, 4])
    q_tiles = gl.allocate_shared_memory(
        gl.float16, [2 * QK_PARTS * ROWS, QK_CHUNK], gl.NVMMASharedLayout(QK_CHUNK * 2, 16, 2)
    )
    q_tiles.store(gl.reshape(q, [2 * QK_PARTS * ROWS, QK_CHUNK]))
    fence_async_shared()
    return q_tiles, units, fraction, wide


@gluon.jit
def _logits(k_tile, q_tiles):
    """S^T [TILE, ROWS] of a tile of K [TILE, PAIRS], in chunks of columns, without the rows' factors."""
    QK_PARTS: gl.constexpr = PAIRS // QK_CHUNK
    s = gl.zeros([TILE, ROWS], gl.float32, SCORES)
    for part in gl.static_range(QK_PARTS):
        k_even, k_odd = _converted(k_tile.slice(part * QK_CHUNK, QK_CHUNK, 1).load(LEFT))
        q_even = q_tiles.slice(2 * part * ROWS, ROWS, 0).permute((1, 0))
        q_odd = q_tiles.slice((2 * part + 1) * ROWS, ROWS, 0).permute((1, 0))
        s = warpgroup_mma(k_even, q_even, s, use_acc=part > 0, is_async=True)
        s = warpgroup_mma(k_odd, q_odd, s, is_async=True)
        if part == 0:
            last_even, last_odd = k_even, k_odd
        else:
            s, last_even, last_odd = warpgroup_mma_wait(2, [s, last_even, last_odd])
            last_even, last_odd = k_even, k_odd
    s, last_even, last_odd = warpgroup_mma_wait(0, [s, last_even, last_odd])
    return s


@gluon.jit
def _weights(s, fraction, first_tile, tops, votes, p_tile, norm, even, odd):
    """Weights [TILE, ROWS] in fp16 from logits, in registers and in ``p_tile``, by each row's reference in ``tops``.

    Where a logit exceeds its row's reference by too much, once more with the true maximum, and with what was summed
    so far rescaled.
    """
    weight = gl.zeros([TILE, ROWS], gl.float16, SCORES)
    stale = first_tile
    pending = 1
    while pending > 0:
        if stale:
            top = tops.load(gl.SliceLayout(0, SCORES))
            new_top = gl.maximum(top, gl.max(s, 0) * fraction)
            # A row that has seen nothing yet has no largest logit to subtract.
            new_top = gl.where(new_top == float("-inf"), 0.0, new_top)
            if not first_tile:
                shrink = gl.exp2(top - new_top)
                NORM: gl.constexpr = norm.type.layout
                norm_shrink = gl.convert_layout(shrink, gl.SliceLayout(0, gl.SliceLayout(1, NORM)))
                norm = norm * norm_shrink[None, None, :]
                even = even * shrink[None, :]
                odd = odd * shrink[None, :]
            tops.store(new_top)
        x = s * fraction - tops.load(gl.SliceLayout(0, SCORES))[None, :]
        weight = gl.exp2(x).to(gl.float16)
        votes.store(_any_in_warp(gl.max(_by_thread(x), 1)))
        p_tile.store(weight)
        fence_async_shared()
        barrier()
        # A logit that exceeds its row's reference by too much: once more with the true maximum.
        pending = gl.max(gl.max(votes.reshape([WARPS, 32]).slice(0, 1, 1).load(VOTES), 0), 0)
        stale = True
    return weight, norm, even, odd


@gluon.jit
def _weighted_values(v_tile, p_tile, weight, norm, even, odd):
    """Add a tile: to ``even`` and ``odd`` [PAIRS, ROWS] the products with V's elements at even and odd places, to
    ``norm`` [WARPS, 8, ROWS] the weights.
    """
    for part in gl.static_range(TILE // PV_CHUNK):
        v_even, v_odd = _converted_apart(v_tile.slice(part * PV_CHUNK, PV_CHUNK, 0).permute((1, 0)).load(LEFT))
        p_part = p_tile.slice(part * PV_CHUNK, PV_CHUNK, 0)
        even = warpgroup_mma(v_even, p_part, even, is_async=True)
        odd = warpgroup_mma(v_odd, p_part, odd, is_async=True)
        if part == 0:
            last_even, last_odd = v_even, v_odd
        else:
            even, odd, last_even, last_odd = warpgroup_mma_wait(2, [even, odd, last_even, last_odd])
            last_even, last_odd = v_even, v_odd
    # While the last products run, which still read the fragments of V.
    norm += _row_sums(weight.to(gl.float32))
    even, odd, last_even, last_odd = warpgroup_mma_wait(0, [even, odd, last_even, last_odd])
    return norm, even, odd


@gluon.jit
def _store_partial(partial, partial_lse, tops, norm, even, odd):
    """Write a piece's means of V [ROWS, HEAD] in fp16, and log2 of the sums of its weights [ROWS]."""
    # One row a thread pair: few logarithms and divisions.
    total = gl.sum(gl.convert_layout(gl.reshape(norm, [8 * WARPS, ROWS]), SUMS), 0)
    row = gl.arange(0, ROWS, gl.SliceLayout(0, SUMS))
    gl.store(partial_lse + row, tops.load(gl.SliceLayout(0, SUMS)) + gl.log2(total))
    tops.store(1.0 / gl.where(total > 0, total, 1.0))
    inverse = tops.load(gl.SliceLayout(0, SCORES))
    result = gl.join((even * inverse[None, :]).to(gl.float16), (odd * inverse[None, :]).to(gl.float16))
    # Through shared memory, so that a thread writes 16 bytes at a time.
    result = gl.convert_layout(gl.reshape(gl.permute(result, [1, 0, 2]), [ROWS, HEAD]), PARTIAL)
    row = gl.arange(0, ROWS, gl.SliceLayout(1, PARTIAL))
    d = gl.arange(0, HEAD, gl.SliceLayout(0, PARTIAL))
    gl.store(partial + row[:, None] * HEAD + d[None, :], result)


@gluon.jit(do_not_specialize=["batch", "kv_heads", "slots", "even_pieces", "index_stride"])
def hopper_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    partial_ptr,
    partial_lse_ptr,
    out_ptr,
    done_ptr,  # int32 (items,): programs of an item that have left a partial result; 0 before and after
    cu_seqlens_q_ptr,
    lengths_ptr,
    index_ptr,
    draft_ptr,
    k_descale_ptr,
    v_descale_ptr,
    logit_scale,
    out_scale,
    batch,
    kv_heads,
    slots,
    even_pieces,
    index_stride,
    q_stride_token,
    q_stride_head,
    stride_page,  # of K and of V, in elements
    stride_slot,
    stride_head,
    out_stride_token,
    out_stride_head,
    GROUP: gl.constexpr,
    MIN_TILES: gl.constexpr,
    BATCH_BLOCK: gl.constexpr,
    TOKENS: gl.constexpr,
    SHARES: gl.constexpr,  # parts of an item's output, 0 to leave it to the other reduction
):
    """One piece of one item."""
    BATCH: gl.constexpr = gl.BlockedLayout([BATCH_BLOCK // 32], [32], [WARPS], [0])  # all of it in each warp
    program = gl.program_id(0)
    b = gl.arange(0, BATCH_BLOCK, BATCH)
    seq, head, piece, pieces, first, last, length = find_piece(
        cu_seqlens_q_ptr, lengths_ptr, batch, kv_heads, slots, even_pieces, b, program,
        TILE, MIN_TILES, BATCH_BLOCK, TOKENS,
    )  # fmt: skip
    if SHARES:
        vacant = _is_vacant(cu_seqlens_q_ptr, lengths_ptr, batch, kv_heads, b, program, TOKENS)
        if vacant > 0:
            write_zeros(out_ptr, cu_seqlens_q_ptr, kv_heads, program, out_stride_token, out_stride_head, GROUP)
    if first >= last:
        return  # more programs than pieces
    q_start = gl.load(cu_seqlens_q_ptr + seq).to(gl.int64)
    q_length = (gl.load(cu_seqlens_q_ptr + seq + 1) - q_start).to(gl.int32)
    prefix = length - q_length
    if TOKENS:
        index_row = index_ptr + gl.load(lengths_ptr + seq).to(gl.int64)
        draft_row = draft_ptr + q_start - prefix
    else:
        index_row = index_ptr + seq.to(gl.int64) * index_stride
        draft_row = index_row
    places = _places(index_row, draft_row, first, length, prefix, TOKENS)
    scale = logit_scale * LOG2_E
    if k_descale_ptr is not None:
        scale *= gl.load(k_descale_ptr)

    # Rows past the last query token repeat it; nothing reads what comes of them.
    row = gl.arange(0, ROWS, gl.SliceLayout(1, QUERY))
    d = gl.arange(0, HEAD, gl.SliceLayout(0, QUERY))
    token = gl.minimum(row // GROUP, gl.maximum(q_length, 1) - 1)
    q_offset = (gl.where(q_length > 0, q_start, 0) + token) * q_stride_token
    q_offset += (head * GROUP + row % GROUP) * q_stride_head
    q = gl.load(q_ptr + q_offset[:, None] + d[None, :])  # [ROWS, HEAD] bf16
    k_tiles = gl.allocate_shared_memory(gl.int16, [2, TILE, PAIRS], RAW)
    v_tiles = gl.allocate_shared_memory(gl.int16, [2, TILE, PAIRS], RAW)
    k_pairs = k_ptr.to(gl.pointer_type(gl.int16), bitcast=True)
    v_pairs = v_ptr.to(gl.pointer_type(gl.int16), bitcast=True)
    head_pairs = head.to(gl.int64) * stride_head // 2
    page_pairs = stride_page // 2
    slot_pairs = stride_slot // 2
    if length > 0:  # always; a block of its own, or the compiler waits for Q ahead of it
        _start_copy(
            k_tiles.index(first % 2), v_tiles.index(first % 2), k_pairs, v_pairs, head_pairs, places, first, length,
            page_pairs, slot_pairs, TOKENS,
        )  # fmt: skip
    places = _places(index_row, draft_row, first + 1, length, prefix, TOKENS)

    q_tiles, units, fraction, wide = _stored_query(q, scale)
    p_tile = gl.allocate_shared_memory(gl.float16, [TILE, ROWS], gl.NVMMASharedLayout(128, 16, 2))
    votes = gl.allocate_shared_memory(gl.int32, [WARPS * 32], LINE)
    # What the loop does not need waits in shared memory too.
    cut = (piece << 16) | pieces
    item = seq * kv_heads + head
    cut_kept = gl.allocate_shared_memory(gl.int32, [1], LINE, gl.full([1], cut, gl.int32, THREADS))
    item_kept = gl.allocate_shared_memory(gl.int32, [1], LINE, gl.full([1], item, gl.int32, THREADS))
    t = gl.arange(0, TILE, gl.SliceLayout(1, SCORES))
    visible = prefix + gl.arange(0, ROWS, gl.SliceLayout(0, SCORES)) // GROUP  # last position a row may see
    # In shared memory because registers are short; read once a tile.
    tops = gl.allocate_shared_memory(gl.float32, [ROWS], LINE)
    tops.store(gl.full([ROWS], float("-inf"), gl.float32, gl.SliceLayout(0, SCORES)))
    norm = _row_sums(gl.zeros([TILE, ROWS], gl.float32, SCORES))
    even = gl.zeros([PAIRS, ROWS], gl.float32, SCORES)
    odd = gl.zeros([PAIRS, ROWS], gl.float32, SCORES)
    for tile in range(first, last):
        now = tile % 2
        async_copy.wait_group(0)
        barrier()
        if tile + 1 < last:
            _start_copy(
                k_tiles.index(1 - now), v_tiles.index(1 - now), k_pairs, v_pairs, head_pairs, places, tile + 1, length,
                page_pairs, slot_pairs, TOKENS,
            )  # fmt: skip
        places = _places(index_row, draft_row, tile + 2, length, prefix, TOKENS)  # [pages] or [TILE]

        s = _logits(k_tiles.index(now), q_tiles)  # [TILE, ROWS]
        if wide:
            s = s * units.load(gl.SliceLayout(0, SCORES))[None, :]
        if (tile + 1) * TILE > prefix + 1:
            s = gl.where((tile * TILE + t)[:, None] <= visible[None, :], s, float("-inf"))
        # weight [TILE, ROWS] fp16, also in p_tile; norm [WARPS, 8, ROWS]; even, odd [PAIRS, ROWS]
        weight, norm, even, odd = _weights(s, fraction, tile == first, tops, votes, p_tile, norm, even, odd)
        norm, even, odd = _weighted_values(v_tiles.index(now), p_tile, weight, norm, even, odd)

    place = program.to(gl.int64) * ROWS
    _store_partial(partial_ptr + place * HEAD, partial_lse_ptr + place, tops, norm, even, odd)
    if SHARES:
        cut = gl.max(cut_kept.load(THREADS), 0)
        sum_own_shares(
            out_ptr, partial_ptr, partial_lse_ptr, done_ptr, cu_seqlens_q_ptr, v_descale_ptr, out_scale, kv_heads,
            program, gl.max(item_kept.load(THREADS), 0), cut >> 16, cut & 0xFFFF, out_stride_token, out_stride_head,
            GROUP, SHARES,
        )  # fmt: skip
