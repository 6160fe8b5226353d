#!/usr/bin/env bash
# Installs mtpbench inside an image of SGLang, beside its torch: into a virtual environment of its own that sees nothing
# of the image's packages, so that `pip freeze` of the image is the same before and after. Prints that environment's Python.
#   ci/amd/install.sh [FOLDER]          default: ~/.cache/mtpbench/venv-3.10, or below $XDG_CACHE_HOME; by Python's version
#   PYTHON=python3        the image's interpreter, whose pip installs (22.3 or newer)
#   MTPBENCH_WHEEL=FILE   install this wheel instead of this checkout
#   PIP_OPTIONS="…"       more options of pip install, such as --no-index --find-links FOLDER where there is no network
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
python=${PYTHON:-python3}
# By version: the folder may outlive the image, and the next one's Python may be another.
folder=${1:-${XDG_CACHE_HOME:-$HOME/.cache}/mtpbench/venv-$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')}
read -ra options <<< "${PIP_OPTIONS:-}"

# The image's own settings are for its packages: a constraint pins its torch, a PYTHONPATH would show its packages to ours.
clean() { env -u PIP_CONSTRAINT -u PIP_TARGET -u PIP_PREFIX -u PIP_USER -u PYTHONPATH "$@"; }

what=${MTPBENCH_WHEEL:-$root}
[ -x "$folder/bin/python" ] || clean "$python" -m venv --without-pip "$folder" >&2
clean "$python" -m pip --python "$folder/bin/python" install --quiet --disable-pip-version-check "${options[@]}" "${what}[s3]" >&2

# ROCm's library that reads GPUs lies in the image, as a package or beside ROCm; it is copied, not looked for at run time.
amdsmi=$("$python" -c '
import importlib.util, os
spec = importlib.util.find_spec("amdsmi")
print(os.path.dirname(spec.origin) if spec and spec.origin else "")')
[ -n "$amdsmi" ] || { [ ! -d /opt/rocm/share/amd_smi/amdsmi ] || amdsmi=/opt/rocm/share/amd_smi/amdsmi; }
if [ -n "$amdsmi" ]; then
    packages=$("$folder/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    cp -r "$amdsmi" "$packages/"
else
    echo "install: no amdsmi in this image: clocks, power and temperature will not be recorded" >&2
fi
echo "$folder/bin/python"
