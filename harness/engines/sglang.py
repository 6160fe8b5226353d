"""SGLang on this host or in a container. Builds its command line and reads what it exposes; never imports it.

Flags and endpoints as in SGLang 0.5.16 and 0.5.23.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.access import Access
from harness.engines import tiny_qwen35
from harness.engines.base import LaunchContext, ask_outputs, ask_text, ask_tokens, first_model, prometheus_counters
from harness.engines.command import Command, in_container
from harness.engines.sglang_settings import (
    _PLACEHOLDER,
    ARM_VARIABLE,
    EVIDENCE_VARIABLE,
    SIMULATE,
    SglangSettings,
    problems,
    tiny_kind,
)
from harness.engines.verify_plugin import python_path
from harness.errors import ServerStartError
from harness.fields import ServerSettings
from harness.http import ControlClient
from harness.model import Output

# On SIGTERM its workers end at once; its launcher then sleeps for 5 s, for crash diagnostics that nobody wants.
_GRACE_S = 2.0
# Compiled kernels, kept between launches: Triton alone makes a start with MTP two minutes longer. AITER's own
# builds stay where its image has them.
_KERNEL_CACHES = {
    "TRITON_CACHE_DIR": "triton",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",
    "SGLANG_JIT_CACHE_DIR": "sglang-jit",  # from 0.5.23 on; 0.5.16 does not know it
}

# A passive /health: the default one generates a token and sleeps a second, in the middle of a measurement.
_ENV = {"SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "0"}

_SECRET = re.compile(r"key|token$|secret|password|credential", re.IGNORECASE)

_COUNTERS = {
    "sglang:spec_verify_calls_total": "verify_calls",
    "sglang:num_retracted_requests_total": "retracted_requests",
    "sglang:generation_tokens_total": "output_tokens",
    "sglang:prompt_tokens_total": "prompt_tokens",
    "sglang:cached_tokens_total": "cached_tokens",
    # Only with SGLANG_ENABLE_METRICS_DEVICE_TIMER=1: time of the forward passes between two events on the stream.
    "sglang:forward_execution_seconds_total": "device_seconds_{category}",
}
# Each TP rank times its own device; requests, tokens and verify steps are counted by the first alone.
RANKS = ("tp_rank", "moe_ep_rank")
_DECODE = re.compile(r"Decode batch.*?#running-req: (?P<running>\d+)")
_DECODE_FIELDS = {
    "accept_length": re.compile(r"accept len: ([\d.]+)"),
    "throughput": re.compile(r"gen throughput \(token/s\): ([\d.]+)"),
    "queued": re.compile(r"#queue-req: (\d+)"),
    "token_usage": re.compile(r"token usage: ([\d.]+)"),
}
_GRAPH = re.compile(r"(?:cuda|hip|npu|cpu) graph: (True|False)")


class Sglang:
    """See harness.engines.base.Engine."""

    name = "sglang"
    health_path = "/health"
    multi_gpu = True
    evaluates = True
    profiles = True

    def problems(self, settings: SglangSettings) -> list[tuple[str, str]]:
        return problems(settings)

    def dialect(self, settings: SglangSettings, chat: bool) -> str:
        return "openai-chat" if chat else "sglang"

    def speculative(self, settings: SglangSettings) -> bool:
        return settings.speculation is not None

    def gpu_count(self, settings: SglangSettings, tp: int) -> int:
        return tp

    def meaningful_output(self, settings: SglangSettings) -> bool:
        simulated = settings.speculation and settings.speculation.simulate_accept_length
        return settings.load_format != "dummy" and not simulated

    def set_accept_length(self, settings: SglangSettings) -> float | None:
        return settings.speculation.simulate_accept_length if settings.speculation else None

    def verify_arm(self, settings: SglangSettings) -> str | None:
        return settings.verify

    def prepare(self, settings: SglangSettings, cache_dir: Path) -> None:
        """Makes a tiny model, in the interpreter that has SGLang; others are fetched by SGLang itself."""
        kind = tiny_kind(settings)
        if kind is None or tiny_qwen35.folder(cache_dir, kind).exists():
            return
        out = tiny_qwen35.folder(cache_dir, kind)
        argv = [self._python(settings), "-m", "harness.engines.tiny_qwen35", kind, str(out)]
        path = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])])
        done = subprocess.run(
            argv,
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise ServerStartError(
                f"the tiny model {kind} can't be made with {argv[0]}",
                "It needs tokenizers, torch, transformers and safetensors, which come with SGLang: "
                "set server.python to SGLang's interpreter.",
                log_tail=tuple(done.stderr.splitlines()[-8:]),
            )

    def command(self, settings: SglangSettings, context: LaunchContext) -> Command:
        argv = [self._python(settings), "-m", "sglang.launch_server"]
        argv += [
            "--model-path",
            _model_path(settings, context.cache_dir),
            "--served-model-name",
            context.identity,
        ]
        argv += ["--host", context.host, "--port", str(context.port), "--tp-size", str(context.tp)]
        argv += ["--enable-metrics", "--incremental-streaming-output"]
        if settings.load_format != "auto":
            argv += ["--load-format", settings.load_format]
        env = _ENV | settings.env
        if spec := settings.speculation:
            argv += ["--speculative-algorithm", spec.algorithm]
            argv += ["--speculative-num-steps", str(spec.steps)]
            argv += ["--speculative-eagle-topk", str(spec.topk)]
            argv += ["--speculative-num-draft-tokens", str(spec.draft_tokens)]
            if spec.simulate_accept_length is not None:
                env[SIMULATE] = f"{spec.simulate_accept_length:g}"
        values = {"max_concurrency": context.max_concurrency, "max_context": context.max_context}
        for flag, value in settings.flags.items():
            if value is True:
                argv.append(f"--{flag}")
            elif value is not None and value is not False:
                parts = value if isinstance(value, list) else [value]
                argv += [f"--{flag}", *(_PLACEHOLDER.sub(lambda m: str(values[m[1]]), str(part)) for part in parts)]
        devices = "HIP_VISIBLE_DEVICES" if settings.gpu_vendor == "amd" else "CUDA_VISIBLE_DEVICES"
        env[devices] = ",".join(map(str, context.gpus))
        if settings.gpu_vendor == "nvidia":
            env["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # the order in which NVML numbers them for telemetry
        if settings.verify:
            env[ARM_VARIABLE] = settings.verify
            if context.evidence_dir:
                env[EVIDENCE_VARIABLE] = str(context.evidence_dir)
            if context.plugin_dir:
                inherited = context.image_python_path if settings.container else os.environ.get("PYTHONPATH", "")
                env["PYTHONPATH"] = python_path(context.plugin_dir, settings.env.get("PYTHONPATH", inherited))
                # Else a server started in a checkout would find that one's kernel before ours (Python 3.11 and newer).
                env.setdefault("PYTHONSAFEPATH", "1")
        if context.kernel_cache:
            env = {name: str(context.kernel_cache / folder) for name, folder in _KERNEL_CACHES.items()} | env
        command = Command(tuple(argv), env, grace_s=_GRACE_S)
        if settings.container:
            shared = (context.plugin_dir, context.evidence_dir, context.trace_dir, context.kernel_cache)
            mounts = [f"{path}:{path}" for path in shared if path]
            command = in_container(
                command, settings.container, settings.gpu_vendor, context.identity, context.gpus, mounts
            )
        return command

    def _python(self, settings: SglangSettings) -> str:
        return settings.python or ("python3" if settings.container else sys.executable)

    def base_url(self, settings: SglangSettings, context: LaunchContext) -> str:
        return f"http://{context.host}:{context.port}"

    def access(self, settings: SglangSettings) -> Access:
        return Access()

    def interpreter(self, settings: SglangSettings, context: LaunchContext) -> tuple[str, ...]:
        inside = self._python(settings)
        if settings.container:
            return (settings.container.runtime, "exec", context.identity, inside)
        return (inside,)

    def gsm8k(
        self, settings: SglangSettings, context: LaunchContext, questions: int, parallel: int, data: str | None
    ) -> tuple[str, ...]:
        command = [*self.interpreter(settings, context), "-m", "sglang.test.few_shot_gsm8k"]
        command += ["--host", f"http://{context.host}", "--port", str(context.port)]
        command += ["--num-questions", str(questions), "--parallel", str(parallel)]
        return (*command, *(["--data-path", data] if data else []))

    async def identity(self, http: ControlClient) -> str | None:
        return await first_model(http)

    async def describe(self, settings: ServerSettings, http: ControlClient) -> dict[str, Any]:
        info = await self._server_info(http)
        states = info.pop("internal_states", None)
        described = {key: value for key, value in info.items() if not _SECRET.search(key)}
        described["decode_cuda_graph_bs"] = _first(states, "decode_cuda_graph_bs")
        return described

    async def _server_info(self, http: ControlClient) -> dict[str, Any]:
        for path in ("/server_info", "/get_server_info"):
            reply = await http.get(path)
            answer = reply.json()
            if reply.ok and isinstance(answer, dict):
                return answer
        return {}

    async def counters(self, settings: ServerSettings, http: ControlClient) -> dict[str, float]:
        reply = await http.get("/metrics")
        return prometheus_counters(reply.text, _COUNTERS, RANKS) if reply.ok else {}

    async def accept_length(self, settings: ServerSettings, http: ControlClient) -> float | None:
        return mean_accept_length((await self._server_info(http)).get("internal_states"))

    async def tokenize(self, settings: ServerSettings, http: ControlClient, text: str) -> list[int]:
        return await ask_tokens(http, {"prompt": text, "add_special_tokens": False})

    async def detokenize(self, settings: ServerSettings, http: ControlClient, ids: Sequence[int]) -> str:
        return await ask_text(http, ids, "text")

    async def answer(
        self, settings: ServerSettings, http: ControlClient, prompts: Sequence[Sequence[int]], output_tokens: int
    ) -> tuple[Output, ...]:
        return await ask_outputs(http, prompts, output_tokens, settings.request_timeout)

    async def start_profile(self, settings: ServerSettings, http: ControlClient, folder: Path, steps: int) -> bool:
        """A trace of decode steps alone: with stages, the profiler ends by itself, however many prefills come first."""
        reply = await http.post(
            "/start_profile",
            {
                "output_dir": str(folder),
                "num_steps": steps,
                "activities": ["GPU"],
                "profile_by_stage": True,
                "with_stack": False,
                "record_shapes": False,
            },
        )
        return reply.ok

    def parse_log(self, lines: Sequence[str]) -> list[dict[str, float]]:
        """`Decode batch` lines: one every 40 decode steps. Throughput there includes interleaved prefill."""
        steps = []
        for line in lines:
            if not (match := _DECODE.search(line)):
                continue
            step = {"running": float(match["running"])}
            for name, pattern in _DECODE_FIELDS.items():
                if found := pattern.search(line):
                    step[name] = float(found[1])
            if graph := _GRAPH.search(line):
                step["cuda_graph"] = float(graph[1] == "True")
            steps.append(step)
        return steps


def _model_path(settings: SglangSettings, cache_dir: Path) -> str:
    kind = tiny_kind(settings)
    return settings.model if kind is None else str(tiny_qwen35.folder(cache_dir, kind))


def mean_accept_length(states: object) -> float | None:
    """Mean `avg_spec_accept_length` over data-parallel ranks.

    A rank that served nothing reports null, and the key is absent before the first 40 decode steps.
    """
    ranks = states if isinstance(states, list) else []
    values = [rank.get("avg_spec_accept_length") for rank in ranks if isinstance(rank, dict)]
    numbers = [float(v) for v in values if isinstance(v, int | float) and not isinstance(v, bool) and 0 < v < 1e6]
    return sum(numbers) / len(numbers) if numbers else None


def _first(states: object, key: str) -> Any:
    """The value of the first rank that has one."""
    ranks = states if isinstance(states, list) else []
    return next((r[key] for r in ranks if isinstance(r, dict) and r.get(key) is not None), None)
