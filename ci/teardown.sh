#!/usr/bin/env bash
# Removes every container of a job, however it ended: they carry its name as a label. Without a name: of all jobs.
#   ci/teardown.sh [JOB]
set -euo pipefail
command -v docker > /dev/null || exit 0
docker ps --all --quiet --filter "label=mtpbench.job${1:+=$1}" | xargs --no-run-if-empty docker rm --force
