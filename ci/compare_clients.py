"""Load clients beside each other on our truth server: what each says of a request, and what the server did.

Called by compare_clients.sh, which makes the environments: `compare_clients.py FOLDER STREAMS GAP_MS ROUNDS CLIENT…`. A
client without an environment, or that fails, has a row that says so. The server has the machine's last core, the client
the others; its CPU and memory are those of its whole process tree, from start to end.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

from harness.selftest.client import Case, serving
from harness.selftest.truth_server import Schedule, Truth, read_truth
from harness.text import markdown_table

TOKENS = 128
LIMIT_S = 400


@dataclass(frozen=True)
class Told:
    """What a client says of one request: which answer it got (the number in its text), and seconds."""

    number: int
    ttft: float
    events: tuple[float, ...] = ()  # CLOCK_MONOTONIC, where the client keeps them


@dataclass(frozen=True)
class Used:
    cpu_s: float
    peak_mb: float


def number_of(text: str) -> int:
    return int(text[2:10])


def sglang(folder: Path, url: str, streams: int, count: int) -> list[str]:
    return [
        *(str(folder / "sglang/bin/python"), str(folder / "sglang_client.py"), "--backend", "vllm", "--base-url", url),
        *("--model", "truth", "--tokenizer", str(folder / "tokenizer"), "--dataset-name", "custom"),
        *("--dataset-path", str(folder / "sglang.jsonl"), "--num-prompts", str(count), "--warmup-requests", "0"),
        *("--sharegpt-output-len", str(TOKENS), "--max-concurrency", str(streams), "--disable-tqdm"),
        *("--output-details", "--output-file", str(folder / "out/sglang.json")),
    ]


def read_sglang(folder: Path) -> Iterator[Told]:
    """No time of a send: only TTFT can be compared."""
    data = json.loads((folder / "out/sglang.json").read_text().splitlines()[-1])
    for text, ttft in zip(data["generated_texts"], data["ttfts"], strict=True):
        if text:
            yield Told(number_of(text), ttft)


def vllm(folder: Path, url: str, streams: int, count: int) -> list[str]:
    script = [str(folder / "vllm/bin/python"), str(folder / "vllm_client.py"), url, str(folder / "vllm.jsonl")]
    return [*script, str(folder / "out/vllm.json"), str(TOKENS), str(streams), str(count)]


def read_vllm(folder: Path) -> Iterator[Told]:
    data = json.loads((folder / "out/vllm.json").read_text())
    rows = zip(data["generated_texts"], data["ttfts"], data["start_times"], data["itls"], strict=True)
    for text, ttft, start, gaps in rows:
        if text:
            yield Told(number_of(text), ttft, tuple(start + ttft + np.cumsum([0.0, *gaps])))


def aiperf(folder: Path, url: str, streams: int, count: int) -> list[str]:
    return [
        *(str(folder / "aiperf/bin/aiperf"), "profile", "--model", "truth", "--url", url, "--streaming"),
        *("--endpoint-type", "completions", "--concurrency", str(streams), "--request-count", str(count)),
        *("--tokenizer", str(folder / "tokenizer"), "--input-file", str(folder / "aiperf.jsonl")),
        *("--custom-dataset-type", "single_turn", "--output-tokens-mean", str(TOKENS), "--ui", "none"),
        *("--export-level", "records", "--export-outputs-json", "--output-artifact-dir", str(folder / "out/aiperf")),
    ]


def read_aiperf(folder: Path) -> Iterator[Told]:
    """Its event times are its first one's and the gaps after it, placed by wall-clock time: only TTFT is compared."""
    texts = {}
    for entry in _entries(json.loads((folder / "out/aiperf/outputs.json").read_text())):
        found = re.search(r" ?R(\d{8})", json.dumps(entry))
        texts[json.dumps(entry.get("session_num", entry.get("x_request_id")))] = int(found[1]) if found else -1
    for line in (folder / "out/aiperf/profile_export.jsonl").read_text().splitlines():
        record = json.loads(line)
        metadata, metrics = record["metadata"], record["metrics"]
        for key in ("session_num", "x_request_id"):
            number = texts.get(json.dumps(metadata.get(key)), -1)
            if number >= 0 and "time_to_first_token" in metrics:
                yield Told(number, metrics["time_to_first_token"]["value"] / 1e3)
                break


def _entries(data: object) -> Iterator[dict[str, object]]:
    if isinstance(data, dict):
        if "session_num" in data or "x_request_id" in data:
            yield data
        for value in data.values():
            yield from _entries(value)
    elif isinstance(data, list):
        for value in data:
            yield from _entries(value)


def guidellm(folder: Path, url: str, streams: int, count: int) -> list[str]:
    return [
        *(str(folder / "guidellm/bin/guidellm"), "run", "--backend", f"kind=openai_http,target={url},model=truth"),
        *("--profile", f"kind=concurrent,streams={streams}", "--constraint", f"kind=max_requests,count={count}"),
        *("--tokenizer", f"kind=huggingface_auto,model={folder / 'tokenizer'}", "--disable-console"),
        *("--data", f"kind=json_file,path={folder / 'guidellm.jsonl'}"),
        *("--output", f"kind=json,path={folder / 'out/guidellm.json'}"),
    ]


def read_guidellm(folder: Path) -> Iterator[Told]:
    data = json.loads((folder / "out/guidellm.json").read_text())
    for request in data["benchmarks"][0]["requests"]["successful"]:
        if request["output"]:
            yield Told(number_of(request["output"]), request["time_to_first_token_ms"] / 1e3)


def mtpbench(folder: Path, url: str, streams: int, count: int) -> list[str]:
    argv = [sys.executable, "-m", "harness.selftest.drive", url, str(streams), str(count), str(TOKENS)]
    return [*argv, str(folder / "out/mtpbench.json")]


def read_mtpbench(folder: Path) -> Iterator[Told]:
    """Its prompts are numbered; the answer's number is looked up by the prompt's."""
    for prompt, send, events in json.loads((folder / "out/mtpbench.json").read_text()):
        yield Told(-1 - prompt, events[0] - send, tuple(events))


CLIENTS = {
    "mtpbench": (mtpbench, read_mtpbench),
    "vllm": (vllm, read_vllm),
    "sglang": (sglang, read_sglang),
    "aiperf": (aiperf, read_aiperf),
    "guidellm": (guidellm, read_guidellm),
}


def run(argv: list[str], log: Path, cores: set[int]) -> Used:
    """Runs a client on some cores; raises RuntimeError with the end of its output where it fails."""
    with log.open("wb") as out:
        environment = {key: value for key, value in os.environ.items() if key != "HF_HUB_OFFLINE"}
        process = subprocess.Popen(
            ["taskset", "-c", ",".join(map(str, sorted(cores))), *argv], stdout=out, stderr=out, env=environment
        )
    seen: dict[int, float] = {}
    peak = [0.0]
    done = threading.Event()

    def look() -> None:
        while not done.wait(0.2):
            memory = 0.0
            try:
                for one in [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]:
                    try:
                        times = one.cpu_times()
                        seen[one.pid] = times.user + times.system
                        memory += one.memory_info().rss
                    except psutil.Error:
                        continue
            except psutil.Error:
                return
            peak[0] = max(peak[0], memory)

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        code = process.wait(LIMIT_S)
    except subprocess.TimeoutExpired:
        for one in [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]:
            one.kill()
        code = -1
    finally:
        done.set()
        watcher.join()
    if code:
        raise RuntimeError(f"exit code {code}: {log.read_text(errors='replace')[-300:]}")
    return Used(sum(seen.values()), peak[0] / 1e6)


def row(name: str, told: list[Told], truth: Truth, used: Used, case: Case) -> list[str]:
    order = np.argsort(truth.request, kind="stable")
    sent = truth.sent[order]
    edges = np.searchsorted(truth.request[order], np.arange(len(truth.number) + 1))
    place = {int(prompt): at for at, prompt in enumerate(truth.number)}
    begin = np.sort(truth.arrived)[case.streams]  # the first answers of all slots begin together, and are left out
    end = np.sort(truth.arrived)[-1]
    first, stamps = [], []
    for one in told:
        at = one.number if one.number >= 0 else place[-1 - one.number]
        true = sent[edges[at] : edges[at + 1]]
        if not begin <= truth.arrived[at] <= end:
            continue
        first.append(one.ttft - (true[0] - truth.arrived[at]))
        if len(one.events) == len(true):
            stamps += list(np.array(one.events) - true)
    inside = (truth.sent > begin) & (truth.sent <= end)
    rate = truth.new_tokens[inside].sum() / (end - begin)

    def two(values: list[float]) -> str:
        return " / ".join(f"{1e3 * value:.2f}" for value in np.percentile(np.abs(values), (50, 99))) if values else "–"

    cpu = f"{1e6 * used.cpu_s / len(truth.sent):.1f}"
    late = f"{1e3 * np.percentile(truth.late, 99):.2f}"
    return [name, str(len(told)), two(stamps), two(first), cpu, f"{used.peak_mb:.0f}", f"{rate:.0f}", late]


def main() -> None:
    folder, streams, gap, rounds = (
        Path(sys.argv[1]).resolve(),
        int(sys.argv[2]),
        float(sys.argv[3]) / 1e3,
        int(sys.argv[4]),
    )
    case = Case(streams, TOKENS, rounds, Schedule(0.2, gap, gap))
    cores = os.sched_getaffinity(0)
    core = max(cores) if len(cores) > 1 else None
    titles = ["client", "requests", "event stamps p50 / p99 ms", "TTFT p50 / p99 ms", "CPU µs an event", "MB"]
    titles += [f"tokens/s (of {case.ideal:.0f})", "server late p99 ms"]
    rows = []
    for name in sys.argv[5:]:
        command, read = CLIENTS[name]
        print(f"{name}: {case.label}", file=sys.stderr, flush=True)
        (folder / "out").mkdir(exist_ok=True)
        try:
            with serving(case.schedule, folder / "truth.npz", core) as url:
                argv = command(folder, url, streams, streams * rounds)
                if not Path(argv[0]).exists():
                    raise RuntimeError("not installed: see the output above")
                used = run(argv, folder / f"{name}.log", cores - {core} if core is not None else cores)
                time.sleep(0.5)
            rows.append(row(name, list(read(folder)), read_truth(folder / "truth.npz"), used, case))
        except (RuntimeError, OSError, ValueError, KeyError, IndexError) as error:
            print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr)
            rows.append([name, "failed", *[""] * (len(titles) - 2)])
    print("\n".join(markdown_table(titles, rows, ("client",))))


if __name__ == "__main__":
    main()
