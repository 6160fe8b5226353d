#!/usr/bin/env bash
# A night inside an image of SGLang, where the server is: through `docker exec` in the container that SGLang's CI starts
# (ci_sglang), or in any container of a ROCm image with SGLang. docs/ci.md has the whole picture.
#
#   bash scripts/ci/amd/amd_ci_exec.sh -w /sglang-checkout/mtpbench bash ci/amd/nightly.sh --store s3://bucket/prefix
#   ci/amd/nightly.sh measure --scenario FILE --arm NAME --store STORE      one job's share of a night
#   ci/amd/nightly.sh judge --plan PLAN --store STORE                       the last job: is it slower, what is missing?
#   ci/amd/nightly.sh --store STORE                                         both, in one job
#
# Options:
#   --scenario FILE     may be repeated. Default: scenarios/mi355x-qwen35-*.yaml
#   --arm NAME          only this arm of the scenarios; may be repeated. --arms "A B" is the same
#   --gpus 0,1          default: the scenario's
#   --config FILE       SGLang's benchmark-configs.yaml: its entries are measured too, results in its files
#   --entry NAME        only this entry of --config; may be repeated
#   --recipes FOLDER    what chat templates in --config are relative to
#   --pairs N           launch pairs of the A/A of the first scenario, which says how steady the host is. Default 0: none
#   --store STORE       folder or URL. Default: $MTPBENCH_STORE, else /sgl-data/mtpbench-store where that is, else runs
#   --out FOLDER        logs, pages, results, issues. Default: nightly
#   --plan FILE         what `mtpbench ci plan --output FILE` wrote: what of it is not in the store is MISSING
#   --python PYTHON     of the image. Default: python3
#   --mtpbench PYTHON   that has mtpbench installed. Default: ci/amd/install.sh makes one
#   --no-gpu            a trial without a GPU
#   --skip STEP         may be repeated
#   --dry-run           print every step, run none
#
# Exit code: 0 or 1 and no other, because the CI's wrapper around `docker exec` runs everything again on any other. The
# word is in the last line, `mtpbench night: WORD`, and in the step summary.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1

usage() { sed -n '2,/^set -/{s/^# \{0,1\}//;/^set -/d;p}' "${BASH_SOURCE[0]}"; }
what=all
case ${1:-} in measure | judge) what=$1; shift ;; esac
store=${MTPBENCH_STORE:-} out=nightly plan='' python=python3 mtpbench_python='' pairs=0 gpu=(--need-gpu) dry_run=''
on=() config='' recipes='' scenarios=() arms=() entries=() skip=' '
while [ $# -gt 0 ]; do
    case $1 in
    --no-gpu) gpu=(--no-gpu) ;;
    --dry-run) dry_run=yes ;;
    --help | -h) usage; exit 0 ;;
    --scenario | --arm | --arms | --gpus | --config | --entry | --recipes | --pairs | --store | --out | --plan | --python | --mtpbench | --skip)
        [ $# -gt 1 ] || { echo "nightly: $1 needs a value" >&2; exit 1; }
        case $1 in
        --scenario) scenarios+=("$2") ;;
        --arm) arms+=(--arm "$2") ;;
        --arms) for name in $2; do arms+=(--arm "$name"); done ;;
        --gpus) [ -z "$2" ] || on=(--gpus "$2") ;;
        --config) config=$2 ;;
        --entry) entries+=(--only "$2") ;;
        --recipes) recipes=$2 ;;
        --pairs) pairs=$2 ;;
        --store) store=$2 ;;
        --out) out=$2 ;;
        --plan) plan=$2 ;;
        --python) python=$2 ;;
        --mtpbench) mtpbench_python=$2 ;;
        --skip) skip+="$2 " ;;
        esac
        shift ;;
    *) echo "nightly: $1 is unknown" >&2; usage >&2; exit 1 ;;
    esac
    shift
done

# shellcheck source=ci/amd/place.sh
. ci/amd/place.sh
[ ! -d /sgl-data ] || store=${store:-/sgl-data/mtpbench-store}
store=${store:-runs}
[ -n "${AWS_ENDPOINT_URL:-}" ] || unset AWS_ENDPOINT_URL
MTPBENCH_SERVER_PYTHON=$(command -v "$python" || echo "$python")
export MTPBENCH_SERVER_PYTHON
case $out in /*) ;; *) out=$PWD/$out ;; esac
export MTPBENCH_SPOOL=$out/runs # of a store behind a URL
summary=${GITHUB_STEP_SUMMARY:-$out/summary.md}
[ -n "$dry_run" ] || [ -n "${GITHUB_STEP_SUMMARY:-}" ] || { mkdir -p "$out" && : > "$summary"; } || exit 1
job=${MTPBENCH_JOB:-amd-nightly}
failed=() word=''

say() { printf '%s\n' "$*"; }
# step NAME COMMAND…: what it prints also goes to OUT/NAME.log; its exit code is left in $last.
step() {
    local name=$1
    shift
    last=0
    case $skip in *" $name "*) say "nightly: $name: skipped"; return ;; esac
    say "nightly: $name: $(printf '%q ' "$@")"
    [ -z "$dry_run" ] || return
    "$@" 2>&1 | tee "$out/$name.log"
    last=${PIPESTATUS[0]}
    [ "$last" -eq 0 ] || say "nightly: $name: exit code $last"
    echo "$name $last" >> "$out/steps"
}
# The same, for what must succeed: a failure makes the night red, and what follows is done all the same.
needed() {
    step "$@"
    [ "$last" -eq 0 ] || failed+=("$1")
}
finish() {
    [ -z "$dry_run" ] || exit 0
    if [ ${#failed[@]} -gt 0 ]; then case $word in FAIL | MISSING | INVALID) ;; *) word=FAILED ;; esac; fi
    local text="mtpbench night: ${word:-MEASURED}"
    [ ${#failed[@]} -eq 0 ] || text+=" (failed: ${failed[*]})"
    printf '\n**%s**\n' "$text" >> "$summary"
    if [ "$what" != measure ] && [ -n "${MTPBENCH_WEBHOOK:-}" ]; then
        "${mtpbench[@]}" ci notify "$store" --word "${word:-MEASURED}" --sentence "$text" || true
    fi
    # Inside a container this is root: its files belong to whoever owns the checkout.
    chown -R --reference=. "$out" 2> /dev/null || true
    say "$text"
    case ${word:-MEASURED} in FAILED | FAIL | INVALID | INCOMPARABLE | MISSING) exit 1 ;; *) exit 0 ;; esac
}
# Killed from outside, such as by the job's time limit: say so, and exit with 1, not with 143.
trap 'failed+=(killed); finish' TERM INT

if [ -z "$dry_run" ]; then
    mkdir -p "$out" || exit 1
    : > "$out/steps" # a line for each step that ran: its name and its exit code
fi
if [ -z "$mtpbench_python" ]; then
    case $skip in
    *" install "*) mtpbench_python=$(command -v python3) ;;
    *)
        say "nightly: install: ci/amd/install.sh"
        if [ -n "$dry_run" ]; then mtpbench_python="mtpbench-python"
        elif ! mtpbench_python=$(PYTHON=$MTPBENCH_SERVER_PYTHON ci/amd/install.sh 2> "$out/install.log"); then
            cat "$out/install.log"
            failed+=(install)
            mtpbench=(false)
            finish
        fi ;;
    esac
fi
mtpbench=("$mtpbench_python" -m harness)

measure() {
    needed inside "${mtpbench[@]}" ci inside --python "$MTPBENCH_SERVER_PYTHON" "${gpu[@]}" --markdown
    [ -n "$dry_run" ] || cat "$out/inside.log" >> "$summary" 2> /dev/null
    [ "$last" -eq 0 ] || return # nothing that follows could work
    if [ "${gpu[0]}" = --need-gpu ]; then
        needed precheck "${mtpbench[@]}" ci precheck --need-gpu --wait 600 "${on[@]}"
        [ "$last" -eq 0 ] || return
    fi
    local imported=() file name
    if [ -n "$config" ]; then
        local more=("${entries[@]}")
        [ -z "$recipes" ] || more+=(--recipes "$recipes")
        needed import "${mtpbench[@]}" scenarios import "$config" --output "$out/imported" --force "${more[@]}"
        [ "$last" -ne 0 ] || [ -n "$dry_run" ] || imported=("$out"/imported/*.yaml)
    elif [ ${#scenarios[@]} -eq 0 ]; then
        scenarios=(scenarios/mi355x-qwen35-*.yaml)
    fi
    if [ "$pairs" -gt 0 ]; then
        needed aa "${mtpbench[@]}" aa "${scenarios[0]:-${imported[0]:-}}" --pairs "$pairs" "${arms[@]}" "${on[@]}" --image none --store "$store"
    fi
    for file in "${scenarios[@]}" "${imported[@]}"; do
        name=$(basename "$file" .yaml)
        needed "run-$name" "${mtpbench[@]}" run "$file" "${arms[@]}" "${on[@]}" --image none --store "$store" --no-page
        [ -z "$dry_run" ] || continue
        run=$(sed -n 's/^results: //p' "$out/run-$name.log" | head -n 1)
        [ -d "$run" ] || continue
        "${mtpbench[@]}" report "$run" --format markdown >> "$summary" 2> /dev/null || true
        "${mtpbench[@]}" report "$run" --format json > "$out/$name.json" 2> /dev/null || true
        if grep -q '^labels:' "$file"; then
            needed "results-$name" "${mtpbench[@]}" report "$run" --results-as sglang --output "$out/results"
            cat "$out/results/summary.md" >> "$summary" 2> /dev/null || true
        fi
    done
}

# all_in: how the night went so far, for the pages and in the end; its word is left in $word.
all_in() {
    say "nightly: night: ${mtpbench[*]} ci night $store --steps $out/steps --site $out/site"
    [ -z "$dry_run" ] || return
    local code=0
    "${mtpbench[@]}" ci night "$store" --job "$job" --steps "$out/steps" --site "$out/site" > "$out/night.md" || code=$?
    case $code in
    0) word=PASS ;; 1) word=FAIL ;; 3) word=INCONCLUSIVE ;; 4) word=INCOMPARABLE ;; 5) word=NO_BASELINE ;;
    6) word=MISSING ;; 7) word=BIMODAL ;; 10) word=IMPROVED ;; *) word=INVALID ;;
    esac
}

judge() {
    if [ -n "$plan" ]; then needed begin "${mtpbench[@]}" ci begin "$store" --plan "$plan" --job "$job"; fi
    step sentinel "${mtpbench[@]}" ci sentinel "$store"
    step trend "${mtpbench[@]}" trend "$store" --record --format markdown
    local missing=''
    if [ -n "$plan" ]; then
        step missing "${mtpbench[@]}" ci missing "$plan" "$store"
        [ "$last" -eq 0 ] || missing=yes failed+=(missing)
    fi
    needed issues "${mtpbench[@]}" ci issues "$store" "$out/issues"
    needed verify "${mtpbench[@]}" store verify "$store"
    all_in
    needed publish "${mtpbench[@]}" publish "$store" "$out/site" # after `night`, so that the pages tell it
    all_in
    [ -z "$dry_run" ] || return
    # What no job delivered has one word, also where the step that says so is all that failed.
    [ -z "$missing" ] || [ "$word" = FAIL ] || word=MISSING
    cat "$out/night.md" "$out/missing.log" "$out/trend.log" >> "$summary" 2> /dev/null
}

if [ "$what" = all ] && [ ${#arms[@]} -eq 0 ] && [ -z "$config" ]; then
    [ ${#scenarios[@]} -gt 0 ] || scenarios=(scenarios/mi355x-qwen35-*.yaml)
    needed begin "${mtpbench[@]}" ci begin "$store" "${scenarios[@]}" --job "$job"
fi
[ "$what" = judge ] || measure
[ "$what" = measure ] || judge
finish
