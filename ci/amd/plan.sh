#!/usr/bin/env bash
# What a night measures, from which image, and in which jobs: writes the plan, and for a workflow image= and matrix=.
#   ci/amd/plan.sh PLAN >> "$GITHUB_OUTPUT"
# Reads IMAGE (default: the newest of the last seven days), SCENARIOS (default: scenarios/mi355x-qwen35-*.yaml), LIMIT of
# a job's measuring (default: 210min), MTPBENCH_STORE, whose launches say how long each takes, and PYTHON, which has mtpbench.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
plan=$1
[ -n "${AWS_ENDPOINT_URL:-}" ] || unset AWS_ENDPOINT_URL
python=${PYTHON:-.venv/bin/python}
read -ra scenarios <<< "${SCENARIOS:-}"
[ ${#scenarios[@]} -gt 0 ] || scenarios=(scenarios/mi355x-qwen35-*.yaml)
store=${MTPBENCH_STORE:-runs}
image=${IMAGE:-}
[ -n "$image" ] || image=$("$python" -m harness ci image)
[[ $image =~ ^[^[:space:]@]+@sha256:[0-9a-f]{64}$ ]] || { echo "plan: $image is not pinned by a digest" >&2; exit 1; }
matrix=$("$python" -m harness ci plan "${scenarios[@]}" --store "$store" --limit "${LIMIT:-210min}" --output "$plan" \
    --format matrix)
printf 'image=%s\nmatrix=%s\n' "$image" "$matrix"
