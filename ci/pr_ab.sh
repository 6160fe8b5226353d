#!/usr/bin/env bash
# Measures a pull request's head against its base in turn on this node. Both are commits of this repository: the harness
# that measures is the one checked out here, only the servers come from theirs.
#   BASE=SHA HEAD=SHA SCENARIO=FILE ci/pr_ab.sh STORE [mtpbench ab's options]
# By hand, without a GPU: PRECHECK="--wait 0" BASE=main HEAD=HEAD SCENARIO=scenarios/nightly-cpu.yaml ci/pr_ab.sh ab
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
store=$1
shift
export MTPBENCH_JOB=${MTPBENCH_JOB:-ab-$$}
trap 'ci/teardown.sh "$MTPBENCH_JOB" || echo "ab: containers may be left" >&2' EXIT
mtpbench=("${PYTHON:-python3}" -m harness)
read -ra precheck <<< "${PRECHECK:---need-gpu --wait 600}"
"${mtpbench[@]}" ci precheck "${precheck[@]}"
words=("$@")
for place in "${!words[@]}"; do
    # Said in seconds, and not when the first server was waited for.
    [ "${words[place]}" != --image ] || "${mtpbench[@]}" ci outside "${words[place + 1]}"
done
code=0
"${mtpbench[@]}" ab "$SCENARIO" --base "$BASE" --head "$HEAD" --store "$store" "$@" || code=$?
# 2 may also be a wrong call or a server that failed: without a run there is nothing to tell.
[ -n "$(find "$store" -mindepth 2 -maxdepth 2 -name ab.json)" ] || exit "$code"
echo "ab: exit code $code: the verdict is told by the job that follows"
