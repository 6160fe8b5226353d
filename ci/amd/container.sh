#!/usr/bin/env bash
# Runs a command in a container of an image of SGLang, with this checkout at /mtpbench: all work happens inside, so it also
# does where the network of whoever starts the container does not reach it, as in a Kubernetes pod.
#   ci/amd/container.sh IMAGE COMMAND…
#   ci/amd/container.sh --dry-run IMAGE COMMAND…      prints the command, runs none
# GPUs are those of the pod's device file where there is one, else all of /dev/dri. $MTPBENCH_DATA (default: SGLang's CI's
# /home/runner/sglang-data where that is, else ~/.cache/mtpbench-data) is at /sgl-data: model cache, environments, store.
# A store that is a folder ($MTPBENCH_STORE=/…) lies at the same place inside. The container carries
# $MTPBENCH_JOB as a label, by which ci/teardown.sh removes it. Exit code: the command's.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
dry_run=''
[ "${1:-}" != --dry-run ] || { dry_run=yes; shift; }
[ $# -gt 1 ] || { sed -n '2,/^set -/{s/^# \{0,1\}//;/^set -/d;p}' "${BASH_SOURCE[0]}" >&2; exit 1; }
image=$1
shift

data=${MTPBENCH_DATA:-}
if [ -z "$data" ]; then
    if [ -d /home/runner/sglang-data ]; then data=/home/runner/sglang-data; else data=$HOME/.cache/mtpbench-data; fi
fi
# The file holds docker's options or bare paths, by the version of the runner: of either, the nodes are what counts.
pod=${MTPBENCH_POD_DEVICES:-/etc/podinfo/gha-render-devices}
devices=(--device=/dev/kfd)
if [ -f "$pod" ]; then
    mapfile -t nodes < <(grep -oE '/dev/dri/(renderD|card)[0-9]+' "$pod" | sort -u)
    [ ${#nodes[@]} -gt 0 ] || { echo "container: $pod names no device of /dev/dri" >&2; exit 1; }
    devices+=("${nodes[@]/#/--device=}")
else
    devices+=(--device=/dev/dri)
fi
command=(docker run --rm --init "--label=mtpbench.job=${MTPBENCH_JOB:-by-hand}" "${devices[@]}" --group-add=video
    --cap-add=SYS_PTRACE --security-opt=seccomp=unconfined --shm-size=32g --ulimit=nofile=65536:65536
    "--volume=$PWD:/mtpbench" "--volume=$data:/sgl-data" --workdir=/mtpbench
    --env=HF_HOME=/sgl-data/hf-cache "--env=MTPBENCH_IMAGE=$image" --env=SGLANG_USE_AITER=1 --env=GPU_ARCHS=gfx950
    --env=PYTHONDONTWRITEBYTECODE=1) # or root's files lie in the checkout, which its owner could not remove
# By name, so that no value is in an argument list; what is not set here is not set there.
for name in MTPBENCH_JOB MTPBENCH_HOST MTPBENCH_STORE MTPBENCH_WEBHOOK AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY AWS_ENDPOINT_URL \
    AWS_DEFAULT_REGION HF_TOKEN; do
    [ -z "${!name:-}" ] || command+=("--env=$name")
done
case ${MTPBENCH_STORE:-} in /*) command+=("--volume=$MTPBENCH_STORE:$MTPBENCH_STORE") ;; esac
command+=("$image" "$@")
if [ -n "$dry_run" ]; then
    printf '%q ' "${command[@]}"
    echo
    exit 0
fi
mkdir -p "$data"
case ${MTPBENCH_STORE:-} in /*) mkdir -p "$MTPBENCH_STORE" ;; esac
exec "${command[@]}"
