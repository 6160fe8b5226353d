"""The plug-in against stand-in SGLang objects: who serves a call, what is counted, and what ends a server."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from kernel import call as checked_calls
from kernel import checks, ops, sglang_aiter, sglang_plugin, sglang_triton
from kernel.config import Arch
from kernel.evidence import Evidence
from kernel.reference import relative_error
from kernel.tests.problems import DEVICE, MAX_ERROR, SMALL_CDNA, expected, make_problem, run, token_layout

STANDIN = Path(__file__).parents[2] / "harness" / "tests" / "standin"
pytestmark = pytest.mark.skipif(DEVICE.type != "cpu", reason="stand-in objects live on the CPU")


@pytest.fixture
def sglang(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The stand-in's backend module; a device that the gate knows."""
    monkeypatch.syspath_prepend(str(STANDIN))
    monkeypatch.setattr(sglang_plugin, "_engaged", False)
    monkeypatch.setattr(checks, "device_arch", lambda device: SMALL_CDNA)
    monkeypatch.setattr(checked_calls, "device_arch", lambda device: SMALL_CDNA)
    from sglang.srt.layers.attention import triton_backend

    yield triton_backend
    for name in [name for name in sys.modules if name.split(".")[0] in ("sglang", "aiter")]:
        del sys.modules[name]


def verify(sglang: ModuleType, backend: Any, size: int = 2, drafts: int = 4, heads: int = 16, head: int = 256,
           dtype: torch.dtype = torch.bfloat16, **layer: Any) -> torch.Tensor:  # fmt: skip
    q = torch.randn(size * drafts, heads * head).to(dtype)
    result: torch.Tensor = backend.forward_extend(
        q, None, None, sglang.layer(heads, head, **layer), sglang.batch(size, drafts=drafts)
    )
    return result


@pytest.mark.parametrize("arm", ["in-tree", "generic"])
def test_the_arm_serves_target_verify_with_the_right_values(sglang: ModuleType, arm: str) -> None:
    evidence = sglang_plugin.engage(arm)
    problem = make_problem([20, 9], [4, 4])
    tokens = token_layout(problem)
    backend = sglang.TritonAttnBackend()
    backend.k_pool, backend.v_pool = problem.k_cache.flatten(0, 1), problem.v_cache.flatten(0, 1)
    batch = sglang.batch(2)
    batch.meta.kv_indptr, batch.meta.kv_indices = tokens.kv_indptr, tokens.kv_indices
    batch.out_cache_loc = tokens.draft_slots
    out = backend.forward_extend(problem.q.flatten(1), None, None, sglang.layer(), batch)
    assert relative_error(out.view_as(problem.q), expected(problem)) <= MAX_ERROR
    assert backend.plain_calls == 0
    assert (dict(evidence.served), dict(evidence.passed)) == ({"eager": 1}, {})
    assert evidence.bodies == {"verify_attention" if arm == "in-tree" else "generic_attention"}
    assert evidence.rank == 0


def test_upstream_is_left_alone_and_counted(sglang: ModuleType) -> None:
    evidence = sglang_plugin.engage("upstream")
    backend = sglang.TritonAttnBackend()
    verify(sglang, backend)
    assert backend.plain_calls == 1
    assert (dict(evidence.served), dict(evidence.passed)) == ({}, {"upstream": 1})


@pytest.mark.parametrize(
    ("arm", "switch", "outcome"),
    [
        ("in-tree", "1", {"served": 1}),
        ("generic", "1", {"served": 1}),
        ("in-tree", "0", {}),
        ("upstream", "1", {}),
    ],
)
def test_draft_extend_is_served_and_counted_apart(
    sglang: ModuleType, monkeypatch: pytest.MonkeyPatch, arm: str, switch: str, outcome: dict[str, int]
) -> None:
    """It has the shape of target-verify: all drafts of a step, causal, on the draft model's own cache."""
    monkeypatch.setenv("MTPBENCH_DRAFT_EXTEND", switch)
    evidence = sglang_plugin.engage(arm)
    backend, batch = sglang.TritonAttnBackend(), sglang.batch(2)
    batch.forward_mode = sglang.Mode(False, draft_extend=True)
    out = backend.forward_extend(torch.randn(8, 4096).bfloat16(), None, None, sglang.layer(), batch)
    assert dict(evidence.draft_extend) == outcome
    assert backend.plain_calls == (0 if outcome else 1)
    assert bool(out.any()) == bool(outcome), "the stand-in's own path writes nothing"
    assert (dict(evidence.served), dict(evidence.passed)) == ({}, {}), "what target-verify did is proved apart"


def test_a_rejected_draft_extend_says_why(sglang: ModuleType) -> None:
    evidence = sglang_plugin.engage("in-tree")
    backend, batch = sglang.TritonAttnBackend(), sglang.batch(2, drafts=5)
    batch.forward_mode = sglang.Mode(False, draft_extend=True)
    backend.forward_extend(torch.randn(10, 4096).bfloat16(), None, None, sglang.layer(), batch)
    assert (dict(evidence.draft_extend), backend.plain_calls) == ({"query_length": 1}, 1)


def test_other_modes_pass_by_uncounted(sglang: ModuleType) -> None:
    evidence = sglang_plugin.engage("in-tree")
    backend, batch = sglang.TritonAttnBackend(), sglang.batch(1)
    batch.forward_mode = sglang.Mode(False)
    backend.forward_extend(torch.zeros(4, 4096), None, None, sglang.layer(), batch)
    assert backend.plain_calls == 1
    assert not evidence.served
    assert not evidence.passed


REJECTED: dict[str, dict[str, Any]] = {
    "query_length": {"drafts": 5},
    "gqa_ratio": {"heads": 4},
    "head_size": {"head": 128},
    "q_dtype": {"dtype": torch.float16},
    "softcap": {"logit_cap": 30.0},
    "sliding_window": {"sliding_window_size": 128},
}


@pytest.mark.parametrize("reason", REJECTED)
def test_what_the_gate_rejects_keeps_its_path_and_is_counted(sglang: ModuleType, reason: str) -> None:
    """Beyond each boundary; on it every other test stands."""
    evidence = sglang_plugin.engage("in-tree")
    backend = sglang.TritonAttnBackend()
    if reason == "head_size":
        backend.k_pool, backend.v_pool = backend.k_pool[..., :128], backend.v_pool[..., :128]
    verify(sglang, backend, **REJECTED[reason])
    assert backend.plain_calls == 1
    assert dict(evidence.passed) == {reason: 1}
    assert not evidence.served


def test_devices_caches_trees_and_changed_logits_are_rejected(
    sglang: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    evidence = sglang_plugin.engage("in-tree")
    verify(sglang, sglang.TritonAttnBackend(kv_dtype=torch.bfloat16))
    verify(sglang, sglang.TritonAttnBackend(kv_dtype=torch.float8_e4m3fnuz))
    tree = sglang.TritonAttnBackend()
    tree.topk = 2
    verify(sglang, tree)
    for name, value in (
        ("_translate_kv_loc", lambda slots: slots),
        ("kv_index_translator", SimpleNamespace(is_translating=True)),
    ):
        virtual = sglang.TritonAttnBackend()
        setattr(virtual, name, value)
        verify(sglang, virtual)
    translated_nowhere = sglang.TritonAttnBackend()
    translated_nowhere.kv_index_translator = SimpleNamespace(is_translating=False)
    assert sglang_triton.call_reason(translated_nowhere, {"is_causal": True}, {}) is None
    plain = sglang.TritonAttnBackend()
    plain.forward_extend(torch.zeros(4, 4096).bfloat16(), None, None, sglang.layer(), sglang.batch(1), score_mod="some")
    plain.forward_extend(torch.zeros(4, 4096).bfloat16(), None, None, sglang.layer(), sglang.batch(1), sinks="some")
    monkeypatch.setattr(checks, "device_arch", lambda device: Arch("gfx942", 304))
    verify(sglang, plain)
    reasons = ("kv_dtype", "kv_dtype_fnuz", "tree", "virtual_slots", "logit_change", "sinks", "arch")
    assert dict(evidence.passed) == dict.fromkeys(reasons, 1) | {"virtual_slots": 2}


def test_a_backend_that_takes_another_way_is_counted(sglang: ModuleType) -> None:
    evidence = sglang_plugin.engage("in-tree")
    backend = sglang.TritonAttnBackend()
    backend.extend_attention_fwd = None  # what a fast path never touches
    hook = sglang_triton.hooks("in-tree", evidence)[0].around
    hook(lambda *a, **k: None, backend, torch.zeros(8, 4096), None, None, sglang.layer(), sglang.batch(2))
    assert dict(evidence.passed) == {"other_path": 1}


@pytest.mark.parametrize(("arm", "own"), [("in-tree", []), ("generic", []), ("upstream", ["shared"])])
def test_it_stands_before_the_verify_kernels_of_gfx95(sglang: ModuleType, arm: str, own: list[str]) -> None:
    """From 0.5.23 on the Triton backend asks a verify kernel of its own first, and never comes to the extend kernel."""
    evidence = sglang_plugin.engage(arm)
    backend, calls = sglang.TritonAttnBackend(), []

    def verify_shared_kv_fwd(*values: Any, **named: Any) -> bool:
        calls.append("shared")
        return True

    backend.verify_shared_kv_fwd = verify_shared_kv_fwd
    plain = backend.extend_attention_fwd

    def forward(extend: Any) -> Any:
        def call(*values: Any, **named: Any) -> None:
            if not backend.verify_shared_kv_fwd(*values, **named):
                extend(*values, **named)

        return call

    # The stand-in calls its extend kernel; here that asks the other one first, as the real backend does.
    hook = sglang_triton.hooks(arm, evidence)[0].around

    def original(backend: Any, q: Any, k: Any, v: Any, layer: Any, batch: Any) -> None:
        meta = batch.meta
        values = (
            q.view(-1, 16, 256), k, v, torch.empty_like(q).view(-1, 16, 256), backend.k_pool, backend.v_pool,
            meta.qo_indptr, meta.kv_indptr, meta.kv_indices, None, True, None, meta.max_extend_len, 1.0, 1.0,
            layer.scaling,
        )  # fmt: skip
        forward(backend.extend_attention_fwd)(*values)

    hook(original, backend, torch.randn(8, 4096).bfloat16(), None, None, sglang.layer(), sglang.batch(2))
    assert calls == own
    assert backend.plain_calls == 0
    assert dict(evidence.passed) == ({"upstream": 1} if own else {})
    assert dict(evidence.served) == ({} if own else {"eager": 1})
    assert backend.extend_attention_fwd == plain
    assert backend.verify_shared_kv_fwd is verify_shared_kv_fwd


# --- aiter backend ---


@pytest.fixture
def aiter(sglang: ModuleType, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """0.5.16's aiter backend: it calls AITER's kernel by the name that it imported."""
    monkeypatch.setattr(torch.version, "hip", "7.2")
    module = ModuleType("sglang.srt.layers.attention.aiter_backend")
    module.calls = []  # type: ignore[attr-defined]

    def unified_attention(
        q: Any, k: Any, v: Any, out: Any, cu_seqlens_q: Any, max_seqlen_q: Any, seqused_k: Any, max_seqlen_k: Any,
        softmax_scale: Any, causal: Any, window_size: Any, block_table: Any, softcap: Any, q_descale: Any,
        k_descale: Any, v_descale: Any, sinks: Any = None,
    ) -> None:  # fmt: skip
        module.calls.append(k.shape)

    class AiterAttnBackend:
        """`layer` is the call of attention that it makes, or None for a path of its own."""

        def forward_extend(
            self, q: Any, k: Any, v: Any, layer: Any, forward_batch: Any, save_kv_cache: bool = True, sinks: Any = None
        ) -> None:
            if layer is not None:
                getattr(module, forward_batch.calls)(**layer)

    module.AiterAttnBackend = AiterAttnBackend  # type: ignore[attr-defined]
    module.unified_attention = unified_attention  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    parent = sys.modules["sglang.srt.layers.attention"]
    monkeypatch.setattr(parent, "aiter_backend", module, raising=False)
    return module


def aiter_call(problem: Any, **changes: Any) -> dict[str, Any]:
    heads = problem.q.shape[1]
    return {
        "q": problem.q,
        "k": problem.k_cache.expand(-1, -1, heads, -1),
        "v": problem.v_cache.expand(-1, -1, heads, -1),
        "out": torch.empty_like(problem.q),
        "cu_seqlens_q": problem.cu_seqlens_q,
        "max_seqlen_q": problem.max_seqlen_q,
        "seqused_k": problem.seqused_k,
        "max_seqlen_k": problem.max_seqlen_k,
        "softmax_scale": problem.softmax_scale,
        "causal": True,
        "window_size": (-1, -1),
        "block_table": problem.block_table,
        "softcap": 0.0,
        "q_descale": None,
        "k_descale": torch.tensor([1.0]),
        "v_descale": torch.tensor([1.0]),
        "sinks": None,
        **changes,
    }


def forward(
    aiter: ModuleType,
    call: dict[str, Any] | None,
    mode: str = "is_target_verify",
    calls: str = "unified_attention",
) -> None:
    modes = {name: lambda name=name: name == mode for name in ("is_target_verify", "is_draft_extend_v2", "is_decode")}
    batch = SimpleNamespace(forward_mode=SimpleNamespace(**modes), seq_lens=[1], calls=calls)
    aiter.AiterAttnBackend().forward_extend(torch.zeros(1), None, None, call, batch)


def test_aiter_verify_is_served_from_the_packed_head(aiter: ModuleType) -> None:
    evidence = sglang_plugin.engage("in-tree")
    problem = make_problem([20, 9], [4, 4])
    call = aiter_call(problem)
    forward(aiter, call)
    assert torch.equal(call["out"], run(ops.mtp_verify_attention, problem, SMALL_CDNA))
    assert aiter.calls == []
    assert dict(evidence.served) == {"eager": 1}


def test_aiter_generic_gets_one_head_and_upstream_what_sglang_gave(aiter: ModuleType) -> None:
    problem = make_problem([20], [4])
    sglang_plugin.engage("generic")
    forward(aiter, aiter_call(problem))
    assert [shape[2] for shape in aiter.calls] == [1]


def test_aiter_upstream_and_prefill_are_untouched(aiter: ModuleType) -> None:
    evidence = sglang_plugin.engage("upstream")
    problem = make_problem([20], [4])
    forward(aiter, aiter_call(problem))
    aiter.unified_attention(**aiter_call(problem, max_seqlen_q=1))
    assert [shape[2] for shape in aiter.calls] == [16, 16]
    assert dict(evidence.passed) == {"upstream": 1}


def test_aiter_draft_extend_is_served_where_it_comes_by(aiter: ModuleType) -> None:
    """From 0.5.19 on it calls the same function, with 1 to 4 accepted tokens a sequence."""
    evidence = sglang_plugin.engage("in-tree")
    problem = make_problem([20, 9], [2, 4])
    call = aiter_call(problem)
    forward(aiter, call, mode="is_draft_extend_v2")
    assert relative_error(call["out"], expected(problem)) <= MAX_ERROR
    assert aiter.calls == []
    assert (dict(evidence.draft_extend), dict(evidence.served)) == ({"served": 1}, {})
    forward(aiter, None, mode="is_draft_extend_v2")  # up to 0.5.18 it takes another way
    assert dict(evidence.draft_extend) == {"served": 1, "other_path": 1}


def test_aiter_prefill_keeps_its_path_uncounted(aiter: ModuleType) -> None:
    evidence = sglang_plugin.engage("in-tree")
    forward(aiter, aiter_call(make_problem([20], [4])), mode="is_extend")
    assert [shape[2] for shape in aiter.calls] == [16]
    assert not evidence.served + evidence.passed + evidence.draft_extend


def test_aiter_verify_by_another_path_is_counted(aiter: ModuleType) -> None:
    evidence = sglang_plugin.engage("generic")
    forward(aiter, None)
    assert dict(evidence.passed) == {"other_path": 1}


def test_aiter_window_is_rejected(aiter: ModuleType) -> None:
    evidence = sglang_plugin.engage("in-tree")
    forward(aiter, aiter_call(make_problem([20], [4]), window_size=(127, 0)))
    assert dict(evidence.passed) == {"sliding_window": 1}
    assert len(aiter.calls) == 1


def test_the_mtp_kernel_of_0_5_23(aiter: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """There SGLang's own gate leads to its MTP function, which each arm replaces by its own."""
    own, generic = [], []
    module = ModuleType(sglang_aiter.MTP_MODULE)

    def unified_attention_3d_mtp_func(
        q: Any, k: Any, v: Any, out: Any, cu_seqlens_q: Any, seqused_k: Any, max_seqlen_q: Any, max_seqlen_k: Any,
        softmax_scale: Any, block_table: Any, k_descale: Any, v_descale: Any,
    ) -> None:  # fmt: skip
        own.append(q)

    module.unified_attention_3d_mtp_func = unified_attention_3d_mtp_func  # type: ignore[attr-defined]
    module.__spec__ = SimpleNamespace(name=module.__name__)  # type: ignore[assignment]
    for name in ("sglang.kernels", "sglang.kernels.ops", "sglang.kernels.ops.attention"):
        package = ModuleType(name)
        package.__path__ = []
        monkeypatch.setitem(sys.modules, name, package)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(sys.modules["sglang.kernels.ops.attention"], "unified_attention_3d_mtp", module, raising=False)
    from sglang.srt.plugins.hook_registry import HookRegistry

    problem = make_problem([20], [4])
    call = {name: value for name, value in aiter_call(problem).items()
            if name not in ("causal", "window_size", "softcap", "q_descale", "sinks")}  # fmt: skip
    call |= {"k": problem.k_cache, "v": problem.v_cache}
    fake = ModuleType("aiter.ops.triton.attention.unified_attention")
    fake.unified_attention = lambda **given: generic.append(given)  # type: ignore[attr-defined]
    for name in ("aiter", "aiter.ops", "aiter.ops.triton", "aiter.ops.triton.attention"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, fake.__name__, fake)
    served, plain_extend = {}, aiter.AiterAttnBackend.forward_extend
    for arm in sglang_plugin.ARMS:
        HookRegistry.reset()
        aiter.AiterAttnBackend.forward_extend = plain_extend
        module.unified_attention_3d_mtp_func = unified_attention_3d_mtp_func  # type: ignore[attr-defined]
        evidence = sglang_plugin.engage(arm)
        aiter.mtp = module.unified_attention_3d_mtp_func
        forward(aiter, call, calls="mtp")
        served[arm] = dict(evidence.served) or dict(evidence.passed)
    assert served == {"generic": {"eager": 1}, "in-tree": {"eager": 1}, "upstream": {"upstream": 1}}
    assert (len(own), len(generic)) == (1, 1)
    assert generic[0]["causal"] is True
    assert torch.equal(call["out"], run(ops.mtp_verify_attention, problem, SMALL_CDNA))


@pytest.fixture
def functions(aiter: ModuleType, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """0.5.20's functions for draft-extend and decode, whose assembly says that it ran; and its forward_decode."""
    module = ModuleType(sglang_aiter.MTP_MODULE)
    module.calls = []  # type: ignore[attr-defined]

    def unified_attention_3d_mtp_func(**call: Any) -> None: ...

    def unified_attention_3d_mtp_ragged_func(
        q: Any, k: Any, v: Any, out: Any, cu_seqlens_q: Any, seqused_k: Any, max_seqlen_q: Any, max_seqlen_k: Any,
        softmax_scale: Any, block_table: Any, k_descale: Any, v_descale: Any,
    ) -> bool:  # fmt: skip
        module.calls.append("ragged")
        return True

    def unified_attention_3d_mtp_decode_func(
        q: Any, k: Any, v: Any, out: Any, seqused_k: Any, max_seqlen_k: Any, softmax_scale: Any, block_table: Any,
        k_descale: Any, v_descale: Any,
    ) -> bool:  # fmt: skip
        module.calls.append("decode")
        return True

    for function in (
        unified_attention_3d_mtp_func, unified_attention_3d_mtp_ragged_func, unified_attention_3d_mtp_decode_func,
    ):  # fmt: skip
        setattr(module, function.__name__, function)
    module.__spec__ = SimpleNamespace(name=module.__name__)  # type: ignore[assignment]
    for name in ("sglang.kernels", "sglang.kernels.ops", "sglang.kernels.ops.attention"):
        package = ModuleType(name)
        package.__path__ = []
        monkeypatch.setitem(sys.modules, name, package)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(sys.modules["sglang.kernels.ops.attention"], "unified_attention_3d_mtp", module, raising=False)

    def forward_decode(self: Any, q: Any, k: Any, v: Any, layer: Any, forward_batch: Any, save: bool = True) -> None:
        module.result = getattr(module, forward_batch.calls)(**layer)  # type: ignore[attr-defined]

    def forward_extend(self: Any, q: Any, k: Any, v: Any, layer: Any, forward_batch: Any, save: bool = True) -> None:
        module.result = getattr(module, forward_batch.calls)(**layer)  # type: ignore[attr-defined]

    aiter.AiterAttnBackend.forward_decode = forward_decode
    aiter.AiterAttnBackend.forward_extend = forward_extend
    return module


def _few(problem: Any, *left_out: str) -> dict[str, Any]:
    """A call of SGLang's functions, which know of no window, softcap or sinks."""
    unknown = ("causal", "window_size", "softcap", "q_descale", "sinks", *left_out)
    call = {name: value for name, value in aiter_call(problem).items() if name not in unknown}
    return call | {"k": problem.k_cache, "v": problem.v_cache}


def _forward(aiter: ModuleType, call: dict[str, Any], mode: str, function: str) -> None:
    modes = {name: lambda name=name: name == mode for name in ("is_target_verify", "is_draft_extend_v2", "is_decode")}
    batch = SimpleNamespace(forward_mode=SimpleNamespace(**modes), seq_lens=[1], calls=function)
    backend = aiter.AiterAttnBackend()
    forward = backend.forward_decode if mode == "is_decode" else backend.forward_extend
    forward(torch.zeros(1), None, None, call, batch)


@pytest.mark.parametrize("group", [16, 8])
@pytest.mark.parametrize(("switch", "outcome"), [("1", {"served": 1}), ("0", {})])
def test_aiter_ragged_draft_extend(
    aiter: ModuleType,
    functions: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    switch: str,
    outcome: dict[str, int],
    group: int,
) -> None:
    monkeypatch.setenv("MTPBENCH_DRAFT_EXTEND", switch)
    evidence = sglang_plugin.engage("in-tree")
    problem = make_problem([20, 9, 33], [2, 4, 1], group=group)
    call = _few(problem)
    _forward(aiter, call, "is_draft_extend_v2", "unified_attention_3d_mtp_ragged_func")
    assert functions.result is True
    assert dict(evidence.draft_extend) == outcome
    assert functions.calls == ([] if outcome else ["ragged"])
    if outcome:
        assert relative_error(call["out"], expected(problem)) <= MAX_ERROR


@pytest.mark.parametrize(("switch", "outcome"), [("1", {"served": 1}), (None, {})])
def test_aiter_decode(
    aiter: ModuleType,
    functions: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    switch: str | None,
    outcome: dict[str, int],
) -> None:
    if switch:
        monkeypatch.setenv("MTPBENCH_DECODE", switch)
    evidence = sglang_plugin.engage("in-tree")
    assert evidence.facts["serves_decode"] is bool(switch)
    problem = make_problem([20, 9], [1, 1])
    call = _few(problem, "cu_seqlens_q", "max_seqlen_q")
    _forward(aiter, call, "is_decode", "unified_attention_3d_mtp_decode_func")
    assert functions.result is True
    assert dict(evidence.decode) == outcome
    assert functions.calls == ([] if outcome else ["decode"])
    if outcome:
        assert relative_error(call["out"], expected(problem)) <= MAX_ERROR
    assert (dict(evidence.served), dict(evidence.passed)) == ({}, {}), "what target-verify did is proved apart"


def test_aiter_decode_that_the_gate_rejects_is_sglangs(
    aiter: ModuleType, functions: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MTPBENCH_DECODE", "1")
    evidence = sglang_plugin.engage("in-tree")
    problem = make_problem([20, 9], [1, 1], group=4)
    _forward(aiter, _few(problem, "cu_seqlens_q", "max_seqlen_q"), "is_decode", "unified_attention_3d_mtp_decode_func")
    assert functions.calls == ["decode"]
    assert dict(evidence.decode) == {"gqa_ratio": 1}


def test_a_switch_is_0_or_1(sglang: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MTPBENCH_VERIFY", "in-tree")
    monkeypatch.setenv("MTPBENCH_DECODE", "yes")
    with pytest.raises(SystemExit, match="MTPBENCH_DECODE must be 0 or 1"):
        sglang_plugin.register()


def test_split_backends_know_their_context_length(sglang: ModuleType) -> None:
    """SGLang 0.5.16 forgets it, and its MTP worker multiplies by it; what 0.5.17 sets stays."""
    from sglang.srt.layers.attention.hybrid_attn_backend import HybridAttnBackend

    decode = SimpleNamespace(max_context_len=40960)
    assert not hasattr(HybridAttnBackend(None, object(), decode), "max_context_len")
    evidence = sglang_plugin.engage("upstream")
    assert sglang_triton.SPLIT_TARGET in evidence.facts["hooks"]
    assert HybridAttnBackend(None, object(), decode).max_context_len == 40960
    assert HybridAttnBackend(SimpleNamespace(context_len=8192), object(), decode).max_context_len == 8192


# --- what ends a server ---


def test_unset_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MTPBENCH_VERIFY", raising=False)
    sglang_plugin.register()
    assert not any(name.split(".")[0] == "sglang" for name in sys.modules)


def test_two_entry_points_engage_it_once(sglang: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed mtpbench beside the folder that the harness hands over: a second hook would not be placed."""
    monkeypatch.setenv("MTPBENCH_VERIFY", "upstream")
    sglang_plugin.register()
    placed = sglang.TritonAttnBackend.forward_extend
    sglang_plugin.register()
    assert sglang.TritonAttnBackend.forward_extend is placed


def test_an_unknown_arm_ends_the_process(sglang: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MTPBENCH_VERIFY", "in_tree")
    with pytest.raises(SystemExit, match="unknown arm; known: generic, in-tree, upstream"):
        sglang_plugin.register()


def test_a_missing_or_changed_target_ends_the_process(sglang: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MTPBENCH_VERIFY", "in-tree")
    with monkeypatch.context() as patch:
        patch.delattr(sglang.TritonAttnBackend, "forward_extend")
        with pytest.raises(SystemExit, match="forward_extend is not there"):
            sglang_plugin.register()
    with monkeypatch.context() as patch:
        patch.setattr(sglang.TritonAttnBackend, "forward_extend", lambda self, q, k, v, layer: None)
        with pytest.raises(SystemExit, match="no longer has forward_batch"):
            sglang_plugin.register()


def test_a_hook_that_is_not_placed_ends_the_process(sglang: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry

    monkeypatch.setenv("MTPBENCH_VERIFY", "in-tree")
    monkeypatch.setattr(HookRegistry, "apply_hooks", lambda: None)
    with pytest.raises(SystemExit, match="did not place the hook"):
        sglang_plugin.register()


def test_evidence_is_written_and_kept_current(tmp_path: Path) -> None:
    evidence = Evidence("in-tree", {"sglang": "0"}, tmp_path / "new")
    evidence.start()
    evidence.rank = 1
    evidence.count_served(8, 4, True, "hopper_attention")
    evidence.count_served(8, 4, False, "verify_attention")
    evidence.count_passed("arch", 16, captured=True)
    evidence.write()
    [path] = (tmp_path / "new").glob("process-*.json")
    content = json.loads(path.read_text())
    assert content["served"] == {"captured": 1, "eager": 1}
    assert content["passed"] == {"arch": 1}
    assert content["captured_batches"] == [8, 16]
    assert content["bodies"] == ["hopper_attention", "verify_attention"]
    assert content["rank"] == 1
    assert len(content["kernel_hash"]) == 16
