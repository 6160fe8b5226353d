"""The verify kernel by hand for gfx950, in Gluon: both products in FP8, neither K nor V ever converted.

Same cut and partial results as :func:`kernel.verify_attention.verify_kernel`; pages only.  Both products are
transposed, so that a lane of a wave holds one query row (or half of it) from the logits to the output:

    S^T[token, row] = K[token, head] Q^T[head, row]        O^T[head, row] += V^T[head, token] P^T[token, row]

Q and P are each the sum of two E4M3 parts, ``high + low``.  Together these have eight significant bits: all of a
bf16 query, and a weight to 2^-9 of itself.  A power of two for each row keeps queries in range; the logits' factor
takes it out again.  The low part of Q is kept 2^4 times as large, which the product's scale operand takes back.

P never leaves its lane: the tokens that a lane has after the first product are those that it needs for the second
(``kWidth=4``), so a wave owns ``BLOCK`` query rows and all tokens, and no maximum or sum crosses waves.

LDS holds one tile of K and one of V, each filled again as soon as it is in registers.  A page of one KV head is
16 tokens of 256 bytes: copies take its address from scalar registers and offsets that never change.  Their
16-byte chunks are permuted on the way so that no two lanes of a later read meet in a bank.
"""

# Gluon parses these functions itself and forbids most annotations on their parameters.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from kernel import arithmetic, verify_attention

cdna4 = gl.amd.cdna4
async_copy = cdna4.async_copy
# Triton 3.9's name, and the one before.
reinterpret = getattr(gl.shared_memory_descriptor, "reinterpret", None) or gl.shared_memory_descriptor._reinterpret
barrier = gl.barrier  # not in Triton 3.6, where the portable kernel runs instead
# The cut is the other kernel's, to the letter.
find_piece = gluon.jit(verify_attention.find_piece.fn)
power_of_two_near = gluon.jit(arithmetic.power_of_two_near.fn)

LOG2_E = gl.constexpr(1.4426950408889634)
SMALLEST_NORMAL = gl.constexpr(2.0**-126)
HEAD = gl.constexpr(256)
PAGE = gl.constexpr(16)
LARGEST_QUERY = gl.constexpr(64.0)  # a row's largest element, up to a factor of 4: E4M3 ends at 448
LARGEST_WEIGHT = gl.constexpr(8.0)  # log2
NO_LOGIT = gl.constexpr(-1e30)  # below every logit, and finite
LOW_PART = gl.constexpr(16.0)  # what the low part of Q is multiplied by …
LOW_PART_SCALE = gl.constexpr(123)  # … and 2^-4 as an exponent with bias 127, the scale of that product


# --- layouts ---


@gluon.constexpr_function
def powers(start, end):
    """1, 2, 4, ... from ``start`` up to below ``end``."""
    return [1 << i for i in range(start.bit_length() - 1, end.bit_length() - 1)]


@gluon.constexpr_function
def turns(block):
    """What each of a token's four low bits XORs into the place of its 16-byte chunks.

    Neither K's reads (the rows of a block at one place in the head) nor V's transposing reads (8 tokens of two
    groups of lanes) then meet in a bank; the tests count that in the emulator.
    """
    return [16, 32, 64, 128] if block == 16 else [32, 64, 16, 128]


@gluon.constexpr_function
def page_in_lds():
    """A page as the copies write it: (token, byte)."""
    return gl.SharedLinearLayout([[0, n] for n in powers(1, 256)] + [[n, 0] for n in powers(1, 16)])


@gluon.constexpr_function
def tile_in_lds(tile, block):
    """A tile as the products read it: (row, byte).

    With blocks of 16, rows are tokens in another order, see :func:`token_of_row`.
    """
    rows = ([1, 2, 4, 16, 24] if block == 16 else [1, 2, 4, 8, 16]) + powers(32, tile)
    turned = turns(block) + [0] * len(rows)
    return gl.SharedLinearLayout([[0, n] for n in powers(1, 256)] + [list(x) for x in zip(rows, turned)])  # noqa: B905


@gluon.constexpr_function
def words_in_lds(tile):
    """A tile of V as 32-bit words: (token, word)."""
    return gl.SharedLinearLayout([[0, n] for n in powers(1, 64)] + [[n, 0] for n in powers(1, tile)])


@gluon.jit
def token_of_row(row, BLOCK: gl.constexpr):
    """Which token of a tile is its ``row``: the order in which products of blocks of 16 leave P as they need it."""
    if BLOCK == 16:
        row = (row & ~24) + ((row >> 3) & 1) * 16 + (((row >> 3) ^ (row >> 4)) & 1) * 8
    return row


# --- scalars ---


@gluon.jit
def uniform(x):
    """An int32 that is the same in all lanes, in a scalar register: then what follows from it is scalar too."""
    return gl.inline_asm_elementwise("v_readfirstlane_b32 $0, $1", "=s,v", [x], gl.int32, True, 1)


# --- pairs ---


@gluon.jit
def pairs(x):
    """Neighbouring rows of fp32 ``x`` [2 n, m] as one 64-bit number [n, m]: two registers, and no instruction."""
    low, high = gl.split(gl.permute(gl.reshape(x, [x.shape[0] // 2, 2, x.shape[1]]), [0, 2, 1]))
    low, high = low.to(gl.uint32, bitcast=True), high.to(gl.uint32, bitcast=True)
    return low.to(gl.uint64) | (high.to(gl.uint64) << 32)


@gluon.jit
def rows_of_pairs(x):
    """The inverse of :func:`pairs`."""
    low, high = x.to(gl.uint32).to(gl.float32, bitcast=True), (x >> 32).to(gl.uint32).to(gl.float32, bitcast=True)
    return gl.reshape(gl.permute(gl.join(low, high), [0, 2, 1]), [2 * x.shape[0], x.shape[1]])


@gluon.jit
def difference(x, y):
    """``x - y`` of pairs in one instruction for both: LLVM makes two of it."""
    return gl.inline_asm_elementwise(
        "v_pk_add_f32 $0, $1, $2 neg_lo:[0,1] neg_hi:[0,1]", "=v,v,v", [x, y], gl.uint64, True, 1
    )


@gluon.jit
def product(x, y):
    """``x * y`` of pairs in one instruction for both."""
    return gl.inline_asm_elementwise("v_pk_mul_f32 $0, $1, $2", "=v,v,v", [x, y], gl.uint64, True, 1)


@gluon.jit
def in_place(x):
    """fp32 ``x``, by no instruction; but what it follows from comes before the next copy or barrier, the rest behind.

    Without it Triton 3.7 reads V while the logits still hold their registers, and spills.
    """
    return gl.inline_asm_elementwise("", "=v,0", [x], gl.float32, False, 1)


# --- pages ---


@gluon.jit
def lane_number():
    """0 to 63: a scalar that differs between the lanes of a wave."""
    return gl.inline_asm_elementwise(
        "v_mbcnt_lo_u32_b32 $0, -1, 0\nv_mbcnt_hi_u32_b32 $0, -1, $0", "=&v", [], gl.int32, True, 1
    )


@gluon.jit
def load_pages(index_row, tile, lane, last_page, PAGES: gl.constexpr):
    """Page numbers of a tile, one a lane; past the end the last again, so that nothing else is touched."""
    entry = gl.minimum(tile * PAGES + (lane & (PAGES - 1)), last_page)
    return gl.load(index_row + entry).to(gl.int32)


@gluon.constexpr_function
def read_lane(lane):
    """The instruction that copies a lane's value to a scalar register."""
    return f"v_readlane_b32 $0, $1, {lane}"


@gluon.jit
def page_offset(pages, stride_page, N: gl.constexpr):
    """Where a tile's page ``N`` starts, from page 0, in bytes.

    Read by hand, or LLVM keeps page numbers in vector registers and loops over the lanes.  Not pure: where it stands
    decides what the wait for the load behind ``pages`` waits for.
    """
    page = gl.inline_asm_elementwise(read_lane(N), "=s,v", [pages], gl.int32, False, 1)
    return page.to(gl.int64) * stride_page


@gluon.jit
def page_offsets(pages, stride_page, N: gl.constexpr, PAGES: gl.constexpr):
    """All of a tile's, as a tuple from page ``N`` on."""
    offsets = (page_offset(pages, stride_page, N),)
    if N < PAGES - 1:
        offsets = offsets + page_offsets(pages, stride_page, N + 1, PAGES)
    return offsets


@gluon.jit
def start_copy(tile, base, offsets, chunks, PAGES: gl.constexpr):
    """Start the copies of a tile's pages into LDS."""
    view = reinterpret(tile, gl.float8e4nv, [PAGES, PAGE, HEAD], page_in_lds())
    for n in gl.static_range(PAGES):
        async_copy.buffer_load_to_shared(view.index(n), base + offsets[n], chunks)
    async_copy.commit_group()


# --- one step ---


@gluon.jit
def logits(k, q_high, q_low, low_scale, zero):
    """S^T [TILE, ROWS] of a tile, without the rows' factors."""
    s = cdna4.mfma_scaled(k, None, "e4m3", q_low, low_scale, "e4m3", zero)
    return cdna4.mfma_scaled(k, None, "e4m3", q_high, None, "e4m3", s)


@gluon.jit
def softmax_step(s, factor, top, norm, acc):
    """Weights of a tile, up to 2^8: E4M3 keeps them apart from there down to 2^-17 of the largest."""
    new_top = gl.maximum(top, gl.max(s, 0) * factor - LARGEST_WEIGHT)
    weight = gl.exp2(s * factor[None, :] - new_top[None, :])
    shrink = gl.exp2(top - new_top)
    return weight, new_top, norm * shrink + gl.sum(weight, 0), acc * shrink[None, :]


@gluon.jit
def weighted_values(v, weight, acc, P: gl.constexpr):
    """``acc`` and a tile's O^T [HEAD, ROWS]."""
    high = weight.to(gl.float8e4nv)
    low = rows_of_pairs(difference(pairs(weight), pairs(high.to(gl.float32)))).to(gl.float8e4nv)
    acc = cdna4.mfma_scaled(v, None, "e4m3", gl.convert_layout(low, P, assert_trivial=True), None, "e4m3", acc)
    return cdna4.mfma_scaled(v, None, "e4m3", gl.convert_layout(high, P, assert_trivial=True), None, "e4m3", acc)


# Counts that change with the batch must not make Triton compile again in a running server.
@gluon.jit(do_not_specialize=["batch", "kv_heads", "slots", "even_pieces", "index_stride"])
def cdna4_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    partial_ptr,  # fp16 (launched programs, ROWS, HEAD): means of V, weighted by exp2(s - max)
    partial_lse_ptr,  # fp32 (launched programs, ROWS): log2 of the sums of exp2(s)
    cu_seqlens_q_ptr,
    lengths_ptr,
    index_ptr,  # block table
    k_descale_ptr,  # one fp32, or None
    logit_scale,  # softmax scale, times k_descale where that is a number
    batch,
    kv_heads,
    slots,
    even_pieces,
    index_stride,
    q_stride_token,
    q_stride_head,
    stride_page,  # of K and of V, in bytes
    stride_slot,
    stride_head,
    GROUP: gl.constexpr,
    ROWS: gl.constexpr,
    BLOCK: gl.constexpr,  # rows of a wave: 16 or 32
    TILE: gl.constexpr,
    MIN_TILES: gl.constexpr,
    BATCH_BLOCK: gl.constexpr,
):
    """One piece of one item."""
    WAVES: gl.constexpr = ROWS // BLOCK
    PAGES: gl.constexpr = TILE // PAGE
    MMA: gl.constexpr = gl.amd.AMDMFMALayout(
        version=4,
        instr_shape=[BLOCK, BLOCK, 2048 // BLOCK],
        transposed=False,
        warps_per_cta=[1, WAVES],
    )
    K: gl.constexpr = gl.DotOperandLayout(0, MMA, 16)
    Q: gl.constexpr = gl.DotOperandLayout(1, MMA, 16)
    V: gl.constexpr = gl.DotOperandLayout(0, MMA, 4)  # 4: the order in which the first product leaves its rows
    P: gl.constexpr = gl.DotOperandLayout(1, MMA, 4)
    ROW: gl.constexpr = gl.SliceLayout(0, MMA)
    COPY: gl.constexpr = gl.BlockedLayout([1, 16], [4, 16], [WAVES, 1], [1, 0])
    WORD: gl.constexpr = gl.BlockedLayout([1, 4], [4, 16], [WAVES, 1], [1, 0])
    BATCH: gl.constexpr = gl.BlockedLayout([BATCH_BLOCK // 64 if BATCH_BLOCK > 64 else 1], [64], [WAVES], [0])

    program = gl.program_id(0)
    seq, head, _, _, first, last, length = find_piece(
        cu_seqlens_q_ptr, lengths_ptr, batch, kv_heads, slots, even_pieces, gl.arange(0, BATCH_BLOCK, BATCH), program,
        TILE, MIN_TILES, BATCH_BLOCK, False,
    )  # fmt: skip
    if first >= last:
        return  # more programs than pieces
    seq, head, first, last, length = uniform(seq), uniform(head), uniform(first), uniform(last), uniform(length)
    lane = lane_number()
    last_page = (length - 1) // PAGE
    index_row = index_ptr + seq.to(gl.int64) * index_stride
    pages_now = load_pages(index_row, first, lane, last_page, PAGES)
    pages = load_pages(index_row, first + 1, lane, last_page, PAGES)

    # [16, HEAD]: what a lane copies of a page, 4 tokens a wave
    slot = gl.arange(0, PAGE, gl.SliceLayout(1, COPY))
    byte = gl.arange(0, HEAD, gl.SliceLayout(0, COPY))
    turn = slot * 16 if BLOCK == 16 else (slot & 3) * 32 + (slot & 4) * 4 + (slot & 8) * 16
    chunks = slot[:, None] * stride_slot + (byte[None, :] ^ turn[:, None])
    chunks = gl.max_contiguous(gl.multiple_of(chunks, [1, 16]), [1, 16])
    k_head = k_ptr + head.to(gl.int64) * stride_head
    v_head = v_ptr + head.to(gl.int64) * stride_head
    k_tile = gl.allocate_shared_memory(gl.float8e4nv, [TILE, HEAD], tile_in_lds(TILE, BLOCK))
    v_tile = gl.allocate_shared_memory(gl.float8e4nv, [TILE, HEAD], tile_in_lds(TILE, BLOCK))
    offsets = page_offsets(pages_now, stride_page, 0, PAGES)
    start_copy(k_tile, k_head, offsets, chunks, PAGES)
    start_copy(v_tile, v_head, offsets, chunks, PAGES)

    # Q^T [HEAD, ROWS].  Rows past the last query token repeat it; nothing reads what comes of them.
    q_start = uniform(gl.load(cu_seqlens_q_ptr + seq).to(gl.int32))
    q_length = uniform(gl.load(cu_seqlens_q_ptr + seq + 1).to(gl.int32)) - q_start
    prefix = length - q_length
    row = gl.arange(0, ROWS, gl.SliceLayout(0, Q))
    d = gl.arange(0, HEAD, gl.SliceLayout(1, Q))
    token = gl.minimum(row // GROUP, gl.maximum(q_length, 1) - 1)
    q_offset = (gl.where(q_length > 0, q_start, 0) + token).to(gl.int64) * q_stride_token
    q_offset += (head * GROUP + row % GROUP) * q_stride_head
    q = gl.load(q_ptr + q_offset[None, :] + d[:, None]).to(gl.float32)
    scale = logit_scale * LOG2_E
    if k_descale_ptr is not None:
        scale *= gl.load(k_descale_ptr)
    unit, inverse = power_of_two_near(gl.max(gl.abs(q), 0))  # [ROWS]
    # A negative scale goes into Q too, so that a row's largest product has its largest logit.
    into_range = inverse * gl.where(scale < 0, -LARGEST_QUERY, LARGEST_QUERY)
    q = rows_of_pairs(product(pairs(q), pairs(gl.full_like(q, 1.0) * into_range[None, :])))
    q_high = gl.convert_layout(q.to(gl.float8e4nv), Q, assert_trivial=True)
    q_low = product(difference(pairs(q), pairs(q_high.to(gl.float32))), pairs(gl.full_like(q, LOW_PART)))
    q_low = gl.convert_layout(rows_of_pairs(q_low).to(gl.float8e4nv), Q, assert_trivial=True)
    SCALE: gl.constexpr = cdna4.get_mfma_scale_layout(Q, [ROWS, HEAD // 32])
    low_scale = gl.full([ROWS, HEAD // 32], LOW_PART_SCALE, gl.uint8, SCALE)
    # Not 0 even for a row of zeros: that times a masked logit would be NaN.
    factor = gl.maximum(gl.abs(scale) * (1.0 / LARGEST_QUERY) * unit, SMALLEST_NORMAL)
    factor = gl.convert_layout(factor, ROW)

    zero = gl.zeros([TILE, ROWS], gl.float32, MMA)
    top = gl.full([ROWS], NO_LOGIT, gl.float32, ROW)
    norm = gl.zeros([ROWS], gl.float32, ROW)
    acc = gl.zeros([HEAD, ROWS], gl.float32, MMA)  # O^T
    # Tiles that all rows see whole, but for the piece's last, after which nothing is copied.
    whole = gl.maximum(first, gl.minimum(last - 1, (prefix + 1) // TILE))
    for tile in range(first, whole):
        # One wait before each product's reads is for its copies.  The second of each waits for none: it is a barrier
        # between these reads and the next copies into the same place, which Triton 3.7 and 3.8 do not put there
        # themselves, and gl.barrier() would wait for all copies in 3.7.
        async_copy.wait_group(1)
        k = async_copy.load_shared_relaxed(k_tile, K)
        s = logits(k, q_high, q_low, low_scale, zero)
        offsets = page_offsets(pages, stride_page, 0, PAGES)
        pages = load_pages(index_row, tile + 2, lane, last_page, PAGES)
        async_copy.wait_group(1)
        start_copy(k_tile, k_head, offsets, chunks, PAGES)
        weight, top, norm, acc = softmax_step(s, factor, in_place(top), norm, acc)
        weight = in_place(weight)
        async_copy.wait_group(1)
        v = async_copy.load_shared_relaxed(v_tile.permute([1, 0]), V)
        async_copy.wait_group(1)
        start_copy(v_tile, v_head, offsets, chunks, PAGES)
        acc = weighted_values(v, weight, acc, P)

    # The last tile, or two if few tokens are past the first that some row must not see.
    t = token_of_row(gl.arange(0, TILE, gl.SliceLayout(1, MMA)), BLOCK)
    own_token = gl.minimum(gl.arange(0, ROWS, ROW) // GROUP, gl.maximum(q_length, 1) - 1)
    visible = prefix + own_token  # [ROWS] last position a row may see
    v_words = reinterpret(v_tile, gl.int32, [TILE, HEAD // 4], words_in_lds(TILE))
    word_token = gl.arange(0, TILE, gl.SliceLayout(1, WORD))
    for tile in range(whole, last):
        async_copy.wait_group(0)
        if (tile + 1) * TILE > length:
            # A weight of zero times NaN is NaN, and anything may be in slots past the end.
            words = v_words.load(WORD)
            v_words.store(gl.where((tile * TILE + word_token)[:, None] < length, words, 0))
        barrier()
        s = logits(async_copy.load_shared_relaxed(k_tile, K), q_high, q_low, low_scale, zero)
        if (tile + 1) * TILE > prefix + 1:
            s = gl.where((tile * TILE + t)[:, None] <= visible[None, :], s, float("-inf"))
        weight, top, norm, acc = softmax_step(s, factor, top, norm, acc)
        acc = weighted_values(async_copy.load_shared_relaxed(v_tile.permute([1, 0]), V), weight, acc, P)
        if tile + 1 < last:
            barrier()
            offsets = page_offsets(load_pages(index_row, tile + 1, lane, last_page, PAGES), stride_page, 0, PAGES)
            start_copy(k_tile, k_head, offsets, chunks, PAGES)
            start_copy(v_tile, v_head, offsets, chunks, PAGES)

    # Divided by its sum a partial result is a mean of V and fits fp16: half the traffic of fp32.
    place = program.to(gl.int64) * ROWS + gl.arange(0, ROWS, ROW)  # [ROWS]
    d = gl.arange(0, HEAD, gl.SliceLayout(1, MMA))
    share = 1.0 / gl.where(norm > 0.0, norm, 1.0)  # a row may see nothing of this piece
    gl.store(partial_ptr + place[None, :] * HEAD + d[:, None], (acc * share[None, :]).to(gl.float16))
    gl.store(partial_lse_ptr + place, top + gl.log2(norm))
