#!/usr/bin/env bash
# Everything that a person with an MI355X can find out in an hour, in one command, inside an image of SGLang: do the
# kernel's tests pass, how fast is it beside assembly, SGLang's Triton kernel and AITER's, does a server serve, and is there
# a bump at concurrency 16, with why. Leaves one page and one archive to send back.
#
#   ci/amd/everything.sh                  in the image; README.md has the `docker run` around it
#   ci/amd/everything.sh --dry-run        print every step, run none
#
# The same command again goes on where the last one stopped: what is done is not done again, a run goes on with its next
# pass. No step that fails ends it; each one's end is on the page.
#
# Steps: install, inside, precheck, tools, tests, bench, smoke, c16, explain.
#
# Options:
#   --out FOLDER        everything goes here. Default: everything
#   --minutes N         all steps together; what does not fit is left, and said to be. Default 58
#   --skip STEP         may be repeated
#   --python PYTHON     of the image. Default: python3
#   --mtpbench PYTHON   that has mtpbench installed. Default: ci/amd/install.sh makes one
#   --gpus 0,1          default: the first ones
#   --smoke FILE        the scenario of the smoke run. Default: ci/amd/smoke.yaml
#   --c16 FILE          the scenario of the A/B. Default: ci/amd/c16.yaml; the whole model: scenarios/c16-v0523.yaml
#   --base ARM --head ARM    the A/B's sides. Default: mtp-generic and mtp-triton
#   --pairs N           of launches in the A/B, at most. Default 3
#   --no-gpu            a trial without a GPU
#   --dry-run           print every step, run none
#
# Exit code: 0 where every step did its work (an A/B that says "slower" did), else 1.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1

usage() { sed -n '2,/^set -/{s/^# \{0,1\}//;/^set -/d;p}' "${BASH_SOURCE[0]}"; }
out=everything minutes=58 skip=' ' python=python3 mtpbench_python='' gpus='' pairs=3 dry_run='' gpu=(--need-gpu)
smoke=ci/amd/smoke.yaml c16=ci/amd/c16.yaml base=mtp-generic head=mtp-triton
names=(install inside precheck tools tests bench smoke c16 explain)
while [ $# -gt 0 ]; do
    case $1 in
    --no-gpu) gpu=(--no-gpu) ;;
    --dry-run) dry_run=yes ;;
    --help | -h) usage; exit 0 ;;
    --out | --minutes | --skip | --python | --mtpbench | --gpus | --smoke | --c16 | --base | --head | --pairs)
        [ $# -gt 1 ] || { echo "everything: $1 needs a value" >&2; exit 1; }
        case $1 in
        --out) out=$2 ;;
        --minutes) minutes=$2 ;;
        --skip)
            case " ${names[*]} " in *" $2 "*) ;; *) echo "everything: no step is called $2: ${names[*]}" >&2; exit 1 ;; esac
            skip+="$2 " ;;
        --python) python=$2 ;;
        --mtpbench) mtpbench_python=$2 ;;
        --gpus) gpus=$2 ;;
        --smoke) smoke=$2 ;;
        --c16) c16=$2 ;;
        --base) base=$2 ;;
        --head) head=$2 ;;
        --pairs) pairs=$2 ;;
        esac
        shift ;;
    *) echo "everything: $1 is unknown" >&2; usage >&2; exit 1 ;;
    esac
    shift
done
[[ $minutes =~ ^[0-9]+$ ]] || { echo "everything: --minutes $minutes is no whole number" >&2; exit 1; }

# shellcheck source=ci/amd/place.sh
. ci/amd/place.sh
case $out in /*) ;; *) out=$PWD/$out ;; esac
server_python=$(command -v "$python" || echo "$python")
export MTPBENCH_SERVER_PYTHON=$server_python PYTHONUNBUFFERED=1
deadline=$((SECONDS + 60 * minutes))
steps=$out/steps # a line for each step: its name, how it ended, its exit code, its seconds; the last one of a name counts
on=() free=(--need-gpu --wait 60)
[ -z "$gpus" ] || on=(--gpus "$gpus")
[ "${gpu[0]}" = --need-gpu ] || free=()
# The kernel's own tests and bench start no server, so they see what they are told to.
[ -z "$gpus" ] || export HIP_VISIBLE_DEVICES=$gpus CUDA_VISIBLE_DEVICES=$gpus

say() { printf 'everything: %s\n' "$*"; }
note() { printf '%s %s %s %s\n' "$@" >> "$steps"; }
ended() { [ ! -f "$steps" ] || sed -n "s/^$1 //p" "$steps" | tail -n 1; }

# step NAME MINUTES "CODES THAT ARE NO FAILURE" COMMAND…: what it prints also goes to OUT/NAME.log.
step() {
    local name=$1 most=$((60 * $2)) good=" 0 $3 " began=$SECONDS code=0 word='done' left=$((deadline - SECONDS))
    shift 3
    case $skip in *" $name "*) say "$name: skipped"; [ -n "$dry_run" ] || note "$name" skipped 0 0; return ;; esac
    case $(ended "$name") in done*) say "$name: done before"; return ;; esac
    say "$name: $(printf '%q ' "$@")"
    [ -z "$dry_run" ] || return
    if [ "$left" -lt 30 ]; then
        say "$name: no time is left"
        note "$name" no-time 0 0
        return
    fi
    [ "$left" -ge "$most" ] || most=$left
    # In a session of its own: what stops it is `stop` below, once, and not also the terminal's Ctrl-C.
    setsid timeout --foreground --kill-after=60 "$most" "$@" > "$out/$name.log" 2>&1 &
    child=$!
    tail -n +1 -f -s 0.3 --pid="$child" "$out/$name.log" &
    local shown=$!
    while true; do
        wait "$child"
        code=$?
        kill -0 "$child" 2> /dev/null || break # else it was `stop` that ended the waiting
    done
    child=''
    wait "$shown"
    case $good in *" $code "*) ;; *) word=failed ;; esac
    [ "$code" -ne 124 ] || word=too-long
    [ $word = 'done' ] || say "$name: $word, exit code $code"
    note "$name" "$word" "$code" $((SECONDS - began))
    [ -z "$stopped" ] || finish
}
# The run that a step's log names, if it is there: its next attempt goes on with it.
run_of() {
    local run=''
    [ ! -f "$out/$1.log" ] || run=$(sed -n 's/^results: //p' "$out/$1.log" | head -n 1)
    [ ! -f "$run/run.json" ] || echo "$run"
}
finish() {
    [ -z "$dry_run" ] || exit 0
    local code=1
    if [ "${mtpbench[0]}" = false ]; then say "mtpbench could not be installed: $out/install.log says why"; exit 1; fi
    "${mtpbench[@]}" ci sheet "$out" --steps "${names[*]}" && code=0
    # Inside a container this is root: its files belong to whoever owns the checkout.
    chown -R --reference=. "$out" "$out.tar.gz" 2> /dev/null || true
    exit "$code"
}
# Ctrl-C, or the end of the container: the step ends in order, as its verb does, and the page is written all the same.
child='' stopped=''
# shellcheck disable=SC2329 # the trap does
stop() {
    stopped=yes
    if [ -n "$child" ]; then kill -TERM "$child" 2> /dev/null; else finish; fi
}
trap 'stop' TERM INT

mtpbench=(false)
[ -n "$dry_run" ] || mkdir -p "$out" || exit 1
if [ -n "$mtpbench_python" ] || [[ $skip = *' install '* ]]; then
    mtpbench_python=${mtpbench_python:-$(command -v python3)}
    [ -n "$dry_run" ] || note install skipped 0 0
else
    say "install: ci/amd/install.sh"
    if [ -n "$dry_run" ]; then
        mtpbench_python=MTPBENCH
    elif mtpbench_python=$(PYTHON=$server_python ci/amd/install.sh 2> "$out/install.log"); then
        note install "done" 0 "$SECONDS"
    else
        cat "$out/install.log" >&2
        note install failed 1 "$SECONDS"
        finish
    fi
fi
mtpbench=("$mtpbench_python" -m harness)
[ -n "$dry_run" ] || "${mtpbench[@]}" environment > "$out/environment.json" || true

step inside 2 '' "${mtpbench[@]}" ci inside --python "$server_python" "${gpu[@]}"
step precheck 5 '' "${mtpbench[@]}" ci precheck "${free[@]}" "${on[@]}"
# What the kernel's tests need beside torch and Triton goes into a folder of its own: the image stays as it was.
step tools 5 '' env -u PIP_CONSTRAINT "$server_python" -m pip install --quiet --disable-pip-version-check \
    --target "$out/tools" --upgrade pytest pytest-timeout pytest-xdist hypothesis
step tests 10 '' env PYTHONPATH="$out/tools" "$server_python" -m pytest -q -n 8 -p no:cacheprovider kernel/tests
step bench 10 '' "$server_python" -m kernel.bench --shape all --arms ours,generic,asm,mtp-triton,aiter --replays 7 \
    --output "$out/bench.json"
run=$(run_of smoke)
if [ -n "$run" ]; then
    step smoke 15 '' "${mtpbench[@]}" run --resume "$run"
else
    step smoke 15 '' "${mtpbench[@]}" run "$smoke" --image none --store "$out/runs" "${on[@]}"
fi
# Every verdict of an A/B is a result; 2 is a wrong call, a server that failed, or INVALID.
verdicts='1 3 4 5 6 7 10'
run=$(run_of c16)
if [ -n "$run" ]; then
    step c16 45 "$verdicts" "${mtpbench[@]}" ab --resume "$run"
else
    step c16 45 "$verdicts" "${mtpbench[@]}" ab "$c16" --base "arm:$base" --head "arm:$head" --pairs "$pairs" --first 2 \
        --metric tpot_p50 --image none --store "$out/runs" "${on[@]}"
fi
# Without a run of the A/B, `explain` fails and says what it lacks.
run=$(run_of c16)
step explain 5 '' "${mtpbench[@]}" explain "${run:-$out/runs/RUN-OF-C16}" --store "$out/runs"
finish
