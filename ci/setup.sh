#!/usr/bin/env bash
# Installs mtpbench from this checkout into .venv and, on GitHub's runners, puts it first on the PATH.
#   ci/setup.sh [EXTRA]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python3 -m venv .venv
.venv/bin/python -m pip install --quiet --editable ".${1:+[$1]}"
# ROCm ships the library that reads its GPUs beside it, not on a package index.
if [ -d /opt/rocm/share/amd_smi ]; then
    .venv/bin/python -m pip install --quiet /opt/rocm/share/amd_smi || echo "setup: amdsmi could not be installed" >&2
fi
[ -z "${GITHUB_PATH:-}" ] || echo "$PWD/.venv/bin" >> "$GITHUB_PATH"
