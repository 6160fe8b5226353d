"""The emulator's arithmetic by itself, against definitions and against NumPy, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from kernel import costs
from kernel.emulator import AccessError, Machine, Memory, UnknownInstruction, formats
from kernel.emulator.listing import parse
from kernel.emulator.machine import pack
from kernel.emulator.wave import Wave
from kernel.emulator.wave import first as register

RNG = np.random.default_rng(0)
END = "\ts_endpgm\n"


def run(code: str, wave_setup: Callable[[Wave], None] | None = None, memory: Memory | None = None, **how: Any) -> Wave:
    """One wave after some lines of code."""
    machine = Machine.of(
        "kernel:\n" + "".join(f"\t{line}\n" for line in code.splitlines()) + END, memory or Memory(), 1
    )
    for name, value in how.items():
        setattr(machine, name, value)
    found = []
    start = machine._start

    def begin(*arguments: Any) -> Wave:
        wave = start(*arguments)
        if wave_setup:
            wave_setup(wave)
        found.append(wave)
        return wave

    machine._start = begin  # type: ignore[method-assign]
    machine.launch([(0, 0, 0)], b"")
    return found[0]


def given(**registers: NDArray[Any]) -> Callable[[Wave], None]:
    """Set vector registers ``v0``, ``v1``, ... before a run; uint64 takes two."""

    def setup(wave: Wave) -> None:
        for name, values in registers.items():
            bits = np.ascontiguousarray(values)
            if bits.dtype.itemsize == 8:
                words = bits.view(np.uint32).reshape(64, 2)
                wave.vectors[register(name)], wave.vectors[register(name) + 1] = words[:, 0], words[:, 1]
            else:
                wave.vectors[register(name)] = bits.view(np.uint32)

    return setup


def floats(wave: Wave, number: int) -> NDArray[np.float32]:
    """A vector register as fp32."""
    return wave.vectors[number].view(np.float32)


def normal(scale: float = 1.0) -> NDArray[np.float32]:
    """64 fp32."""
    return (RNG.standard_normal(64) * scale).astype(np.float32)


def words() -> NDArray[np.uint32]:
    """64 words."""
    return RNG.integers(0, 1 << 32, 64, dtype=np.uint32)


# --- formats ---


def test_e4m3_is_the_ocp_format() -> None:
    """Table 2 of the OCP 8-bit floating point specification: the extremes of E4M3."""
    assert formats.E4M3[0x7E] == 448
    assert formats.E4M3[0x08] == 2.0**-6
    assert formats.E4M3[0x07] == 0.875 * 2.0**-6
    assert formats.E4M3[0x01] == 2.0**-9
    assert np.isnan(formats.E4M3[[0x7F, 0xFF]]).all()
    assert formats.E4M3[0xC0] == -2


def test_conversion_to_e4m3_takes_the_nearest_and_even() -> None:
    codes = np.array([code for code in range(256) if code & 127 != 127], np.uint8)
    assert np.array_equal(formats.to_e4m3(formats.E4M3[codes]), codes), "what is E4M3 stays"
    positive = formats.E4M3[:127].astype(np.float64)
    middles = ((positive[:-1] + positive[1:]) / 2).astype(np.float32)
    even = np.array([code if code % 2 == 0 else code + 1 for code in range(126)])
    assert np.array_equal(formats.to_e4m3(middles), even)
    assert np.array_equal(formats.to_e4m3(np.nextafter(middles, np.float32(np.inf))), np.arange(1, 127))
    assert np.array_equal(formats.to_e4m3(np.nextafter(middles, np.float32(0))), np.arange(126))
    assert list(formats.to_e4m3(np.array([464, 465, -1e9, np.nan, np.inf], np.float32)) & 127) == [
        126,
        127,
        127,
        127,
        127,
    ]


def test_bf16_rounds_to_even() -> None:
    x = np.array([1.0, 1 + 2.0**-8, 1 + 3 * 2.0**-8, -1 - 2.0**-9, np.nan], np.float32)
    assert list(formats.from_bf16(formats.to_bf16(x).astype(np.uint16))[:4]) == [1.0, 1.0, 1 + 2.0**-6, -1.0]
    assert formats.to_bf16(x)[4] == 0x7FC0


# --- vector instructions ---

X, Y, Z = words(), words(), words()
I = X.view(np.int32), Y.view(np.int32), Z.view(np.int32)  # noqa: E741


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("v_add_u32_e32 v3, v0, v1", lambda: X + Y),
        ("v_sub_u32_e64 v3, v0, v1 clamp", lambda: np.where(X > Y, X - Y, 0)),
        ("v_subrev_u32_e32 v3, v0, v1", lambda: Y - X),
        ("v_add3_u32 v3, v0, v1, v2", lambda: X + Y + Z),
        ("v_lshl_add_u32 v3, v0, 3, v1", lambda: (X << 3) + Y),
        ("v_xad_u32 v3, v0, v1, v2", lambda: (X ^ Y) + Z),
        ("v_and_or_b32 v3, v0, v1, v2", lambda: (X & Y) | Z),
        ("v_bfi_b32 v3, v0, v1, v2", lambda: (X & Y) | (~X & Z)),
        ("v_bfe_u32 v3, v0, 5, 7", lambda: (X >> 5) & 127),
        ("v_bfe_i32 v3, v0, 5, 7", lambda: ((((X >> 5) & 127) ^ 64).astype(np.int32) - 64).view(np.uint32)),
        ("v_ashrrev_i32_e32 v3, 4, v0", lambda: (I[0] >> 4).view(np.uint32)),
        ("v_lshrrev_b32_e32 v3, 4, v0", lambda: X >> 4),
        ("v_min_i32_e32 v3, v0, v1", lambda: np.minimum(I[0], I[1]).view(np.uint32)),
        ("v_med3_i32 v3, v0, v1, v2", lambda: np.median(np.stack(I), 0).astype(np.int32).view(np.uint32)),
        ("v_max3_i32 v3, v0, v1, v2", lambda: np.max(np.stack(I), 0).view(np.uint32)),
        ("ds_swizzle_b32 v3, v0 offset:swizzle(SWAP,16)", lambda: X[np.arange(64) ^ 16]),
        ("v_mul_hi_u32 v3, v0, v1", lambda: (X.astype(object) * Y >> 32).astype(np.uint32)),
        ("v_mul_lo_u32 v3, v0, v1", lambda: X * Y),
        ("v_mul_u32_u24_e32 v3, v0, v1", lambda: (X & 0xFFFFFF) * (Y & 0xFFFFFF)),
        ("v_bfrev_b32_e32 v3, v0", lambda: np.array([int(f"{x:032b}"[::-1], 2) for x in X.tolist()], np.uint32)),
        ("v_alignbit_b32 v3, v0, v1, 8", lambda: (X << 24) | (Y >> 8)),
        ("v_bitop3_b32 v3, v0, v1, v2 bitop3:0x96", lambda: X ^ Y ^ Z),
        ("v_bitop3_b32 v3, v0, v1, v2 bitop3:0xca", lambda: (X & Y) | (~X & Z)),
        ("v_perm_b32 v3, v0, v1, 0x0c070c00", lambda: (Y & 255) | ((X >> 24) << 16)),
    ],
)  # fmt: skip
def test_integer_instructions(line: str, expected: Callable[[], NDArray[np.uint32]]) -> None:
    code = line.replace("0x0c070c00", "v4")
    wave = run(code, given(v0=X, v1=Y, v2=Z, v4=np.full(64, 0x0C070C00, np.uint32)))
    assert np.array_equal(wave.vectors[3], expected().astype(np.uint32))


A, B, C = normal(), normal(), normal()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("v_add_f32_e32 v3, v0, v1", lambda: A + B),
        ("v_sub_f32_e64 v3, |v0|, -v1", lambda: np.abs(A) + B),
        ("v_mul_f32_e32 v3, 0.5, v1", lambda: B / 2),
        ("v_fma_f32 v3, v0, v1, -v2", lambda: (A.astype(float) * B - C).astype(np.float32)),
        ("v_max3_f32 v3, v0, v1, v2", lambda: np.maximum(np.maximum(A, B), C)),
        ("v_exp_f32_e32 v3, v0", lambda: np.exp2(A.astype(float)).astype(np.float32)),
        ("v_ldexp_f32 v3, v0, 3", lambda: A * 8),
        ("v_rndne_f32_e32 v3, v0", lambda: np.rint(A)),
    ],
)
def test_float_instructions(line: str, expected: Callable[[], NDArray[np.float32]]) -> None:
    wave = run(line, given(v0=A, v1=B, v2=C))
    assert np.array_equal(floats(wave, 3), expected())


def test_mixed_precision() -> None:
    halves = A.astype(np.float16).view(np.uint16).astype(np.uint32) << 16
    wave = run("v_fma_mix_f32 v3, v0, v1, v2 op_sel:[1,0,0] op_sel_hi:[1,0,0]", given(v0=halves, v1=B, v2=C))
    exact = A.astype(np.float16).astype(float) * B + C
    assert np.array_equal(floats(wave, 3), exact.astype(np.float32))


def test_multiply_accumulate_adds_to_its_target() -> None:
    wave = run("v_fmac_f32_e32 v2, v0, v1", given(v0=A, v1=B, v2=C))
    assert np.array_equal(floats(wave, 2), (A.astype(float) * B + C).astype(np.float32))


def test_packed_instructions_choose_halves_and_signs() -> None:
    setup = given(v0=A, v1=B, v2=C, v3=A)
    wave = run("v_pk_add_f32 v[4:5], v[0:1], v[2:3] neg_lo:[0,1] neg_hi:[0,1]", setup)
    assert np.array_equal(floats(wave, 4), A - C)
    assert np.array_equal(floats(wave, 5), B - A)
    wave = run("v_pk_mul_f32 v[4:5], v[0:1], v[2:3] op_sel:[1,0] op_sel_hi:[0,0]", setup)
    assert np.array_equal(floats(wave, 4), B * C)
    assert np.array_equal(floats(wave, 5), A * C)
    wave = run("v_pk_mov_b32 v[4:5], v[0:1], v[2:3] op_sel:[1,0]", setup)
    assert np.array_equal(floats(wave, 4), B)
    assert np.array_equal(floats(wave, 5), C)


def test_64_bit_sums_carry() -> None:
    wide = RNG.integers(0, 1 << 63, 64, dtype=np.uint64)
    other = RNG.integers(0, 1 << 63, 64, dtype=np.uint64)
    lines = ["v_add_co_u32_e32 v4, vcc, v0, v2", "v_addc_co_u32_e32 v5, vcc, v1, v3, vcc"]
    code = "\n".join([*lines, "v_lshl_add_u64 v[6:7], v[0:1], 2, v[2:3]"])
    wave = run(code, given(v0=wide, v2=other))
    low_high = wave.vectors[4].astype(np.uint64) | wave.vectors[5].astype(np.uint64) << np.uint64(32)
    assert np.array_equal(low_high, wide + other)
    shifted = wave.vectors[6].astype(np.uint64) | wave.vectors[7].astype(np.uint64) << np.uint64(32)
    assert np.array_equal(shifted, (wide << np.uint64(2)) + other)


def test_fp8_conversions_fill_one_half_and_undo_each_other() -> None:
    code = (
        "v_mov_b32_e32 v2, 0\n"
        "v_cvt_scalef32_pk_fp8_f32 v2, v0, v1, 2.0\n"
        "v_cvt_pk_fp8_f32 v2, v1, v0 op_sel:[0,0,1]\n"
        "v_cvt_scalef32_pk_f32_fp8 v[4:5], v2, 2.0\n"
        "v_cvt_scalef32_pk_bf16_fp8 v6, v2, 1.0 op_sel:[1,0,0]"
    )
    wave = run(code, given(v0=A, v1=B))
    assert np.array_equal(floats(wave, 4), formats.E4M3[formats.to_e4m3(A / 2)] * 2)
    assert np.array_equal(floats(wave, 5), formats.E4M3[formats.to_e4m3(B / 2)] * 2)
    assert np.array_equal(
        formats.from_bf16((wave.vectors[6] & 0xFFFF).astype(np.uint16)), formats.E4M3[formats.to_e4m3(B)]
    )


def test_sub_dword_sources_and_targets() -> None:
    wave = run("v_add_u32_sdwa v3, v0, v1 dst_sel:WORD_1 dst_unused:UNUSED_PRESERVE src0_sel:BYTE_2 src1_sel:WORD_0",
               given(v0=X, v1=Y, v3=Z))  # fmt: skip
    total = ((X >> 16) & 255) + (Y & 0xFFFF)
    assert np.array_equal(wave.vectors[3], (Z & 0xFFFF) | ((total & 0xFFFF) << 16))


def test_lanes_that_are_off_keep_their_registers_and_compare_as_zero() -> None:
    lines = ["s_mov_b64 exec, 0xf0", "v_mov_b32_e32 v1, 7", "v_cmp_gt_u32_e64 s[4:5], v1, 3", "s_mov_b64 exec, -1"]
    code = "\n".join([*lines, "v_cndmask_b32_e64 v2, 1, 9, s[4:5]"])
    wave = run(code, given(v1=np.zeros(64, np.uint32)))
    assert wave.vectors[1].tolist() == [7 if 4 <= lane < 8 else 0 for lane in range(64)]
    assert wave.scalar64("s[4:5]") == 0xF0
    assert wave.vectors[2].tolist() == [9 if 4 <= lane < 8 else 1 for lane in range(64)]


def test_lanes_exchange_values() -> None:
    lanes = np.arange(64, dtype=np.uint32)
    code = "\n".join([
        "v_mov_b32_dpp v1, v0 row_shr:1 row_mask:0xf bank_mask:0xf bound_ctrl:1",
        "v_add_u32_dpp v2, v0, v0 quad_perm:[1,0,3,2] row_mask:0xf bank_mask:0xf",
        "v_readlane_b32 s4, v0, 17",
        "v_mbcnt_lo_u32_b32 v3, -1, 0",
        "v_mbcnt_hi_u32_b32 v3, -1, v3",
        "ds_bpermute_b32 v4, v5, v0",
        "v_permlane32_swap_b32_e32 v6, v7",
    ])  # fmt: skip
    wave = run(code, given(v0=lanes, v5=(63 - lanes) * 4, v6=lanes, v7=lanes + 100))
    assert wave.vectors[1].tolist() == [0 if lane % 16 == 0 else lane - 1 for lane in range(64)]
    assert wave.vectors[2].tolist() == [(lane ^ 1) + lane for lane in range(64)]
    assert wave.scalar("s4") == 17
    assert wave.vectors[3].tolist() == list(range(64))
    assert wave.vectors[4].tolist() == list(range(63, -1, -1))
    assert wave.vectors[6].tolist() == [*range(32), *range(100, 132)]
    assert wave.vectors[7].tolist() == [*range(32, 64), *range(132, 164)]


# --- scalars ---


@pytest.mark.parametrize(
    ("code", "result", "condition"),
    [
        ("s_add_u32 s4, s0, s1", 0x00000003, 1),
        ("s_add_i32 s4, s0, s1", 0x00000003, 0),
        ("s_sub_u32 s4, s1, s0", 0x00000005, 1),
        ("s_min_i32 s4, s0, s1", 0xFFFFFFFF, 1),
        ("s_mul_hi_i32 s4, s0, s1", 0xFFFFFFFF, 0),
        ("s_mul_hi_u32 s4, s0, s1", 0x00000003, 0),
        ("s_ashr_i32 s4, s0, 4", 0xFFFFFFFF, 1),
        ("s_bfe_i32 s4, s1, 0x30000", 0xFFFFFFFC, 1),
        ("s_bfe_u32 s4, s1, 0x30000", 0x00000004, 1),
        ("s_lshl2_add_u32 s4, s1, s1", 0x00000014, 0),
        ("s_movk_i32 s4, 0xfffe", 0xFFFFFFFE, 0),
    ],
)
def test_scalar_instructions(code: str, result: int, condition: int) -> None:
    wave = run(f"s_mov_b32 s0, -1\ns_mov_b32 s1, 4\ns_cmp_eq_u32 s0, s1\n{code}")
    assert (wave.scalar("s4"), wave.scc) == (result, condition)


def test_branches_and_loops() -> None:
    loop = ["s_add_u32 s1, s1, s0", "s_sub_u32 s0, s0, 1", "s_cmp_lg_u32 s0, 0", "s_cbranch_scc1 .L1"]
    wave = run("\n".join(["s_mov_b32 s0, 5", "s_mov_b32 s1, 0", ".L1:", *loop]))
    assert wave.scalar("s1") == 15


# --- matrix products ---


@pytest.mark.parametrize(("size", "depth"), [(32, 64), (16, 128)])
@pytest.mark.parametrize("scaled", [False, True])
def test_fp8_products(size: int, depth: int, scaled: bool) -> None:
    """D = A B^T + C with the layouts of the guide: lane l holds row l % size, and of K its part l // size."""
    a, b = RNG.integers(0, 127, (2, size, depth), dtype=np.uint8)
    share, count = depth * size // 64, size * size // 64
    c = RNG.standard_normal((count, 64)).astype(np.float32)

    def setup(wave: Wave) -> None:
        for start, matrix in ((0, a), (16, b)):
            parts = np.concatenate([matrix[:, g * share : (g + 1) * share] for g in range(64 // size)])
            wave.vectors[start : start + share // 4] = parts.view(np.uint32).T
        wave.vectors[64 : 64 + count] = c.view(np.uint32)
        wave.vectors[200] = 123 | 127 << 8

    last = [share // 4 - 1, 16 + share // 4 - 1, 64 + count - 1]
    name = f"v_mfma_{'scale_' if scaled else ''}f32_{size}x{size}x{depth}_f8f6f4"
    scales = ", v200, v200 op_sel:[0,1,0] op_sel_hi:[0,0,0]" if scaled else ""
    wave = run(f"{name} v[64:{last[2]}], v[0:{last[0]}], v[16:{last[1]}], v[64:{last[2]}]{scales}", setup)
    product = formats.E4M3[a].astype(float) @ formats.E4M3[b].astype(float).T * (2.0**-4 if scaled else 1)
    for number in range(count):
        for lane in range(64):
            row = (8 if size == 32 else 4) * (number // 4) + 4 * (lane // size) + number % 4
            assert wave.vectors[64 + number].view(np.float32)[lane] == np.float32(
                product[row, lane % size] + c[number, lane]
            )


# --- memory ---


def test_transposing_reads() -> None:
    """Sixteen lanes read 8 bytes each, two lanes a row of 16; lane n gets column n."""
    code = "ds_write_b64 v0, v[2:3]\nds_read_b64_tr_b8 v[4:5], v0"
    lanes = np.arange(64)
    data = np.arange(512, dtype=np.uint16).astype(np.uint8).reshape(64, 8)
    words_ = data.view(np.uint32)
    wave = run(code, given(v0=(lanes * 8).astype(np.uint32), v2=words_[:, 0].copy(), v3=words_[:, 1].copy()))
    got = np.stack([wave.vectors[4], wave.vectors[5]], 1).copy().view(np.uint8)
    for lane in lanes:
        group = data[lane // 16 * 16 : lane // 16 * 16 + 16].reshape(8, 16)
        assert got[lane].tolist() == group[:, lane % 16].tolist()


def test_loads_outside_a_block_are_errors() -> None:
    memory = Memory()
    address = memory.put(np.arange(4, dtype=np.uint32))

    def setup(wave: Wave) -> None:
        wave.vectors[0], wave.vectors[1] = np.uint32(address & 0xFFFFFFFF), np.uint32(address >> 32)

    assert run("global_load_dword v2, v[0:1], off offset:12", setup, memory).vectors[2].tolist() == [3] * 64
    with pytest.raises(AccessError, match="outside all blocks"):
        run("global_load_dword v2, v[0:1], off offset:13", setup, memory)


def test_late_loads_arrive_at_their_wait() -> None:
    memory = Memory()
    address = memory.put(np.arange(4, dtype=np.uint32))

    def setup(wave: Wave) -> None:
        wave.vectors[0], wave.vectors[1] = np.uint32(address & 0xFFFFFFFF), np.uint32(address >> 32)

    code = "global_load_dword v2, v[0:1], off offset:4\nv_mov_b32_e32 v3, v2\ns_waitcnt vmcnt(0)\nv_mov_b32_e32 v4, v2"
    wave = run(code, setup, memory, late=True)
    assert np.isnan(wave.vectors[3].view(np.float32)).all()
    assert wave.vectors[4].tolist() == [1] * 64


@pytest.mark.parametrize(
    "line",
    ["v_frexp_exp_i32_f32_e32 v0, v1", "s_getpc_b64 s[0:1]", "v_add_u32_e32 v0, v1, v2 mul:2", "ds_add_u32 v0, v1"],
)
def test_what_it_does_not_know_is_an_error_with_its_name(line: str) -> None:
    with pytest.raises(UnknownInstruction, match=line.split()[0].removesuffix("_e32")):
        run(line)


def test_arguments_are_aligned_to_their_size() -> None:
    assert pack([("i32", 1), ("*fp8", 2), ("fp32", 1.0), ("i32", -1)]).hex() == (
        "01000000" + "00000000" + "0200000000000000" + "0000803f" + "ffffffff"
    )


# --- costs ---


def test_costs_of_a_loop_by_hand() -> None:
    """128 tokens are 64 KB; two waves on four SIMDs."""
    body = "\n".join(["\tv_mfma_f32_32x32x64_f8f6f4 v[0:15], v[16:23], v[24:31], v[0:15]"] * 4 + [
        "\tv_exp_f32_e32 v0, v0", "\tv_mul_lo_u32 v0, v0, v0", "\tv_add_f32_e32 v0, v0, v0",
        "\tds_read_b128 v[0:3], v4", "\tbuffer_load_dwordx4 v0, s[0:3], 0 offen lds", "\ts_cbranch_scc1 .L",
    ])  # fmt: skip
    cost = costs.loop_cost(parse(f"k:\n.L:\n{body}\n\ts_endpgm\n"), tile=128, waves=2)
    assert cost is not None
    assert cost.instructions == 10 * 2 / 64
    assert cost.matrix_cycles == 4 * 64 * (2 / 4) / 64
    assert cost.vector_cycles == (8 + 16 + 4) * (2 / 4) / 64
    assert cost.copies == {16: 1}
    assert cost.lds_read == 16 * 64 * 2 / 65536


def test_the_memory_and_the_anchor() -> None:
    assert pytest.approx(78.6, abs=0.05) == costs.MEMORY_CYCLES
    assert costs.expected_bandwidth(178) == pytest.approx(2.2e12, rel=0.02)
    assert costs.expected_bandwidth(40) == pytest.approx(0.63 * 8e12)
