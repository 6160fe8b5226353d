#!/usr/bin/env bash
# Tells a pull request what its A/B found: a comment updated in place, and a check. Works from the raw records, whose
# job ran the pull request's code: nothing in them is trusted, the verdict is formed here anew.
#   REPOSITORY=O/R PULL_REQUEST=N HEAD=SHA DETAILS=URL ci/pr_tell.sh STORE [mtpbench ci comment's options]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
store=$1
shift
mtpbench=("${PYTHON:-python3}" -m harness)
mapfile -t runs < <(find "$store" -mindepth 2 -maxdepth 2 -name ab.json -printf '%h\n')
[ ${#runs[@]} -eq 1 ] || { echo "tell: ${#runs[@]} A/B runs in $store, one is expected" >&2; exit 1; }
"${mtpbench[@]}" store verify "$store"
why=()
if "${mtpbench[@]}" explain "${runs[0]}" --format json > "$store/why.json"; then why=(--why "$store/why.json"); fi
"${mtpbench[@]}" ci comment "${runs[0]}" --repo "$REPOSITORY" --pr "$PULL_REQUEST" --commit "$HEAD" \
    --details-url "$DETAILS" --output comment "${why[@]}" "$@"
