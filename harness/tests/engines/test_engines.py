"""Every engine against the same contract, and what is particular to each."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import stat
import threading
from collections.abc import AsyncIterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from servers import launch_context, scripted, server

from harness.access import Access
from harness.cli.common import default_cache
from harness.engines import tiny_gguf
from harness.engines.attach import AttachSettings
from harness.engines.base import prometheus_counters
from harness.engines.llamacpp import LlamaCppSettings
from harness.engines.registry import ENGINES
from harness.engines.script import ScriptedSettings
from harness.engines.server import free_port, server_process
from harness.engines.sglang import RANKS, Sglang, mean_accept_length
from harness.engines.sglang_settings import SglangSettings, SglangSpeculation
from harness.engines.tiny_qwen35 import KINDS, config
from harness.errors import ServerDiedError, WorkloadError
from harness.fields import Container, ServerSettings
from harness.http import ControlClient
from harness.load.dialects import DIALECTS, Prompt, Sampling
from harness.load.requests import PlannedRequest
from harness.load.workers import LoadJob, Workers


@contextlib.asynccontextmanager
async def up(kind: str, tmp_path: Path) -> AsyncIterator[tuple[str, ServerSettings, str]]:
    """(engine, settings, base URL) of a running server of this kind."""
    if kind == "attach":
        async with scripted(tmp_path, speculative=True, chunk_tokens=[3]) as running:
            yield "attach", AttachSettings(engine="attach", url=running.base_url, api="llamacpp"), running.base_url
        return
    settings: ServerSettings
    if kind == "scripted":
        settings = ScriptedSettings(engine="scripted", speculative=True, chunk_tokens=[3])
    else:
        settings = LlamaCppSettings.model_validate({"engine": "llamacpp", "speculation": {"draft_tokens": 3}})
    engine = ENGINES[kind]
    context = launch_context(free_port(), cache_dir=default_cache())
    engine.prepare(settings, context.cache_dir)
    command = engine.command(settings, context)
    assert command is not None
    process = server_process(engine, settings, context, command, tmp_path / "log")
    async with process:
        yield kind, settings, process.base_url


@pytest.mark.parametrize("kind", ["attach", "llamacpp", "scripted"])
def test_contract(kind: str, tmp_path: Path) -> None:
    """Ready, identified, described; tokenises; exact prompts and outputs; steps reported; counters grow."""

    async def main() -> None:
        async with up(kind, tmp_path) as (name, settings, url), ControlClient(url) as http:
            engine = ENGINES[name]
            assert (await http.get(engine.health_path)).ok
            model = await engine.identity(http)
            assert model
            assert isinstance(await engine.describe(settings, http), dict)
            ids = await engine.tokenize(settings, http, "The page table maps each token to its slot, and that is all.")
            assert len(ids) > 10
            assert "page" in await engine.detokenize(settings, http, ids)
            before = await engine.counters(settings, http)
            dialect = engine.dialect(settings, False)
            body = DIALECTS[dialect].body(Prompt(len(ids), ids=tuple(ids)), 24, Sampling(model))
            job = LoadJob(
                url, dialect, (PlannedRequest(0, body, len(ids), 24),), 1, False, 30.0, engine.access(settings)
            )
            with Workers(1) as workers:
                [record] = (await workers.run(job)).requests
            assert record.ok, record.error
            assert record.prompt_tokens == len(ids)
            assert record.tokens == 24
            assert record.events[0].tokens >= 1
            assert record.verify_steps
            assert 23 / 4 <= record.verify_steps <= 23
            assert record.cached_tokens is not None
            after = await engine.counters(settings, http)
            if before:
                assert after["output_tokens"] - before["output_tokens"] == 24

    asyncio.run(main())


def test_llama_cpp_output_does_not_depend_on_mtp(tmp_path: Path) -> None:
    """Greedy text with drafts is the text without: the MTP path is real and right."""

    async def main(speculation: dict | None) -> str:
        engine = ENGINES["llamacpp"]
        settings = LlamaCppSettings.model_validate({"engine": "llamacpp", "speculation": speculation})
        context = launch_context(free_port(), cache_dir=default_cache())
        engine.prepare(settings, context.cache_dir)
        command = engine.command(settings, context)
        assert command is not None
        process = server_process(engine, settings, context, command, tmp_path / "log")
        body = DIALECTS["openai"].body(Prompt(20, ids=tuple(range(300, 320))), 40, Sampling(context.identity))
        job = LoadJob(
            process.base_url, "openai", (PlannedRequest(0, body, 20, 40),), 1, False, 30.0, Access(keep_alive=False)
        )
        async with process:
            with Workers(1) as workers:
                [record] = (await workers.run(job)).requests
        assert record.ok, record.error
        assert (record.verify_steps is not None) == (speculation is not None)
        return record.output_digest

    assert asyncio.run(main(None)) == asyncio.run(main({"draft_tokens": 3}))


def test_tiny_model_is_made_once(tmp_path: Path) -> None:
    small = tiny_gguf.TinyConfig(layers=4, hidden=128, ffn=128, heads=2, key_heads=1, value_heads=2)
    path = tiny_gguf.cached(tmp_path, small)
    stamp = path.stat().st_mtime_ns
    assert tiny_gguf.cached(tmp_path, small) == path
    assert path.stat().st_mtime_ns == stamp
    assert tiny_gguf.cache_path(tmp_path) != path
    assert not list(tmp_path.glob("*.partial"))


@pytest.mark.parametrize("kind", KINDS)
def test_tiny_qwen35_has_the_verify_kernels_shape(kind: str) -> None:
    text = config(kind)["text_config"]
    assert text["num_attention_heads"] / text["num_key_value_heads"] == 16
    assert text["head_dim"] == 256
    assert text["layer_types"].count("full_attention") * 4 == text["num_hidden_layers"]


# SGLang itself is not here: its command line, and answers recorded from it, are.

AMD = {
    "engine": "sglang", "model": "amd/Qwen3.5-397B-A17B-MXFP4", "gpu_vendor": "amd", "gpus": [4, 5],
    "python": "python3",
    "env": {"SGLANG_USE_AITER": "1", "SGLANG_USE_AITER_UNIFIED_ATTN": "1"},
    "speculation": {"steps": 3, "topk": 1, "draft_tokens": 4},
    "flags": {
        "attention-backend": "aiter", "kv-cache-dtype": "fp8_e4m3", "page-size": 16, "trust-remote-code": True,
        "max-running-requests": "$max_concurrency", "context-length": "$max_context", "disable-radix-cache": True,
        "enable-aiter-allreduce-fusion": None,
    },
}  # fmt: skip


def settings(**changes: object) -> SglangSettings:
    return SglangSettings.model_validate({**AMD, **changes})


def test_sglang_command_line() -> None:
    context = launch_context(31000, tp=2, gpus=(4, 5), max_concurrency=256, max_context=9268)
    command = Sglang().command(settings(), context)
    expected = (
        "python3 -m sglang.launch_server --model-path amd/Qwen3.5-397B-A17B-MXFP4 "
        "--served-model-name mtpbench-test-31000 --host 127.0.0.1 --port 31000 --tp-size 2 --enable-metrics "
        "--incremental-streaming-output --speculative-algorithm EAGLE --speculative-num-steps 3 "
        "--speculative-eagle-topk 1 --speculative-num-draft-tokens 4 --attention-backend aiter "
        "--kv-cache-dtype fp8_e4m3 --page-size 16 --trust-remote-code --max-running-requests 256 "
        "--context-length 9268 --disable-radix-cache"
    )
    assert " ".join(command.argv) == expected
    assert command.env["HIP_VISIBLE_DEVICES"] == "4,5"
    assert command.env["SGLANG_USE_AITER"] == "1"
    assert command.env["SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION"] == "0"
    assert "CUDA_VISIBLE_DEVICES" not in command.env


def test_sglang_without_drafts_and_with_simulated_ones() -> None:
    engine, context = Sglang(), launch_context(gpus=(0,))
    plain = settings(speculation=None, gpu_vendor="nvidia", load_format="dummy")
    command = engine.command(plain, context)
    assert not [word for word in command.argv if "speculative" in word]
    assert command.argv[command.argv.index("--load-format") + 1] == "dummy"
    assert command.env["CUDA_VISIBLE_DEVICES"] == "0"
    assert engine.speculative(plain) is False
    assert not engine.meaningful_output(plain)
    simulated = settings(speculation={"simulate_accept_length": 3.3})
    assert engine.command(simulated, context).env["SGLANG_SIMULATE_ACC_LEN"] == "3.3"
    assert not engine.meaningful_output(simulated)
    assert engine.meaningful_output(settings())
    assert SglangSpeculation().draft_tokens == 4


def test_sglang_in_a_container() -> None:
    container = {"image": "rocm@sha256:ab", "mounts": ["/data:/data:ro"], "pass_env": ["HF_TOKEN"], "shm_size": "32g"}
    context = launch_context(31000, tp=2, gpus=(4, 5))
    command = Sglang().command(settings(container=container), context)
    start = command.argv.index("rocm@sha256:ab")
    before, after = command.argv[:start], command.argv[start + 1 :]
    assert before[:4] == ("docker", "run", "--rm", "--init")
    for argument in (
        "--name=mtpbench-test-31000", "--network=host", "--shm-size=32g", "--device=/dev/kfd", "--device=/dev/dri",
        "--volume=/data:/data:ro", "--env=HIP_VISIBLE_DEVICES=4,5", "--env=HF_TOKEN", "--entrypoint=python3",
    ):  # fmt: skip
        assert argument in before
    assert after[:2] == ("-m", "sglang.launch_server")
    assert command.cleanup == ("docker", "rm", "--force", "mtpbench-test-31000")
    assert Sglang().interpreter(settings(container=container), context)[:3] == ("docker", "exec", context.identity)

    nvidia = settings(container={"image": "i"}, gpu_vendor="nvidia")
    command = Sglang().command(nvidia, context)
    assert '--gpus="device=4,5"' in command.argv
    assert "--env=CUDA_VISIBLE_DEVICES=0,1" in command.argv  # numbered anew inside
    podman = settings(container=Container(image="i", runtime="podman").model_dump(), gpu_vendor="nvidia")
    assert "--device=nvidia.com/gpu=5" in Sglang().command(podman, context).argv


def test_container_life_with_a_stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A `docker` that runs the command on this host: started, found ready, removed by name."""
    calls = tmp_path / "calls"
    script = f"""#!/usr/bin/env python3
import os, sys
open({str(calls)!r}, "a").write(" ".join(sys.argv[1:3]) + "\\n")
if sys.argv[1] == "run":
    entry = next(a for a in sys.argv if a.startswith("--entrypoint=")).split("=", 1)[1]
    for argument in sys.argv:
        if argument.startswith("--env=") and "=" in argument[6:]:
            key, value = argument[6:].split("=", 1)
            os.environ[key] = value
    arguments = sys.argv[sys.argv.index("image:1") + 1:]
    os.execvp(entry, [entry, *arguments])
"""
    folder = tmp_path / "bin"
    folder.mkdir()
    docker = folder / "docker"
    docker.write_text(script)
    docker.chmod(docker.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")

    from harness.engines.command import in_container
    from harness.engines.scripted import Scripted

    context = launch_context(free_port())
    inner = Scripted().command(ScriptedSettings(engine="scripted"), context)
    command = in_container(inner, Container(image="image:1"), "amd", context.identity, (0,))
    process = server_process(Scripted(), ScriptedSettings(engine="scripted"), context, command, tmp_path / "log", 20.0)

    async def main() -> None:
        async with process:
            assert process.exit_status is None

    asyncio.run(main())
    # Removal is asked for twice: a container that was just being made is there a moment later.
    assert calls.read_text().splitlines() == ["run --rm", "rm --force", "rm --force"]


def test_sglang_decode_log() -> None:
    """Lines as SGLang 0.5.16 wrote them on an H200."""
    lines = [
        "[2026-11-30 00:48:34] Decode batch, #running-req: 1, #full token: 8240, full token usage: 0.00, mamba num: 1, "
        "mamba usage: 0.00, cuda graph: True, gen throughput (token/s): 531.82, #queue-req: 0",
        "[2026-11-30 00:55:01 TP0] Decode batch, #running-req: 16, #full token: 135000, full token usage: 0.13, "
        "accept len: 3.15, accept rate: 0.72, cuda graph: False, gen throughput (token/s): 1014.98, #queue-req: 2",
        "[2026-11-30 00:55:01] Prefill batch, #new-seq: 1, #new-token: 8192, #running-req: 3, #queue-req: 0",
        "INFO: something else",
    ]
    assert Sglang().parse_log(lines) == [
        {"running": 1, "throughput": 531.82, "queued": 0, "token_usage": 0.0, "cuda_graph": 1.0},
        {
            "running": 16, "throughput": 1014.98, "queued": 2, "token_usage": 0.13, "cuda_graph": 0.0,
            "accept_length": 3.15,
        },
    ]  # fmt: skip


def test_counters_are_summed_over_labels_but_tp_ranks_share_the_work() -> None:
    """Both TP ranks time a forward pass; the first alone counts tokens. DP ranks (0 has two TP ranks) work apart."""
    page = """# TYPE sglang:forward_execution_seconds counter
sglang:forward_execution_seconds_total{category="extend",dp_rank="0",tp_rank="0"} 40.0
sglang:forward_execution_seconds_total{category="extend",dp_rank="0",tp_rank="1"} 42.0
sglang:forward_execution_seconds_total{category="decode",dp_rank="0",tp_rank="0"} 2.0
sglang:forward_execution_seconds_total{category="decode",dp_rank="0",tp_rank="1"} 2.0
sglang:forward_execution_seconds_total{category="extend",dp_rank="1",tp_rank="2"} 100.0
# TYPE sglang:prompt_tokens counter
sglang:prompt_tokens_total{tp_rank="0"} 7.0
# TYPE sglang:spec_accept_length gauge
sglang:spec_accept_length 3.3
"""
    names = {"sglang:forward_execution_seconds_total": "seconds_{category}", "sglang:prompt_tokens_total": "tokens"}
    summed = {"seconds_extend": 40.0 + 42.0 + 100.0, "seconds_decode": 4.0, "tokens": 7.0}
    assert prometheus_counters(page, names) == summed
    shared = {"seconds_extend": 41.0 + 100.0, "seconds_decode": 2.0, "tokens": 7.0}
    assert prometheus_counters(page, names, RANKS) == shared


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        ([{"avg_spec_accept_length": None}, {"avg_spec_accept_length": None}, {"avg_spec_accept_length": 2.9}], 2.9),
        ([{"avg_spec_accept_length": 3.0}, {"avg_spec_accept_length": 2.0}], 2.5),
        ([{}], None),  # too short a run for the server's window
        (None, None),
        ("garbage", None),
    ],
)
def test_accept_length_of_data_parallel_ranks(states: object, expected: float | None) -> None:
    """The mean over the ranks that tell one; None where none does."""
    assert mean_accept_length(states) == expected


def test_a_server_that_cannot_tokenise_is_named() -> None:
    class Without(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_error(404)

        do_GET = do_POST

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Without) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        with pytest.raises(WorkloadError, match="can't tokenise: POST /tokenize answered 404"):
            asyncio.run(ENGINES["sglang"].tokenize(settings(), ControlClient(url), "text"))
        server.shutdown()


def test_a_dead_server_is_not_told_to_tokenise() -> None:
    with pytest.raises(ServerDiedError, match="does not answer"):
        asyncio.run(ENGINES["sglang"].tokenize(settings(), ControlClient("http://127.0.0.1:9"), "text"))


def test_describe_leaves_secrets_out(tmp_path: Path) -> None:
    class Http:
        base_url = "http://x"

        async def get(self, path: str, timeout_s: float = 1.0):
            from harness.http import Reply

            info = {"version": "0.5.16", "api_key": "k", "hf_token": "t", "page_size": 16, "max_total_tokens": 5}
            return Reply(200, json.dumps({**info, "internal_states": [{"decode_cuda_graph_bs": [1, 16]}]}))

    described = asyncio.run(Sglang().describe(settings(), Http()))  # type: ignore[arg-type]
    expected = {"version": "0.5.16", "page_size": 16, "max_total_tokens": 5, "decode_cuda_graph_bs": [1, 16]}
    assert described == expected


def test_scripted_server_cannot_be_started_twice_on_a_port(tmp_path: Path) -> None:
    async def main() -> None:
        async with scripted(tmp_path) as running:
            port = int(running.base_url.rsplit(":", 1)[1])
            script = ScriptedSettings(engine="scripted")
            async with server(script, tmp_path / "second.log", launch_context(port)):
                raise AssertionError("it must not start")

    with pytest.raises(Exception, match="is in use"):
        asyncio.run(main())


def attached(**values: object) -> AttachSettings:
    return AttachSettings.model_validate({"engine": "attach", "url": "http://127.0.0.1:9", **values})


def test_an_attached_server_gets_headers_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "sk-secret")
    monkeypatch.setenv("MY_TEAM", "a b")
    access = ENGINES["attach"].access(attached(api_key_env="MY_KEY", header_env={"X-Team": "MY_TEAM"}))
    assert dict(access.headers) == {"X-Team": "a b", "Authorization": "Bearer sk-secret"}
    assert "sk-secret" not in repr(access)
    assert access.keep_alive
    assert not ENGINES["attach"].access(attached(api="llamacpp")).keep_alive
    assert ENGINES["attach"].access(attached()) == Access()


def test_access_that_cannot_be_had_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TWO_LINES", "a\nb")
    (tmp_path / "no.pem").write_text("nothing")
    for wrong, message in [
        ({"api_key_env": "NO_SUCH_KEY"}, "NO_SUCH_KEY is not set"),
        ({"header_env": {"X": "TWO_LINES"}}, "characters that a header can't have"),
        ({"url": "https://x", "ca_file": str(tmp_path / "none.pem")}, "none.pem: .*No such file"),
        ({"url": "https://x", "ca_file": str(tmp_path / "no.pem")}, "no.pem: .*NO_CERTIFICATE"),
    ]:
        with pytest.raises(WorkloadError, match=message):
            ENGINES["attach"].access(attached(**wrong))
