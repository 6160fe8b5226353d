#!/usr/bin/env bash
# The nightly job, step by step; each step is a verb that also runs by hand. docs/ci.md says what each is for.
#
#   ci/nightly.sh --dry-run                      print every step, run none
#   ci/nightly.sh --engine llamacpp              the whole chain here, on the embedded engine: no GPU, about a minute
#   ci/nightly.sh --image NAME@sha256:… --store s3://bucket/prefix
#
# Options:
#   --engine sglang|llamacpp   default sglang: the mi355x scenarios
#   --scenario FILE            measure this one; may be repeated. Default: those of the engine
#   --sentinel FILE            whose A/A says whether the host is steady. Default: the first scenario
#   --pairs N                  launch pairs of that A/A. Default 3
#   --store STORE              folder or URL. Default runs
#   --out FOLDER               trend, pages, issues. Default nightly
#   --image NAME@sha256:…      of the servers' containers. Default: as the scenario says
#   --gpus 0,1                 default: the scenario's
#   --confirm N                paired A/Bs of alerts, at most. Default 2
#   --every DAYS               how often this job runs. Default 1
#   --open-issues              open or update issues with the GitHub CLI; otherwise their texts are only written
#   --skip STEP                may be repeated
#   --dry-run
#
# Exit code: that of the night's word (docs/exit-codes.md): 2 where a step failed, 6 where something that this night
# was to measure is missing, else that of the trend. No step that fails ends the night: the pages say so.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

engine=sglang store=runs out=nightly image='' gpus='' sentinel='' pairs=3 confirm=2 every=1 open_issues='' dry_run=''
scenarios=() skip=' '
while [ $# -gt 0 ]; do
    case $1 in
    --engine) engine=$2; shift ;;
    --scenario) scenarios+=("$2"); shift ;;
    --sentinel) sentinel=$2; shift ;;
    --pairs) pairs=$2; shift ;;
    --store) store=$2; shift ;;
    --out) out=$2; shift ;;
    --image) image=$2; shift ;;
    --gpus) gpus=$2; shift ;;
    --confirm) confirm=$2; shift ;;
    --every) every=$2; shift ;;
    --open-issues) open_issues=yes ;;
    --skip) skip+="$2 "; shift ;;
    --dry-run) dry_run=yes ;;
    *) sed -n '2,/^set -/{s/^# \{0,1\}//;/^set -/d;p}' "${BASH_SOURCE[0]}"; exit 2 ;;
    esac
    shift
done
case $engine in
sglang) [ ${#scenarios[@]} -gt 0 ] || scenarios=(scenarios/mi355x-*.yaml); need_gpu=(--need-gpu) ;;
llamacpp) [ ${#scenarios[@]} -gt 0 ] || scenarios=(scenarios/nightly-cpu.yaml); need_gpu=() ;;
*) echo "nightly: --engine $engine is unknown: sglang or llamacpp" >&2; exit 2 ;;
esac
sentinel=${sentinel:-${scenarios[0]}}
export MTPBENCH_JOB=${MTPBENCH_JOB:-nightly-$$} # of whose containers none stays

mtpbench=("${PYTHON:-python3}" -m harness)
on_gpus=() from=()
[ -z "$gpus" ] || on_gpus=(--gpus "$gpus")
[ -z "$image" ] || from=(--image "$image")
last=0 measure=yes

steps="$out/steps" # a line for each step that ran: its name and its exit code

# step NAME COMMAND…: what it prints also goes to OUT/NAME.log; its exit code is left in $last.
step() {
    local name=$1
    shift
    case $skip in *" $name "*) echo "nightly: $name: skipped"; last=0; return ;; esac
    echo "nightly: $name: $(printf '%q ' "$@")"
    [ -z "$dry_run" ] || return 0
    last=0
    "$@" 2>&1 | tee "$out/$name.log" || last=${PIPESTATUS[0]}
    [ "$last" -eq 0 ] || echo "nightly: $name: exit code $last"
    echo "$name $last" >> "$steps"
}

# all_in: how the night went so far; its word's exit code is left in $night.
night=0
all_in() {
    echo "nightly: night: ${mtpbench[*]} ci night $store --steps $steps --site $out/site"
    [ -z "$dry_run" ] || return 0
    night=0
    "${mtpbench[@]}" ci night "$store" --steps "$steps" --site "$out/site" > "$out/night.md" || night=$?
}

if [ -z "$dry_run" ]; then
    mkdir -p "$out"
    : > "$steps"
    [ "$engine" != sglang ] || trap 'ci/teardown.sh "$MTPBENCH_JOB" || echo "nightly: containers may be left" >&2' EXIT
fi
expected=()
for scenario in "${scenarios[@]}"; do
    case $skip in *" run-$(basename "$scenario" .yaml) "*) ;; *) expected+=("$scenario") ;; esac
done
step begin "${mtpbench[@]}" ci begin "$store" "${expected[@]}" --every "$every"
step precheck "${mtpbench[@]}" ci precheck "${need_gpu[@]}" "${on_gpus[@]}" --wait 600
if [ "$last" -eq 0 ] && [ -n "$image" ] && [ "$engine" = sglang ]; then step outside "${mtpbench[@]}" ci outside "$image"; fi
# A node that is not free, or whose containers can't be reached, measures nothing; what the store and the pages say of the night goes on.
[ "$last" -eq 0 ] || measure=''
if [ -n "$measure" ]; then
    step aa "${mtpbench[@]}" aa "$sentinel" --pairs "$pairs" --store "$store" "${on_gpus[@]}" "${from[@]}"
    for scenario in "${scenarios[@]}"; do
        step "run-$(basename "$scenario" .yaml)" "${mtpbench[@]}" run "$scenario" --store "$store" "${on_gpus[@]}" "${from[@]}"
    done
    step sentinel "${mtpbench[@]}" ci sentinel "$store"
    # A host in quarantine confirms nothing: 1 says that one is.
    [ "$last" -eq 0 ] || skip+="confirm "
    step confirm "${mtpbench[@]}" ci confirm "$store" --at-most "$confirm" "${on_gpus[@]}" "${from[@]}"
fi
step trend "${mtpbench[@]}" trend "$store" --record --format markdown
step issues "${mtpbench[@]}" ci issues "$store" "$out/issues"
[ -z "$open_issues" ] || step open-issues ci/open_issues.sh "$out/issues"
step verify "${mtpbench[@]}" store verify "$store"
step upstream "${mtpbench[@]}" doctor --upstream --format markdown
all_in
step publish "${mtpbench[@]}" publish "$store" "$out/site"
all_in
[ -n "$dry_run" ] || cat "$out/night.md"
exit "$night"
