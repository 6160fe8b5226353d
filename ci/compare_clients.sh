#!/usr/bin/env bash
# Our load client beside AIPerf's, GuideLLM's, vLLM's and SGLang's on our truth server: what they say of time stamps, TTFT,
# and what they cost. The table of docs/client.md.
#   ci/compare_clients.sh [FOLDER [CLIENT…]]      STREAMS=512 GAP_MS=33 ROUNDS=4
# FOLDER keeps the environments (8 GB, most of it GuideLLM's torch) and each client's output for the next time. Needs .venv,
# python3.11 and PyPI; what can't be installed is said and left out.
set -uo pipefail
here=$PWD dir=${1:-$(mktemp -d)} clients=("${@:2}")
[ ${#clients[@]} -gt 0 ] || clients=(mtpbench vllm sglang aiperf guidellm)
mkdir -p "$dir" && cd "$dir" && dir=$PWD
environment() { # NAME, then what to install: words for pip, `--` between two calls
  local name=$1 words=(); shift
  [ -e "$name/.ready" ] && return
  "${PYTHON311:-python3.11}" -m venv "$name"
  for word in "$@" --; do
    if [ "$word" != -- ]; then words+=("$word"); continue; fi
    "$name/bin/pip" install -q --no-compile "${words[@]}" || { echo "$name can't be installed here" >&2; rm -rf "$name"; return; }
    words=()
  done
  touch "$name/.ready"
}
for client in "${clients[@]}"; do
  case $client in
    # Only their measuring code: the rest of these two would bring torch and CUDA.
    vllm) environment vllm --no-deps vllm==0.33.0 -- aiohttp numpy tqdm regex ;;
    sglang) environment sglang transformers==5.12.1 tokenizers==0.22.2 numpy==2.4.6 aiohttp==3.14.5 requests==2.34.2 tqdm==4.70.1 \
      datasets==5.2.0 pillow==13.0.0 psutil==7.2.2 pybase64==1.5.1 pyzmq==27.3.0 -- --no-deps sglang==0.5.16 ;;
    aiperf) environment aiperf aiperf==0.13.0 ;;
    guidellm) environment guidellm guidellm==0.8.1 ;;
  esac
done
cat > sglang_client.py <<'PY'
import importlib.util, sys, types
[root] = importlib.util.find_spec("sglang").submodule_search_locations
for name in ("sglang", "sglang.srt.utils", "sglang.srt.disaggregation.utils"):  # their __init__ would import torch
    sys.modules[name] = module = types.ModuleType(name)
    module.__path__ = [root + name.removeprefix("sglang").replace(".", "/")]
module.FAKE_BOOTSTRAP_HOST = ""  # unused: for disaggregated servers
from sglang.benchmark.serving import cli_main
cli_main()
PY
cat > vllm_client.py <<'PY'
"""vLLM's benchmark() of benchmarks/serve.py as it is; what it imports from the rest of vLLM would import torch."""
import argparse, asyncio, dataclasses, gc, importlib.util, json, logging, sys, types
url, prompts, out = sys.argv[1:4]
tokens, streams, count = map(int, sys.argv[4:7])
[root] = importlib.util.find_spec("vllm").submodule_search_locations
for name in ("vllm", "vllm.benchmarks", "vllm.benchmarks.lib", "vllm.utils"):
    sys.modules[name] = module = types.ModuleType(name)
    module.__path__ = [root + name.removeprefix("vllm").replace(".", "/")]
def stub(name, **values):
    sys.modules[name] = module = types.ModuleType(name)
    module.__dict__.update(values)
fields = ("multi_modal_data", "lora_request", "request_id", "timestamp", "chat_messages", "request_overrides")
ask = dataclasses.make_dataclass(
    "SampleRequest", ["prompt", "prompt_len", "expected_output_len", *((f, object, None) for f in fields)])
stub("vllm.logger", init_logger=logging.getLogger)
stub("vllm.benchmarks.datasets", SampleRequest=ask, add_dataset_parser=None, get_samples=None)
stub("vllm.tokenizers", TokenizerLike=object, get_tokenizer=None)
stub("vllm.utils.argparse_utils", FlexibleArgumentParser=argparse.ArgumentParser)
stub("vllm.utils.network_utils", join_host_port=None)
stub("vllm.utils.gc_utils", freeze_gc_heap=gc.freeze)
from vllm.benchmarks import serve
asked = [ask(json.loads(line)["prompt"], 10, tokens) for line in open(prompts)][:count]
result = asyncio.run(serve.benchmark(
    serve.TaskType.GENERATION, "openai", url + "/v1/completions", url, "truth", "truth", None, asked, None, float("inf"),
    1.0, True, 0, False, ["ttft"], [99.0], True, {}, streams, None, None, None, ready_check_timeout_sec=0))
json.dump(result, open(out, "w"))
PY
"$here/.venv/bin/python" - "${STREAMS:-512}" "${ROUNDS:-4}" <<'PY'
import json, pathlib, sys
texts = [f"QID{n} the page maps each token to its slot" for n in range(int(sys.argv[1]) * int(sys.argv[2]))]
words = ["<unk>", *"the page maps each token to its slot tok".split()]
model = {"type": "WordLevel", "vocab": {word: n for n, word in enumerate(words)}, "unk_token": "<unk>"}
none = dict.fromkeys(["truncation", "padding", "normalizer", "post_processor", "decoder"])
one = {"version": "1.0", **none, "added_tokens": [], "pre_tokenizer": {"type": "WhitespaceSplit"}, "model": model}
pathlib.Path("tokenizer").mkdir(exist_ok=True)
settings = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>", "model_max_length": 4096}
files = {
    "tokenizer/tokenizer.json": [one],
    "tokenizer/tokenizer_config.json": [settings],
    "tokenizer/config.json": [{"model_type": "gpt2"}],
    "vllm.jsonl": [{"prompt": text} for text in texts],
    "guidellm.jsonl": [{"prompt": text, "output_tokens_count": 128} for text in texts],
    "aiperf.jsonl": [{"text": text} for text in texts],
    "sglang.jsonl": [{"conversations": [{"content": text}, {"content": "any"}]} for text in texts],
}
for name, lines in files.items():
    pathlib.Path(name).write_text("\n".join(map(json.dumps, lines)) + "\n")
PY
cd "$here" && PYTHONPATH=$PWD .venv/bin/python ci/compare_clients.py "$dir" "${STREAMS:-512}" "${GAP_MS:-33}" "${ROUNDS:-4}" "${clients[@]}"
