#!/usr/bin/env bash
# The nightly job: measures, asks what changed, and lets a paired A/B confirm each alert before a person sees it.
#   ci/nightly.sh STORE SCENARIO...
set -uo pipefail
store=$1
shift
for scenario in "$@"; do
    mtpbench run "$scenario" --store "$store" || echo "nightly: $scenario exited with $?" >&2
done
# Names of scenarios and runs are in these lines: they are split into words, never given to a shell.
mtpbench trend "$store" --commands | while IFS= read -r command; do
    echo "nightly: $command" >&2
    python3 -c 'import shlex, subprocess, sys; sys.exit(subprocess.call(shlex.split(sys.argv[1]) + ["--store", sys.argv[2]]))' \
        "$command" "$store" < /dev/null || echo "nightly: it exited with $?" >&2
done
mtpbench trend "$store" --format markdown # its exit code is the job's
