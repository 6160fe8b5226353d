#!/usr/bin/env bash
# Where things lie and which host this is, inside a container whose own files and name are gone tomorrow. To be sourced.

# What SGLang's CI mounts at /sgl-data stays: models, environments, compiled kernels.
if [ -d /sgl-data ]; then
    export XDG_CACHE_HOME=${XDG_CACHE_HOME:-/sgl-data/cache} HF_HOME=${HF_HOME:-/sgl-data/hf-cache}
fi
# The board's own identity, hashed, names the host: a run that goes on in another container is still on the same one.
if [ -z "${MTPBENCH_HOST:-}" ]; then
    identity=$(cat /sys/class/dmi/id/product_uuid 2> /dev/null || cat /sys/class/drm/card*/device/unique_id 2> /dev/null || true)
    [ -z "$identity" ] || MTPBENCH_HOST=host-$(printf %s "$identity" | sha256sum | cut -c1-10)
fi
[ -z "${MTPBENCH_HOST:-}" ] || export MTPBENCH_HOST
