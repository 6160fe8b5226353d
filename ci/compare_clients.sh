#!/usr/bin/env bash
# mtpbench beside SGLang's own client (bench_serving 0.5.16) on the embedded llama.cpp server: the same 40 prompts of
# 64 tokens, 48 output tokens, concurrency 4, three runs each in ABBA order, a fresh server for every run (no cache).
# From the repository: `bash ci/compare_clients.sh`. Needs .venv with the extra `embedded`, Python 3.11 and PyPI.
# Nothing of torch is installed: peer.py below loads the client's module without the package around it.
set -euo pipefail
bin=$PWD/.venv/bin dir=$(mktemp -d) server=
trap 'test -z "$server" || kill "$server" || true; rm -rf "$dir"' EXIT
"${PYTHON311:-python3.11}" -m venv "$dir/venv"
"$dir/venv/bin/pip" install -q transformers==5.12.1 tokenizers==0.22.2 numpy==2.4.6 aiohttp==3.14.5 requests==2.34.2 tqdm==4.70.1 \
  datasets==5.2.0 pillow==13.0.0 psutil==7.2.2 pybase64==1.5.1 pyzmq==27.3.0 gguf==0.19.0
"$dir/venv/bin/pip" install -q --no-deps sglang==0.5.16
cat > "$dir/peer.py" <<'PY'
import importlib.util, sys, types
[root] = importlib.util.find_spec("sglang").submodule_search_locations
for name in ("sglang", "sglang.srt.utils", "sglang.srt.disaggregation.utils"):  # their __init__ would import torch
    sys.modules[name] = module = types.ModuleType(name)
    module.__path__ = [root + name.removeprefix("sglang").replace(".", "/")]
module.FAKE_BOOTSTRAP_HOST = ""  # unused: for disaggregated servers
from sglang.benchmark.serving import cli_main
cli_main()
PY
PYTHONPATH=$PWD "$dir/venv/bin/python" - "$dir" <<'PY'
import json, pathlib, sys
import gguf, tokenizers
from harness.corpus import corpus
from harness.engines import tiny_gguf
out = pathlib.Path(sys.argv[1])
tiny_gguf.write(out / "tiny.gguf")
fields = gguf.GGUFReader(out / "tiny.gguf").fields
tokens, merges = (fields[f"tokenizer.ggml.{key}"].contents() for key in ("tokens", "merges"))
vocabulary = {token: n for n, token in enumerate(tokens)}
bpe = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, [tuple(merge.split(" ")) for merge in merges]))
bpe.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
bpe.decoder = tokenizers.decoders.ByteLevel()
(out / "tokenizer").mkdir()
bpe.save(str(out / "tokenizer/tokenizer.json"))
(out / "tokenizer/tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
ids = bpe.encode("\n".join(corpus("prose"))[:200_000]).ids
texts = [bpe.decode(ids[n : n + 64]) for n in range(0, len(ids), 200)]
texts = [text for text in texts if len(bpe.encode(text).ids) == 64][:44]  # mtpbench warms up with the first four
(out / "ours.jsonl").write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
turns = ([{"content": text}, {"content": "any"}] for text in texts[4:])
(out / "theirs.jsonl").write_text("".join(json.dumps({"conversations": turn}) + "\n" for turn in turns))
PY
port=$("$bin/python" -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')
url=http://127.0.0.1:$port
for arm in "no-mtp 0" "mtp 3"; do
  read -r name drafts <<< "$arm"
  cat > "$dir/$name.yaml" <<YAML
{version: 1, name: $name, question: "What does mtpbench measure?", arms: {$name: {}}, arrival: {concurrency: [4], requests_per_slot: 10},
 server: {engine: attach, url: "$url", api: llamacpp}, workload: {prompts: jsonl, file: ours.jsonl, input_tokens: 64, output_tokens: 48}}
YAML
  for client in ours theirs theirs ours ours theirs; do
    "$bin/python" -m harness.engines.llamacpp_server --model "$dir/tiny.gguf" --port "$port" --alias tiny --slots 4 \
      --threads 1 --context 256 --draft-tokens "$drafts" >> "$dir/log" 2>&1 & server=$!
    until "$bin/python" -c "import urllib.request as u; u.urlopen('$url/health')" 2>/dev/null; do kill -0 "$server"; sleep 0.5; done
    echo "$name: $client" >&2
    if [ $client = ours ]; then "$bin/python" -m harness run "$dir/$name.yaml" --store "$dir/$name" >> "$dir/log" 2>&1; else
      HF_HUB_OFFLINE=1 "$dir/venv/bin/python" "$dir/peer.py" --backend vllm --base-url "$url" --model tiny --tokenizer "$dir/tokenizer" \
        --dataset-name custom --dataset-path "$dir/theirs.jsonl" --num-prompts 40 --sharegpt-output-len 48 --max-concurrency 4 \
        --warmup-requests 4 --disable-tqdm --output-details --output-file "$dir/$name.jsonl" >> "$dir/log" 2>&1
    fi || { tail -n 30 "$dir/log"; exit 1; }
    kill "$server"; wait "$server" || true; server=
  done
done
if [ -n "${KEEP:-}" ]; then mkdir -p "$KEEP"; cp -r "$dir"/*.json* "$dir"/log "$dir"/tokenizer "$dir"/no-mtp "$dir"/mtp "$KEEP"; fi
"$bin/python" - "$dir" <<'PY'
import json, pathlib, sys
from statistics import fmean, median
from harness.store.runs import load_run
from harness.results.lines import summarise
root = pathlib.Path(sys.argv[1])
COLUMNS = "TPOT median", "TPOT mean", "TTFT median", "output tok/s"
def ours(run):
    [line] = summarise(run)
    assert not line.failed and line.requests == 40, line
    value = line.get
    return 1e3 * value("tpot_p50"), 1e3 * value("tpot_mean"), 1e3 * value("ttft_p50"), value("output_throughput")
def ours_as_theirs(run):  # calculate_metrics() of sglang/benchmark/serving.py, on our raw records
    rs = run.passes[0].requests
    tpot = [1e3 * (r.t_end - r.events[0].t) / (r.output_tokens_asked - 1) for r in rs]
    ttft = [1e3 * (r.events[0].t - r.t_scheduled) for r in rs]
    seconds = max(r.t_end for r in rs) - min(r.t_scheduled for r in rs)
    return median(tpot), fmean(tpot), median(ttft), sum(r.output_tokens_asked for r in rs) / seconds
def theirs(line):
    r = json.loads(line)
    assert r["completed"] == 40, r
    return r["median_tpot_ms"], r["mean_tpot_ms"], r["median_ttft_ms"], r["output_throughput"]
print(f"{'arm':7} {'client':32}" + "".join(f"{c:>28}" for c in COLUMNS) + "   (median of 3 runs [range], ratio to bench_serving)")
for arm in ("no-mtp", "mtp"):
    runs = [load_run(p.parent) for p in sorted((root / arm).glob("*/run.json"))]
    peer = [theirs(line) for line in (root / f"{arm}.jsonl").read_text().splitlines()]
    rows = {"bench_serving": peer, "mtpbench": [ours(r) for r in runs], "mtpbench, bench_serving's terms": [*map(ours_as_theirs, runs)]}
    for client, values in rows.items():
        cells = [f"{median(v):8.2f} [{min(v):.2f}–{max(v):.2f}] {median(v) / median(p):.3f}" for v, p in zip(zip(*values), zip(*peer))]
        print(f"{arm:7} {client:32}" + "".join(f"{cell:>28}" for cell in cells))
PY
