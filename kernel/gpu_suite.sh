#!/bin/sh
# The kernel's tests and its bench on one GPU: kernel/gpu_suite.sh OUT [PEERS]
#
# OUT gets tests.log, bench.log, bench.json and inspect.txt. PEERS may hold importable packages of peers, and wheels/ with
# more of them, which are unpacked into a folder of their own. Needs torch, Triton, pytest and hypothesis. Ends within nine minutes.
set -u
out=$1
peers=${2:-}
cd "$(dirname "$0")/.." || exit
mkdir -p "$out"
export PYTHONUNBUFFERED=1
path=$PWD
if [ -n "$peers" ]; then
    unpacked=$(mktemp -d)
    if ls "$peers"/wheels/*.whl >/dev/null 2>&1; then
        python3 -m pip install -q --no-index --no-deps --target "$unpacked" "$peers"/wheels/*.whl
    fi
    path=$path:$peers:$unpacked
fi
# Tests do not see the peers: one of them wants AITER to be missing.
timeout 240 python3 -m pytest -q -n 8 -p no:cacheprovider kernel/tests >"$out/tests.log" 2>&1
tests=$?
tail -n 15 "$out/tests.log"
PYTHONPATH=$path timeout 270 python3 -m kernel.bench --shape all --replays 7 --output "$out/bench.json" >"$out/bench.log" 2>&1
bench=$?
tail -n 150 "$out/bench.log"
timeout 25 python3 -m kernel.offline --arch sm_90 --sample --only hopper >"$out/inspect.txt" 2>&1
echo "tests: exit $tests; bench: exit $bench"
exit $((tests || bench))
