#!/usr/bin/env bash
# `make demo` and `make test` with every Python on this machine, as a stranger has them: each in a fresh clone of HEAD,
# from PyPI alone, with none of this machine's settings of pip. Prints a table in Markdown; exits with 1 if a cell failed.
#   ci/matrix.sh [--keep FOLDER] [PYTHON… | lowest]      default: all of 3.10 to 3.14 that are found, then `lowest`
#   KERNEL=0 ci/matrix.sh                                without torch, triton and the tests that need them
# `lowest` is 3.10 with the lowest version of each direct dependency. Logs stay in FOLDER (default: a new one in TMPDIR).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD
folder=""
if [ "${1:-}" = --keep ]; then folder=$2; shift 2; fi
folder=${folder:-$(mktemp -d)}
mkdir -p "$folder"

# A Python by its version: on the PATH, from pyenv, or from uv.
find_python() {
    local found
    found=$(command -v "python$1" || true)
    [ -n "$found" ] && "$found" -c '' 2> /dev/null && { "$found" -c 'import sys; print(sys.executable)'; return; }
    for found in "${PYENV_ROOT:-$HOME/.pyenv}/versions/$1".*/bin/python; do
        [ -x "$found" ] && { echo "$found"; return; }
    done
    if command -v uv > /dev/null; then uv python find --no-python-downloads "$1" 2> /dev/null || true; fi
}

# What a stranger's shell has: no folder of wheels, no constraint file. Ways to the network stay, and how many cores to use.
as_stranger() {
    local keep=(HOME="$HOME" PATH="/usr/local/bin:/usr/bin:/bin" LANG=C.UTF-8 PIP_CONFIG_FILE=/dev/null KERNEL="${KERNEL:-1}")
    local name
    for name in http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY SSL_CERT_FILE REQUESTS_CA_BUNDLE TMPDIR \
        OPENBLAS_CORETYPE OPENBLAS_L2_SIZE; do
        [ -z "${!name:-}" ] || keep+=("$name=${!name}")
    done
    env -i "${keep[@]}" "$@"
}

rows=("$@")
[ ${#rows[@]} -gt 0 ] || rows=(3.10 3.11 3.12 3.13 3.14 lowest)
failed=0
table="| Python | \`make demo\` | \`make test\` | tests | \`.venv\` |"$'\n'"|---|---|---|---|---|"
for row in "${rows[@]}"; do
    version=$row resolution=""
    if [ "$row" = lowest ]; then version=3.10 resolution=lowest-direct; fi
    python=$(find_python "$version")
    if [ -z "$python" ]; then
        echo "$row: no Python $version on this machine, left out" >&2
        continue
    fi
    clone=$folder/$row
    rm -rf "$clone"
    git clone --quiet "$root" "$clone"
    cells=()
    for target in demo test; do
        log=$folder/$row-$target.log
        start=$SECONDS
        echo "$row: make $target … ($log)" >&2
        word=green
        as_stranger make -C "$clone" "$target" PYTHON="$python" RESOLUTION="$resolution" > "$log" 2>&1 || { word=FAILED; failed=1; }
        cells+=("$word, $((SECONDS - start)) s")
    done
    # The last line of each run of pytest, the parallel one and the serial one.
    tests=$(grep -oE '^[0-9]+ (passed|failed)[^=]* in ' "$folder/$row-test.log" | sed 's/ in $//' | paste -sd '+' | sed 's/+/ + /' || true)
    size=$(du -sm "$clone/.venv" | awk '{printf "%.1f GB", $1 / 1024}')
    table+=$'\n'"| $("$python" -c 'import platform; print(platform.python_version())')${resolution:+, lowest versions} | ${cells[0]} | ${cells[1]} | ${tests:-none} | $size |"
    rm -rf "$clone"
done
echo "$table"
exit "$failed"
