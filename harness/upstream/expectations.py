"""What we rely on in SGLang, as a table: what, which of our files, how it is checked, from and up to which version.

`since` and `until` (not included) are versions; without them it is expected of every one. Expectations that differ
between versions are two entries. What is relied on and can't be read from SGLang's source is in docs/upstream.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.upstream.checks import (
    Assigned,
    Bound,
    CallKeywords,
    Calls,
    CallShape,
    Check,
    Constant,
    EnvDeclared,
    EnvRead,
    Expression,
    Fields,
    File,
    Flag,
    Gate,
    Members,
    Metric,
    Route,
    Signature,
    Text,
)
from harness.upstream.reader import release

SUPPORTED = ("0.5.16", "0.5.23")  # the versions that the engine, the scenarios and the plug-in are written for

# Relied on by scenarios, and not SGLang's: its source can't tell. Said in every report.
BEYOND_SGLANG = {"AITER_FLYDSL_FORCE": "AITER reads it (scenarios/mi355x-qwen35-fp4-tp2.yaml)"}

_ENGINE = "harness/engines/sglang.py"
_DIALECT = "harness/load/dialects.py"
_PLUGIN = "kernel/sglang_plugin.py"
_RECIPE = "scenarios/mi355x-*.yaml"

_PLUGINS = "sglang/srt/plugins/__init__.py"
_HOOKS = "sglang/srt/plugins/hook_registry.py"
_TRITON = "sglang/srt/layers/attention/triton_backend.py"
_SPLIT = "sglang/srt/layers/attention/hybrid_attn_backend.py"
_TRANSLATOR = "sglang/srt/mem_cache/kv_index_translator.py"
_AITER = "sglang/srt/layers/attention/aiter_backend.py"
_MTP = "sglang/kernels/ops/attention/unified_attention_3d_mtp.py"
_TOKENIZER = "sglang/srt/managers/tokenizer_manager.py"
_IO = "sglang/srt/managers/io_struct.py"
_REPORTER = "sglang/srt/managers/scheduler_components/metrics_reporter.py"
_STATES = ("sglang/srt/managers/scheduler.py", "sglang/srt/managers/scheduler_components/internal_state.py")
_PROTOCOL = "sglang/srt/entrypoints/openai/protocol.py"
_STREAMER = "sglang/srt/managers/scheduler_components/output_streamer.py"


@dataclass(frozen=True)
class Expectation:
    """One thing relied on. `what` is its name in every report: a renamed one looks like a new one."""

    what: str
    used_by: str
    check: Check
    since: str = ""
    until: str = ""

    def applies_to(self, version: str) -> bool:
        now = release(version)
        return (not self.since or now >= release(self.since)) and (not self.until or now < release(self.until))


_E = Expectation

_PLUGIN_API = (
    _E("plug-in: entry-point group", _PLUGIN, Constant(_PLUGINS, "GENERAL_PLUGINS_GROUP", "'sglang.srt.plugins'")),
    _E("plug-in: SGLANG_PLUGINS is the whitelist", _PLUGIN, EnvRead("SGLANG_PLUGINS", _PLUGINS)),
    _E("plug-in: loaded by the launcher", _PLUGIN, Calls("sglang/launch_server.py", "load_plugins")),
    _E(
        "plug-in: loaded by each scheduler process",
        _PLUGIN,
        Calls("sglang/srt/managers/scheduler.py", "load_plugins", "run_scheduler_process"),
    ),
    _E(
        "plug-in: HookRegistry.register",
        _PLUGIN,
        Signature(_HOOKS, "HookRegistry.register", ("cls", "target", "hook", "hook_type=HookType.AFTER")),
    ),
    _E("plug-in: HookRegistry.apply_hooks", _PLUGIN, Signature(_HOOKS, "HookRegistry.apply_hooks", ("cls",))),
    _E("plug-in: HookType", _PLUGIN, Members(_HOOKS, "HookType", ("BEFORE", "AFTER", "AROUND", "REPLACE"))),
    _E(
        "plug-in: a replaced function is also replaced where it was imported",
        _PLUGIN,
        Signature(_HOOKS, "_propagate_patch", ("original", "wrapped", "source_module")),
    ),
    _E(
        "plug-in: register_attention_backend",
        _PLUGIN,
        Signature("sglang/srt/layers/attention/attention_registry.py", "register_attention_backend", ("name",)),
    ),
    _E(
        "plug-in: add_attention_backend_choices",
        _PLUGIN,
        Bound("sglang/srt/server_args.py", "add_attention_backend_choices"),
    ),
)

_TRITON_HOOK = (
    _E(
        "hook (NVIDIA): TritonAttnBackend.forward_extend",
        _PLUGIN,
        Signature(
            _TRITON,
            "TritonAttnBackend.forward_extend",
            ("self", "q", "k", "v", "layer", "forward_batch", "save_kv_cache=True", "sinks=None"),
        ),
    ),
    _E(
        "hook (NVIDIA): HybridAttnBackend.__init__",
        _PLUGIN,
        Signature(_SPLIT, "HybridAttnBackend.__init__", ("self", "model_runner", "prefill_backend", "decode_backend")),
    ),
    _E(
        "hook (NVIDIA): decode_backend of the split backends",
        _PLUGIN,
        Assigned(_SPLIT, "HybridAttnBackend.__init__", "self.decode_backend"),
    ),
    _E(
        "hook (NVIDIA): fields of ForwardMetadata",
        _PLUGIN,
        Fields(_TRITON, "ForwardMetadata", ("max_extend_len", "kv_indptr", "kv_indices", "qo_indptr", "custom_mask")),
    ),
)

_EXTEND_PARAMETERS = (
    *("q_extend", "k_extend", "v_extend", "o_extend", "k_buffer", "v_buffer", "qo_indptr", "kv_indptr", "kv_indices"),
    *("custom_mask", "is_causal", "mask_indptr", "max_len_extend", "k_scale", "v_scale", "sm_scale=None"),
)
_EXTEND_KEYWORDS = ("logit_cap", "sliding_window_size", "sinks", "xai_temperature_len", "score_mod")
_BATCH = "sglang/srt/model_executor/forward_batch_info.py"

_TRITON_INSIDE = (
    _E(
        "hook (NVIDIA): forward_extend calls its own extend_attention_fwd",
        _PLUGIN,
        Assigned(
            _TRITON,
            "TritonAttnBackend.__init__",
            "self.extend_attention_fwd",
            "torch.compiler.disable(extend_attention_fwd)",
        ),
    ),
    _E(
        "hook (NVIDIA): what extend_attention_fwd takes",
        _PLUGIN,
        Signature("sglang/kernels/ops/attention/extend_attention.py", "extend_attention_fwd", _EXTEND_PARAMETERS),
    ),
    _E(
        "hook (NVIDIA): how extend_attention_fwd is called",
        _PLUGIN,
        CallShape(
            _TRITON,
            "TritonAttnBackend.forward_extend",
            "extend_attention_fwd",
            len(_EXTEND_PARAMETERS),
            _EXTEND_KEYWORDS,
        ),
        until="0.5.22",
    ),
    _E(  # through a function that takes the layer first and passes the rest on
        "hook (NVIDIA): how extend_attention_fwd is called",
        _PLUGIN,
        CallShape(
            _TRITON,
            "TritonAttnBackend.forward_extend",
            "_forward_extend_kernel",
            1 + len(_EXTEND_PARAMETERS),
            _EXTEND_KEYWORDS,
        ),
        since="0.5.22",
    ),
    _E(
        "hook (NVIDIA): a verify kernel of SGLang's own comes first only on gfx95",
        _PLUGIN,
        Assigned(
            _TRITON,
            "TritonAttnBackend.__init__",
            "self.use_verify_splitkv",
            "is_gfx95_supported() and envs.SGLANG_ENABLE_SPLITKV_VERIFY.get() and self.topk == 1",
        ),
    ),
    _E(
        "hook (NVIDIA): max_context_len of the backend",
        _PLUGIN,
        Assigned(_TRITON, "TritonAttnBackend.__init__", "self.max_context_len"),
    ),
    _E("hook (NVIDIA): topk of the backend", _PLUGIN, Assigned(_TRITON, "TritonAttnBackend.__init__", "self.topk")),
    _E(
        "hook (NVIDIA): _translate_kv_loc is set where slots are virtual",
        _PLUGIN,
        Assigned(_TRITON, "TritonAttnBackend.__init__", "self._translate_kv_loc"),
        until="0.5.19",
    ),
    _E(
        "hook (NVIDIA): kv_index_translator translates where slots are virtual",
        _PLUGIN,
        Assigned(_TRITON, "TritonAttnBackend.__init__", "self.kv_index_translator"),
        since="0.5.19",
    ),
    _E(
        "hook (NVIDIA): the translator says whether it translates",
        _PLUGIN,
        Assigned(_TRANSLATOR, "KVIndexTranslator.__init__", "self.is_translating"),
        since="0.5.19",
    ),
    _E("hook: ForwardMode.is_target_verify", _PLUGIN, Signature(_BATCH, "ForwardMode.is_target_verify", ("self",))),
    _E("hook: ForwardMode.is_draft_extend_v2", _PLUGIN, Signature(_BATCH, "ForwardMode.is_draft_extend_v2", ("self",))),
    _E("hook: fields of ForwardBatch", _PLUGIN, Fields(_BATCH, "ForwardBatch", ("seq_lens", "out_cache_loc"))),
)

_UNIFIED_KEYWORDS = (
    *("q", "k", "v", "out", "cu_seqlens_q", "seqused_k", "max_seqlen_q", "max_seqlen_k", "softmax_scale", "causal"),
    *("window_size", "block_table", "softcap", "q_descale", "k_descale", "v_descale", "sinks"),
)
_MTP_PARAMETERS = (
    *("q", "k", "v", "out", "cu_seqlens_q", "seqused_k", "max_seqlen_q", "max_seqlen_k", "softmax_scale"),
    *("block_table", "k_descale", "v_descale"),
)


def _shape_gate(ratio: str) -> Gate:
    """When verify goes to the MTP kernel: all but the ratio of heads is the same in every version that has it."""
    return Gate(
        _AITER,
        "AiterAttnBackend.forward_extend",
        "use_unified_attention_3d_mtp",
        (
            "is_gfx95_supported()",
            "1 < self.forward_metadata.max_q_len <= 4",
            "max_kv_len > 512",
            ratio,
            "layer.tp_k_head_num == layer.tp_v_head_num",
            "layer.qk_head_dim == 256",
            "layer.v_head_dim == 256",
            "self.page_size == 16",
            "q_unified.dtype == torch.bfloat16",
            "k_unified.dtype == fp8_dtype",
            "window_size == (-1, -1)",
            "not layer.logit_cap",
            "sinks is None",
        ),
    )


_AITER_HOOKS = (
    _E("hook (AMD): aiter_backend.unified_attention", _PLUGIN, Bound(_AITER, "unified_attention")),
    _E(
        "hook (AMD): AiterAttnBackend.forward_extend",
        _PLUGIN,
        Signature(_AITER, "AiterAttnBackend.forward_extend", ("self", "q", "k", "v", "layer", "forward_batch")),
    ),
    _E(
        "hook (AMD): what unified_attention is called with",
        _PLUGIN,
        CallKeywords(_AITER, "AiterAttnBackend.forward_extend", "unified_attention", _UNIFIED_KEYWORDS),
    ),
    _E(
        "hook (AMD): verify goes to unified_attention only for chains, with SGLANG_USE_AITER_UNIFIED_ATTN",
        _PLUGIN,
        Gate(
            _AITER,
            "AiterAttnBackend.__init__",
            "self._use_unified_verify",
            (
                "self.use_triton_unified_attention",
                "not self.use_mla",
                "self.topk == 1",
                'get_bool_env_var("SGLANG_AITER_UNIFIED_VERIFY", "1")',
            ),
        ),
    ),
    _E(
        "hook (AMD): max_seqlen_k is the padded context length",
        _PLUGIN,
        Assigned(_AITER, "AiterAttnBackend.forward_extend", "max_kv_len", "page_table.shape[1] * self.page_size"),
    ),
    _E(
        "hook (AMD): a single KV head is expanded by stride 0",
        _PLUGIN,
        Assigned(
            _AITER,
            "AiterAttnBackend.forward_extend",
            "k_unified",
            "k_unified.expand(-1, -1, layer.tp_q_head_num, -1)",
        ),
        until="0.5.19",
    ),
    _E(
        "hook (AMD): unified_attention_3d_mtp_func",
        _PLUGIN,
        Signature(_MTP, "unified_attention_3d_mtp_func", _MTP_PARAMETERS, exact=True),
        since="0.5.19",
    ),
    _E(
        "hook (AMD): what unified_attention_3d_mtp_func is called with",
        _PLUGIN,
        CallKeywords(_AITER, "AiterAttnBackend.forward_extend", "unified_attention_3d_mtp_func", _MTP_PARAMETERS),
        since="0.5.19",
    ),
    _E(
        "shape gate of the MTP verify kernel",
        f"{_PLUGIN}, kernel/gate.py",
        _shape_gate("num_queries_per_kv == 16"),
        since="0.5.19",
        until="0.5.20",
    ),
    _E(
        "shape gate of the MTP verify kernel",
        f"{_PLUGIN}, kernel/gate.py",
        # 8:1 only reaches upstream's assembly kernel. Our gate refuses it, so a plug-in must hand it back.
        _shape_gate(
            "num_queries_per_kv == 16 or (num_queries_per_kv == 8 and self.forward_metadata.max_q_len == 4 "
            "and asm_verify_attn_enabled())"
        ),
        since="0.5.20",
    ),
    _E(
        "hook (AMD): draft-extend also comes to unified_attention",
        _PLUGIN,
        EnvDeclared("SGLANG_AITER_UNIFIED_DRAFT_EXTEND", "EnvBool(True)"),
        since="0.5.19",
    ),
    _E(
        "SGLANG_ASM_VERIFY_ATTN turns the assembly kernel off",
        _PLUGIN,
        EnvRead("SGLANG_ASM_VERIFY_ATTN", _MTP, "'1'"),
        since="0.5.20",
    ),
)

_ENVIRONMENT = (
    _E("variable SGLANG_USE_AITER", _RECIPE, EnvDeclared("SGLANG_USE_AITER", "EnvBool(False)")),
    _E("SGLANG_USE_AITER_UNIFIED_ATTN is read", _RECIPE, EnvRead("SGLANG_USE_AITER_UNIFIED_ATTN", _AITER)),
    _E("variable SGLANG_MAMBA_SSM_DTYPE", _RECIPE, EnvDeclared("SGLANG_MAMBA_SSM_DTYPE", "EnvStr(None)")),
    _E(
        "variable SGLANG_ENABLE_METRICS_DEVICE_TIMER",
        "scenarios/h200-*.yaml",
        EnvDeclared("SGLANG_ENABLE_METRICS_DEVICE_TIMER", "EnvBool(False)"),
    ),
    _E("variable SGLANG_SIMULATE_ACC_LEN", _ENGINE, EnvDeclared("SGLANG_SIMULATE_ACC_LEN", "EnvFloat(-1)")),
    _E(
        "simulated acceptance draws floor or ceil by default",
        _ENGINE,
        EnvDeclared("SGLANG_SIMULATE_ACC_METHOD", "EnvStr('match-expected')"),
    ),
    _E(
        "simulated acceptance includes the bonus token",
        _ENGINE,
        Expression(
            "sglang/srt/speculative/spec_utils.py",
            "generate_simulated_accept_index",
            "num_correct_drafts.fill_(simulate_acc_len - 1)",
        ),
    ),
    _E(
        "variable SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION",
        _ENGINE,
        EnvDeclared("SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION", "EnvBool(True)"),
    ),
    _E(
        "/health reads SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION",
        _ENGINE,
        EnvRead("SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION", "sglang/srt/entrypoints/http_server.py"),
    ),
    _E(
        "SGLANG_ENABLE_JIT_DEEPGEMM is read",
        "scenarios/h200-smoke.yaml",
        EnvRead("SGLANG_ENABLE_JIT_DEEPGEMM", "sglang/srt/layers/deep_gemm_wrapper/configurer.py"),
    ),
    _E(
        "the Python server answers: SGLANG_RUST_SERVER is off by default",
        _ENGINE,
        EnvDeclared("SGLANG_RUST_SERVER", "EnvBool(False)"),
        since="0.5.17",
    ),
)


def _flag(name: str, used_by: str, default: str = "", *choices: str, since: str = "", until: str = "") -> Expectation:
    return _E(f"flag {name}", used_by, Flag(name, default, choices), since, until)


_FLAGS = (
    _E("python -m sglang.launch_server", _ENGINE, File("sglang/launch_server.py")),
    _flag("--model-path", _ENGINE, "(required)"),
    _flag("--served-model-name", _ENGINE),
    _flag("--host", _ENGINE),
    _flag("--port", _ENGINE),
    _flag("--tp-size", _ENGINE),
    _flag("--enable-metrics", _ENGINE, "False"),
    _flag("--incremental-streaming-output", _ENGINE, "False"),
    _flag("--load-format", _ENGINE, "'auto'", "auto", "dummy"),
    _flag("--stream-interval", _ENGINE, "1"),
    _flag("--speculative-algorithm", _ENGINE),
    _flag("--speculative-num-steps", _ENGINE),
    _flag("--speculative-eagle-topk", _ENGINE),
    _flag("--speculative-num-draft-tokens", _ENGINE),
    _flag("--attention-backend", f"{_ENGINE}, scenarios/", "", "triton", "aiter", "fa3"),
    _flag("--prefill-attention-backend", "scenarios/h200-qwen35-*.yaml", "None", "fa3"),
    _flag("--speculative-attention-mode", f"{_ENGINE}, scenarios/h200-qwen35-*.yaml", "'prefill'", "decode"),
    _flag("--speculative-draft-attention-backend", "scenarios/h200-qwen35-*.yaml", "None"),
    _flag("--linear-attn-prefill-backend", "scenarios/h200-122b*.yaml, scenarios/h200-397b.yaml"),
    _flag("--enable-deterministic-inference", _ENGINE, "False"),
    _flag("--kv-cache-dtype", "scenarios/", "'auto'", "auto", "fp8_e4m3"),
    _flag("--page-size", "scenarios/"),
    _flag("--sampling-backend", "scenarios/", "", "pytorch"),
    _flag("--grammar-backend", "scenarios/", "", "none"),
    _flag("--disable-radix-cache", "scenarios/", "False"),
    _flag("--disable-prefill-cuda-graph", "scenarios/", "False"),
    _flag("--cuda-graph-max-bs-decode", "scenarios/", "None"),
    _flag("--cuda-graph-bs-decode", "scenarios/h200-c16.yaml", "None"),
    _flag("--max-total-tokens", "scenarios/"),
    _flag("--max-running-requests", "scenarios/"),
    _flag("--enforce-disable-flashinfer-allreduce-fusion", "scenarios/h200-smoke-tp2.yaml", "False"),
    _flag("--cuda-graph-max-bs", _RECIPE, until="0.5.20"),
    _flag("--cuda-graph-bs", "scenarios/c16-tpot.yaml", until="0.5.20"),
    _flag("--chunked-prefill-size", _RECIPE),
    _flag("--mem-fraction-static", _RECIPE),
    _flag("--context-length", _RECIPE),
    _flag("--trust-remote-code", _RECIPE, "False"),
    _flag("--enable-aiter-allreduce-fusion", _RECIPE, "False"),
    _flag("--watchdog-timeout", _RECIPE),
    _flag("--json-model-override-args", _RECIPE),
    _flag("--speculative-use-rejection-sampling", "scenarios/: how drafts are accepted", "False"),
    _E(
        "acceptance: on HIP, rejection sampling turns itself on",
        "scenarios/: how drafts are accepted",
        Calls("sglang/srt/arg_groups/speculative_hook.py", "_should_auto_enable_hip_rejection_sampling"),
        since="0.5.21",
    ),
    _E(
        "NEXTN is an alias of EAGLE",
        _ENGINE,
        Expression(
            "sglang/srt/arg_groups/speculative_hook.py",
            "_resolve_speculative_algorithm_alias",
            "speculative_algorithm == 'NEXTN' or speculative_algorithm == 'EAGLE'",
        ),
    ),
    _E(
        "streams: an interval above 1 emits only when the length fits, which MTP steps jump over",
        _ENGINE,
        Expression(_STREAMER, "_GenerationStreamAccumulator.accept", "len(req.output_ids) % stream_interval == 1"),
        until="0.5.22",
    ),
    _E(
        "streams: an interval of 1 emits every step",
        _ENGINE,
        Expression(_STREAMER, "_GenerationStreamAccumulator.accept", "stream_interval == 1"),
        since="0.5.22",
    ),
)

_GSM8K = "sglang/test/few_shot_gsm8k.py"
_EVALUATOR = (
    *(
        _E(f"evaluator few_shot_gsm8k {flag}", _ENGINE, Text(_GSM8K, flag))
        for flag in ("--host", "--port", "--num-questions", "--parallel", "--data-path")
    ),
    _E("evaluator few_shot_gsm8k prints Accuracy: ", "harness/checks/gsm8k.py", Text(_GSM8K, "Accuracy: ")),
)

_METRICS = tuple(
    _E(f"metric {name}", used_by, Metric(name, kind))
    for name, kind, used_by in (
        ("sglang:spec_verify_calls_total", "Counter", _ENGINE),
        ("sglang:num_retracted_requests_total", "Counter", _ENGINE),
        ("sglang:generation_tokens_total", "Counter", _ENGINE),
        ("sglang:prompt_tokens_total", "Counter", _ENGINE),
        ("sglang:cached_tokens_total", "Counter", _ENGINE),
        ("sglang:forward_execution_seconds_total", "Counter", _ENGINE),
        ("sglang:spec_accept_length", "Gauge", "docs/metrics.md"),
        ("sglang:spec_accept_rate", "Gauge", "docs/metrics.md"),
    )
) + tuple(_E(f"metric label {name}", _ENGINE, Text(Metric.path, name)) for name in ("tp_rank", "moe_ep_rank"))


def _key(key: str, value: str = "") -> Expectation:
    return _E(f"meta_info {key}", _DIALECT, Assigned(_TOKENIZER, "TokenizerManager", f'meta_info["{key}"]', value))


_SERVER = (
    _E("GET /health", _ENGINE, Route("/health", "get")),
    _E("GET /v1/models", _ENGINE, Route("/v1/models", "get")),
    _E("GET /server_info", _ENGINE, Route("/server_info", "get")),
    _E("POST /generate", _DIALECT, Route("/generate", "post")),
    _E("POST /start_profile", _ENGINE, Route("/start_profile", "post")),
    _E(
        "/start_profile traces decode steps",
        _ENGINE,
        Fields(
            _IO,
            "ProfileReq",
            ("output_dir", "num_steps", "activities", "profile_by_stage", "with_stack", "record_shapes"),
        ),
    ),
    _E("POST /tokenize", _ENGINE, Route("/tokenize", "post")),
    _E("POST /detokenize", _ENGINE, Route("/detokenize", "post")),
    _E("POST /v1/completions", _DIALECT, Route("/v1/completions", "post")),
    _E("POST /v1/chat/completions", _DIALECT, Route("/v1/chat/completions", "post")),
    _E("/tokenize takes prompt", _ENGINE, Fields(_PROTOCOL, "TokenizeRequest", ("prompt", "add_special_tokens"))),
    _E("/tokenize answers tokens", _ENGINE, Fields(_PROTOCOL, "TokenizeResponse", ("tokens",))),
    _E("/detokenize takes tokens", _ENGINE, Fields(_PROTOCOL, "DetokenizeRequest", ("tokens",))),
    _E("/detokenize answers text", _ENGINE, Fields(_PROTOCOL, "DetokenizeResponse", ("text",))),
    _E(
        "/generate takes input_ids, text, sampling_params, stream",
        _DIALECT,
        Fields(
            "sglang/srt/managers/io_struct.py", "GenerateReqInput", ("text", "input_ids", "sampling_params", "stream")
        ),
    ),
    _E(
        "sampling_params: temperature, max_new_tokens, ignore_eos",
        _DIALECT,
        Fields(
            "sglang/srt/sampling/sampling_params.py", "SamplingParams", ("max_new_tokens", "temperature", "ignore_eos")
        ),
    ),
    _E(
        "stream_options: include_usage, continuous_usage_stats",
        _DIALECT,
        Fields(_PROTOCOL, "StreamOptions", ("include_usage", "continuous_usage_stats")),
    ),
    _E("completions take ignore_eos", _DIALECT, Fields(_PROTOCOL, "CompletionRequest", ("max_tokens", "ignore_eos"))),
    _E("chat takes ignore_eos", _DIALECT, Fields(_PROTOCOL, "ChatCompletionRequest", ("max_tokens", "ignore_eos"))),
    _E(
        "/generate takes return_logprob, top_logprobs_num",
        "harness/engines/base.py",
        Fields("sglang/srt/managers/io_struct.py", "GenerateReqInput", ("return_logprob", "top_logprobs_num")),
    ),
    _key("output_token_logprobs"),
    _key("output_top_logprobs"),
    _key("finish_reason"),
    _key("prompt_tokens"),
    _key("completion_tokens"),
    _key("cached_tokens"),
    _key("spec_verify_ct", "recv_obj.spec_verify_ct[i]"),
    _key("spec_accept_length", "recv_obj.completion_tokens[i] / recv_obj.spec_verify_ct[i]"),
    _E(
        "/server_info internal_states",
        _ENGINE,
        Assigned("sglang/srt/entrypoints/http_server.py", "server_info", 'answer["internal_states"]'),
    ),
    _E("/server_info avg_spec_accept_length", _ENGINE, Text(_STATES[0], "avg_spec_accept_length"), until="0.5.22"),
    _E("/server_info avg_spec_accept_length", _ENGINE, Text(_STATES[1], "avg_spec_accept_length"), since="0.5.22"),
    _E("/server_info decode_cuda_graph_bs", _ENGINE, Text(_STATES[1], "decode_cuda_graph_bs"), since="0.5.22"),
    _E("log: Decode batch …, #running-req: ", _ENGINE, Text(_REPORTER, ", #running-req: ")),
    _E("log: accept len: ", _ENGINE, Text(_REPORTER, "accept len: ")),
    _E("log: gen throughput (token/s): ", _ENGINE, Text(_REPORTER, "gen throughput (token/s): ")),
    _E("log: #queue-req: ", _ENGINE, Text(_REPORTER, "#queue-req: ")),
    _E(
        "log: token usage: ",
        _ENGINE,
        Text("sglang/srt/managers/scheduler_components/pool_stats_observer.py", "token usage: "),
    ),
    _E("log: cuda graph: ", _ENGINE, Text(_REPORTER, "cuda graph")),
)

EXPECTATIONS: tuple[Expectation, ...] = (
    *_PLUGIN_API,
    *_TRITON_HOOK,
    *_TRITON_INSIDE,
    *_AITER_HOOKS,
    *_ENVIRONMENT,
    *_FLAGS,
    *_EVALUATOR,
    *_METRICS,
    *_SERVER,
)
