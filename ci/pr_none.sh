#!/usr/bin/env bash
# Tells a pull request that its `/ab` has no verdict, and why: refused by the gate, failed, or cancelled.
# Reads PULL_REQUEST, DETAILS, GATE and MEASURE (results of those jobs), REFUSED (the gate's reason), SCENARIO (a file, or
# empty where the gate let nothing through), and PYTHON, which has mtpbench.
#   PULL_REQUEST=7 DETAILS=URL GATE=failure MEASURE=skipped REFUSED="one scenario at a time" ci/pr_none.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
said=(--pr "$PULL_REQUEST" --details-url "$DETAILS")
[ -z "${SCENARIO:-}" ] || said+=(--scenario "$SCENARIO")
stage=failed
if [ -n "${REFUSED:-}" ]; then
    stage=refused
    said+=(--reason "$REFUSED")
elif [ "$GATE" = cancelled ] || [ "$MEASURE" = cancelled ]; then
    stage=cancelled
fi
"${PYTHON:-.venv/bin/python}" -m harness ci answer "$stage" "${said[@]}"
