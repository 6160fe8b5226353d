"""Drift watch, on a cut-down SGLang of our own writing: every kind of change is noticed and named."""

from __future__ import annotations

import json
import os
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from servers import launch_context
from sglang_sources import Sources

from harness.cli.app import main
from harness.engines.sglang import _COUNTERS, _ENV, Sglang
from harness.engines.sglang_settings import SglangSettings
from harness.upstream import checks
from harness.upstream.checks import Check, Flag, Gate
from harness.upstream.drift import DRIFT, HOLDS, NOT_EXPECTED, UNKNOWN, DriftReport, drift_of
from harness.upstream.expectations import BEYOND_SGLANG, EXPECTATIONS, SUPPORTED
from harness.upstream.reader import UpstreamError, WheelTree, release
from harness.upstream.render import delta, headline, to_json, to_markdown
from kernel import gate

ROOT = Path(__file__).parents[3]
AITER = "sglang/srt/layers/attention/aiter_backend.py"
TRITON = "sglang/srt/layers/attention/triton_backend.py"
METRICS = "sglang/srt/observability/metrics_collector.py"
FIELDS = "sglang/srt/arg_groups/fields/model.py"
MTP = "sglang/kernels/ops/attention/unified_attention_3d_mtp.py"


def sources(version: str) -> dict[str, str]:
    """The files of one version in tree.txt."""
    files: dict[str, str] = {}
    text = (Path(__file__).parent / "tree.txt").read_text(encoding="utf-8")
    for part in text.split("### ")[1:]:
        head, _, body = part.partition("\n")
        words = head.split()
        if len(words) == 1 or words[0] == version:
            files[words[-1]] = body
    return files


def changed(path: str, old: str, new: str, version: str = "0.5.23") -> Sources:
    files = sources(version)
    assert files[path].count(old) >= 1, f"{old!r} is not in the fixture"
    files[path] = files[path].replace(old, new)
    return Sources(version, files)


def drifted(report: DriftReport) -> dict[str, str]:
    return {row.what: r.message for row in report.rows for r in row.results if r.status == DRIFT}


def test_everything_holds_in_both_versions() -> None:
    report = drift_of([Sources(v, sources(v)) for v in reversed(SUPPORTED)])
    assert drifted(report) == {}
    assert report.exit_code == 0
    assert report.versions == ("0.5.16", "0.5.23")
    assert headline(report).startswith("OK: all ")
    by_name = {row.what: [r.status for r in row.results] for row in report.rows}
    assert by_name["shape gate of the MTP verify kernel"] == [NOT_EXPECTED, HOLDS]
    assert by_name["flag --cuda-graph-max-bs"] == [HOLDS, NOT_EXPECTED]


# path, what stood there, what stands there now, the expectation that must say so, and a piece of what it says
CHANGES = [
    (TRITON, "class TritonAttnBackend", "class TritonBackend", "hook (NVIDIA): TritonAttn", "TritonAttnBackend"),
    (TRITON, "def forward_extend", "def extend", "hook (NVIDIA): TritonAttn", "forward_extend is gone"),
    (TRITON, "forward_batch, save", "batch, save", "hook (NVIDIA): TritonAttn", "missing: forward_batch; new: batch"),
    (TRITON, "q, k, v, layer", "k, q, v, layer", "hook (NVIDIA): TritonAttn", "in another order"),
    (TRITON, "k, v, o, kb, vb", "k, v, kb, vb", "hook (NVIDIA): how extend", "16 positional values, expected 17"),
    (TRITON, "score_mod=None,\n", "\n", "hook (NVIDIA): how extend", "missing keywords: score_mod"),
    (TRITON, "self.kv_index_translator =", "self.translator =", "hook (NVIDIA): kv_index_tr", "assigned no more"),
    (TRITON, "kv_indices:", "kv_pages:", "hook (NVIDIA): fields", "ForwardMetadata has no kv_indices"),
    (AITER, "import unified_attention\n", "import attention\n", "hook (AMD): aiter_backend", "elsewhere: nowhere"),
    (AITER, "causal=True, ", "", "hook (AMD): what unified_attention is", "missing: causal"),
    (
        AITER,
        "block_table=page_table, k_descale=kd",
        "k_descale=kd",
        "hook (AMD): what unified_attention_3d",
        "block_table",
    ),
    (AITER, "page_table.shape[1] * self.page_size", "seq_lens.max()", "hook (AMD): max_seqlen_k", "= seq_lens.max()"),
    (AITER, "self.topk == 1", "self.topk <= 2", "hook (AMD): verify goes", "new: self.topk <= 2"),
    (AITER, "num_queries_per_kv == 16", "num_queries_per_kv == 32", "shape gate", "new: num_queries_per_kv == 32"),
    (AITER, "layer.v_head_dim == 256", "layer.v_head_dim == 128", "shape gate", "missing: layer.v_head_dim == 256"),
    (AITER, "            and max_kv_len > 512\n", "", "shape gate", "missing: max_kv_len > 512"),
    (AITER, "use_unified_attention_3d_mtp =", "use_mtp =", "shape gate", "is gone"),
    (MTP, "k_descale, v_descale\n", "k_descale, v_descale, sinks\n", "hook (AMD): unified_attention_3d", "new: sinks"),
    (MTP, 'ATTN", "1"', 'ATTN", "0"', "SGLANG_ASM_VERIFY_ATTN", "defaults to '0', was '1'"),
    (FIELDS, "    page_size:", "    kv_page_size:", "flag --page-size", "--page-size is no flag any more"),
    (FIELDS, "cuda_graph_max_bs_decode:", "graph_bs:", "flag --cuda-graph-max-bs-decode", "is no flag any more"),
    (FIELDS, '"Interval."] = 1', '"Interval."] = 8', "flag --stream-interval", "defaults to 8, was 1"),
    (FIELDS, '"fp8_e5m2", "fp8_e4m3"', '"fp8_e5m2"', "flag --kv-cache-dtype", "allows fp8_e4m3 no more"),
    ("sglang/srt/arg_groups/choices.py", '"aiter", ', "", "flag --attention-backend", "allows aiter no more"),
    (METRICS, "sglang:spec_verify_calls", "sglang:verify_calls", "metric sglang:spec_verify", "exposed no more"),
    (
        METRICS,
        'Gauge(name="sglang:spec_accept_length"',
        'Counter(name="sglang:spec_accept_length"',
        "metric",
        "was a Gauge",
    ),
    (
        "sglang/srt/environ.py",
        "ACC_LEN = EnvFloat(-1)",
        "ACC_LEN = EnvFloat(0)",
        "variable SGLANG_SIM",
        "was EnvFloat(-1)",
    ),
    (
        "sglang/srt/environ.py",
        "    SGLANG_USE_AITER = EnvBool(False)\n",
        "",
        "variable SGLANG_USE_AITER",
        "nothing reads it",
    ),
    ("sglang/srt/speculative/spec_utils.py", "acc_len - 1)", "acc_len)", "simulated acceptance inc", "any more"),
    ("sglang/srt/plugins/__init__.py", '"sglang.srt.plugins"', '"sglang.plugins"', "plug-in: entry", "was 'sglang.srt"),
    ("sglang/srt/plugins/hook_registry.py", "    AROUND =", "    WRAP =", "plug-in: HookType", "has no AROUND"),
    ("sglang/launch_server.py", "    load_plugins()\n", "", "plug-in: loaded by the launcher", "called no more"),
    ("sglang/srt/entrypoints/http_server.py", '"/server_info"', '"/info"', "GET /server_info", "is served no more"),
    ("sglang/srt/entrypoints/http_server.py", '["POST", "PUT"]', '["PUT"]', "POST /generate", "now: api_route"),
    (
        "sglang/srt/managers/tokenizer_manager.py",
        "completion_tokens[i] / recv",
        "correct_drafts[i] / recv",
        "meta_info spec_accept_length",
        "= recv_obj.correct_drafts[i] / recv_obj.spec_verify_ct[i], was",
    ),
    (
        "sglang/srt/managers/tokenizer_manager.py",
        '"cached_tokens": 0',
        '"hits": 0',
        "meta_info cached",
        "assigned no more",
    ),
    (
        "sglang/srt/managers/scheduler_components/metrics_reporter.py",
        "accept len: ",
        "accepted: ",
        "log: accept len",
        "is written no more",
    ),
]


@pytest.mark.parametrize(("path", "old", "new", "what", "message"), CHANGES)
def test_a_change_upstream_is_noticed_and_named(path: str, old: str, new: str, what: str, message: str) -> None:
    report = drift_of([changed(path, old, new)])
    found = {name: text for name, text in drifted(report).items() if name.startswith(what)}
    assert len(found) == 1, f"{what}: {drifted(report)}"
    assert message in next(iter(found.values()))
    assert report.exit_code == 1
    [result] = [r for row in report.rows for r in row.results if row.what in found]
    assert result.path.startswith("sglang/")


def test_the_line_of_a_changed_condition_is_given() -> None:
    tree = changed(AITER, "self.page_size == 16", "self.page_size == 64")
    [row] = [row for row in drift_of([tree]).rows if row.what == "shape gate of the MTP verify kernel"]
    line = tree.files[AITER].splitlines()[row.results[0].line - 1]
    assert "self.page_size == 64" in line


def test_what_moved_is_found_again() -> None:
    files = sources("0.5.23")
    files["sglang/kernels/mtp.py"] = files.pop(MTP)
    files[MTP] = ""
    message = drifted(drift_of([Sources("0.5.23", files)]))["hook (AMD): unified_attention_3d_mtp_func"]
    assert "unified_attention_3d_mtp_func is now in sglang/kernels/mtp.py:3" in message


def test_a_file_that_is_gone_is_drift_and_one_that_cannot_be_read_is_unknown() -> None:
    files = sources("0.5.23")
    del files[TRITON]
    assert (
        drifted(drift_of([Sources("0.5.23", files)]))["hook (NVIDIA): fields of ForwardMetadata"] == "the file is gone"
    )
    broken = drift_of([changed(TRITON, "class ForwardMetadata", "class class")])
    assert broken.exit_code == 2
    there = [e for e in EXPECTATIONS if getattr(e.check, "path", "") == TRITON and e.applies_to("0.5.23")]
    assert broken.count(UNKNOWN) == len(there) > 2
    unread = drift_of([changed(FIELDS, "choices=ATTENTION_BACKEND_CHOICES", "choices=ask_the_platform()")])
    assert unread.exit_code == 2


def test_what_holds_and_yet_changed_is_listed() -> None:
    report = drift_of([Sources(v, sources(v)) for v in SUPPORTED])
    [change] = [c for c in report.changes if c.what == "flag --attention-backend"]
    assert change.versions == ("0.5.16", "0.5.23")
    assert delta(change.before, change.after) == "− cutlass_mla; + qsa"
    assert "− cutlass_mla; + qsa" in to_markdown(report)
    assert "not checked: AITER_FLYDSL_FORCE" in to_markdown(report), "what can't be told is said"


def test_every_kind_of_check_is_seen_failing() -> None:
    """A check that can't fail watches nothing."""
    known = {name for name, kind in vars(checks).items() if hasattr(kind, "look") and kind is not Check}
    by_name = {e.what: type(e.check).__name__ for e in EXPECTATIONS}
    failing = {kind for what, kind in by_name.items() if any(what.startswith(c[3]) for c in CHANGES)} | {"File"}
    assert known == failing


def test_no_version_is_meant_twice_by_one_name() -> None:
    for version in ("0.5.16", "0.5.19", "0.5.20", "0.5.22", "0.5.23", "0.6.0"):
        names = [e.what for e in EXPECTATIONS if e.applies_to(version)]
        assert len(names) == len(set(names))


def test_what_we_use_is_watched() -> None:
    """Flags, variables and counters of the engine and of every scenario are in the table."""
    flags = {e.check.name for e in EXPECTATIONS if isinstance(e.check, Flag)}
    text = " ".join(repr(e.check) for e in EXPECTATIONS)
    for name in [*_COUNTERS, *_ENV]:
        assert name in text, name
    used: set[str] = set()
    for path in (ROOT / "scenarios").glob("*.yaml"):
        scenario = yaml.safe_load(path.read_text(encoding="utf-8"))
        servers = [scenario["server"], *scenario["arms"].values()]
        if scenario["server"]["engine"] == "sglang":
            used |= {f"--{flag}" for server in servers for flag in server.get("flags", {})}
            variables = {name for server in servers for name in server.get("env", {})} - set(BEYOND_SGLANG)
            assert {name for name in variables if name not in text} == set(), path.name
    settings = SglangSettings.model_validate(
        {"engine": "sglang", "model": "m", "gpu_vendor": "amd", "load_format": "dummy", "speculation": {}}
    )
    command = Sglang().command(settings, launch_context())
    used |= {word for word in command.argv if word.startswith("--")}
    assert used - flags == set()


def test_upstreams_gate_is_within_ours() -> None:
    """What upstream's gate lets through at 16:1, ours must serve: same ratio, sizes and lengths."""
    [check] = [e.check for e in EXPECTATIONS if e.what.startswith("shape gate") and e.applies_to("0.5.23")]
    assert isinstance(check, Gate)
    conditions = set(check.conditions)
    assert f"1 < self.forward_metadata.max_q_len <= {gate.MAX_QUERY_LENGTH}" in conditions
    assert f"self.page_size == {gate.PAGE_SIZE}" in conditions
    assert {f"layer.qk_head_dim == {gate.HEAD_SIZE}", f"layer.v_head_dim == {gate.HEAD_SIZE}"} <= conditions
    assert any(
        condition.startswith(f"num_queries_per_kv == {ratio}") for condition in conditions for ratio in gate.GQA_RATIOS
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0.5.23", (0, 5, 23)), ("0.5.15.post1", (0, 5, 15, 1)), ("0.6.0rc1", (0, 6, 0)), ("main", ())],
)
def test_versions_compare(text: str, expected: tuple[int, ...]) -> None:
    assert release(text) == expected


def wheel(folder: Path, version: str, files: dict[str, str]) -> Path:
    """A wheel as pip accepts it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"sglang-{version}-py3-none-any.whl"
    info = f"sglang-{version}.dist-info"
    meta = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: sglang\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": "",
    }
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in {**files, **meta}.items():
            archive.writestr(name, text)
    return path


Doctor = Callable[..., tuple[int, str, str]]


@pytest.fixture
def doctor(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Doctor:
    """The verb with a cache of its own: exit code, stdout, stderr."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["mtpbench", "doctor", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        return int(ended.value.code or 0), captured.out, captured.err

    return call


def test_a_wheel_reads_like_its_sources(tmp_path: Path) -> None:
    files = sources("0.5.23")
    from_sources = drift_of([Sources("0.5.23", files)])
    from_wheel = drift_of([WheelTree(wheel(tmp_path, "0.5.23", files))])
    assert from_sources.rows == from_wheel.rows
    assert from_wheel.exit_code == 0
    document = json.loads(to_json(from_wheel))
    assert document["exit_code"] == 0
    assert document["versions"][0]["version"] == "0.5.23"
    entry = next(e for e in document["expectations"] if e["what"] == "flag --stream-interval")
    assert entry["results"]["0.5.23"]["seen"] == "default 1"


def test_what_is_no_wheel_of_sglang_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.whl").write_bytes(b"no zip")
    with pytest.raises(UpstreamError, match="can't be read as a wheel"):
        WheelTree(tmp_path / "x.whl")
    with zipfile.ZipFile(tmp_path / "y.whl", "w") as archive:
        archive.writestr("other/__init__.py", "")
    with pytest.raises(UpstreamError, match="not a wheel of sglang"):
        WheelTree(tmp_path / "y.whl")


def test_the_verb_fetches_through_pip_caches_and_exits_by_verdict(
    doctor: Doctor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Through the real pip, whose index is here a folder of wheels; two versions are in the cache."""
    for version in SUPPORTED:
        wheel(tmp_path / "cache" / "mtpbench" / "upstream" / version, version, sources(version))
    files = changed(METRICS, "sglang:cached_tokens_total", "sglang:cache_hits_total").files
    wheel(tmp_path / "index", "0.5.24", files)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    code, out, err = doctor("--upstream", "--format", "json", "--output", str(tmp_path / "out.json"))
    assert code == 1, err
    assert out == (tmp_path / "out.json").read_text(encoding="utf-8")
    document = json.loads(out)
    assert [entry["version"] for entry in document["versions"]] == ["0.5.16", "0.5.23", "0.5.24"]
    bad = [e["what"] for e in document["expectations"] if any(r["status"] == DRIFT for r in e["results"].values())]
    assert bad == ["metric sglang:cached_tokens_total"]
    assert "sglang 0.5.16: from the cache" in err
    assert "sglang 0.5.24: fetching" in err

    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nothing"))
    code, out, _ = doctor("--upstream", "0.5.24")
    assert code == 1, "once fetched, no index is needed"
    assert "sglang:cached_tokens_total is exposed no more" in " ".join(out.split())
    code, _, err = doctor("--upstream", "0.5.17")
    assert code == 2
    assert "Is there a network?" in err
    assert not list((tmp_path / "cache").rglob(".partial-*"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "what shall be checked"),
        (("0.5.16",), "what shall be checked"),
        (("--upstream", "../etc"), "is not a version"),
        (("--upstream", "0.5.16", "--format", "xml"), "--format 'xml' is unknown"),
        (("--wheel", "nothing.whl"), "can't be read as a wheel"),
    ],
)
def test_what_cannot_be_asked_is_said(doctor: Doctor, arguments: tuple[str, ...], message: str) -> None:
    code, _, err = doctor(*arguments)
    assert code == 2
    assert message in err
