"""How programs of the Hopper kernel sum up their item's output themselves, each a share of it."""

# Gluon parses these functions itself and forbids most annotations on their parameters.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

barrier = getattr(gl, "barrier", None) or gl.thread_barrier  # Triton 3.9's name, and 3.6's
HEAD = gl.constexpr(256)
ROWS = gl.constexpr(64)
WARPS = gl.constexpr(4)
THREADS = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))
PARTIAL = gl.constexpr(gl.BlockedLayout([1, 8], [1, 32], [4, 1], [1, 0]))


@gluon.jit
def sum_own_shares(
    out_ptr,
    partial_ptr,
    partial_lse_ptr,
    done_ptr,
    cu_seqlens_q_ptr,
    v_descale_ptr,
    out_scale,
    kv_heads,
    program,
    item,
    piece,  # of the item, this program's
    pieces,  # of the item
    out_stride_token,
    out_stride_head,
    GROUP: gl.constexpr,
    SHARES: gl.constexpr,
):
    """Wait for the item's other programs, which are all on the device, and sum up this one's shares of the output."""
    done = done_ptr + item
    barrier()
    gl.atomic_add(done, 1, sem="release")
    v_scale = out_scale
    if v_descale_ptr is not None:
        v_scale *= gl.load(v_descale_ptr)
    start = (program - piece).to(gl.int64) * ROWS
    q_start = gl.load(cu_seqlens_q_ptr + item // kv_heads).to(gl.int64)
    q_length = (gl.load(cu_seqlens_q_ptr + item // kv_heads + 1) - q_start).to(gl.int32)
    out_item = out_ptr + q_start * out_stride_token + item % kv_heads * GROUP * out_stride_head
    _wait(done, pieces)
    one = gl.arange(0, 32 * WARPS, THREADS)
    counter = done + one * 0
    left = gl.atomic_add(counter, one * 0 + 1, mask=one == 0, sem="relaxed")
    for share in range(piece, SHARES, pieces):
        _reduce_share(
            out_item, partial_ptr + start * HEAD, partial_lse_ptr + start,
            share, pieces, q_length, v_scale, out_stride_token, out_stride_head, GROUP, SHARES,
        )  # fmt: skip
    # The last to have seen it leaves the counter as it was found.
    gl.store(counter, one * 0, (one == 0) & (left == 2 * pieces - 1))


@gluon.jit
def _wait(counter, count):
    """Wait until the counter has reached ``count``, and see what was written before it did."""
    seen = 0
    while seen < count:
        seen = gl.inline_asm_elementwise(
            "nanosleep.u32 40; ld.acquire.gpu.global.b32 $0, [$1];",
            "=r,l",
            [counter],
            dtype=gl.int32,
            is_pure=False,
            pack=1,
        )
    barrier()


@gluon.jit
def write_zeros(
    out_ptr,
    cu_seqlens_q_ptr,
    kv_heads,
    item,
    stride_token,
    stride_head,
    GROUP: gl.constexpr,
):
    """Write an item's output as zeros."""
    seq = item // kv_heads
    q_start = gl.load(cu_seqlens_q_ptr + seq).to(gl.int64)
    q_length = (gl.load(cu_seqlens_q_ptr + seq + 1) - q_start).to(gl.int32)
    row = gl.arange(0, GROUP, gl.SliceLayout(1, PARTIAL))
    d = gl.arange(0, HEAD, gl.SliceLayout(0, PARTIAL))
    zeros = gl.zeros([GROUP, HEAD], gl.bfloat16, PARTIAL)
    for token in range(q_length):
        offset = (q_start + token) * stride_token + (item % kv_heads * GROUP + row) * stride_head
        gl.store(out_ptr + offset[:, None] + d[None, :], zeros)


@gluon.jit
def _reduce_share(
    out_item,
    partial,
    partial_lse,
    share,
    pieces,
    q_length,
    v_scale,
    out_stride_token,
    out_stride_head,
    GROUP: gl.constexpr,
    SHARES: gl.constexpr,
):
    """One of the ``SHARES`` equal parts of an item's output, from its partial results."""
    SIZE: gl.constexpr = ROWS * HEAD // SHARES
    COLUMNS: gl.constexpr = SIZE if SIZE < HEAD else HEAD
    BLOCK: gl.constexpr = SIZE // COLUMNS
    CHUNK: gl.constexpr = WARPS * 4096 // SIZE
    LANES: gl.constexpr = COLUMNS // 8  # of one row
    # Pieces lie in registers, and only where there are too few rows also in lanes and warps.
    PART: gl.constexpr = gl.BlockedLayout(
        [1, 1, 8], [32 // LANES, 1, LANES], [1, WARPS, 1] if BLOCK >= WARPS else [WARPS, 1, 1], [2, 1, 0]
    )
    row = share // (HEAD // COLUMNS) * BLOCK + gl.arange(0, BLOCK, gl.SliceLayout(0, gl.SliceLayout(2, PART)))
    d = share % (HEAD // COLUMNS) * COLUMNS + gl.arange(0, COLUMNS, gl.SliceLayout(0, gl.SliceLayout(0, PART)))
    p = gl.arange(0, CHUNK, gl.SliceLayout(1, gl.SliceLayout(2, PART)))
    top = gl.full([BLOCK], float("-inf"), gl.float32, gl.SliceLayout(0, gl.SliceLayout(2, PART)))
    norm = gl.zeros([BLOCK], gl.float32, gl.SliceLayout(0, gl.SliceLayout(2, PART)))
    acc = gl.zeros([BLOCK, COLUMNS], gl.float32, gl.SliceLayout(0, PART))
    for offset in range(0, pieces, CHUNK):
        real = (offset + p < pieces)[:, None]  # [CHUNK, 1]
        place = (offset + p)[:, None] * ROWS + row[None, :]  # [CHUNK, BLOCK]
        # From L2: another SM wrote them.
        lse = gl.load(partial_lse + place, real, float("-inf"), cache_modifier=".cg")
        column = gl.expand_dims(gl.expand_dims(d, 0), 0)
        part = gl.load(
            partial + gl.expand_dims(place, 2) * HEAD + column, gl.expand_dims(real, 2), 0.0, cache_modifier=".cg"
        )  # [CHUNK, BLOCK, COLUMNS]
        new_top = gl.maximum(top, gl.max(lse, 0))
        anchor = gl.where(new_top == float("-inf"), 0.0, new_top)
        weight = gl.exp2(lse - anchor[None, :])
        shrink = gl.exp2(top - anchor)
        norm = norm * shrink + gl.sum(weight, 0)
        wide_shrink = gl.convert_layout(shrink, gl.SliceLayout(1, gl.SliceLayout(0, PART)))
        acc = acc * wide_shrink[:, None] + gl.sum(part.to(gl.float32) * gl.expand_dims(weight, 2), 0)
        top = new_top
    # A padding row sees no key at all; it gets zeros, not 0 / 0.
    factor = gl.convert_layout(v_scale / gl.where(norm > 0, norm, 1.0), gl.SliceLayout(1, gl.SliceLayout(0, PART)))
    result = (acc * factor[:, None]).to(gl.bfloat16)
    row = share // (HEAD // COLUMNS) * BLOCK + gl.arange(0, BLOCK, gl.SliceLayout(1, gl.SliceLayout(0, PART)))
    place = (row // GROUP).to(gl.int64) * out_stride_token + row % GROUP * out_stride_head
    gl.store(out_item + place[:, None] + d[None, :], result, (row // GROUP < q_length)[:, None])
