#!/usr/bin/env bash
# Opens, updates or closes an issue for each confirmed slowdown that `mtpbench ci issues STORE FOLDER` wrote a text of.
# Needs the GitHub CLI, logged in, and jq.
# - One that a person closed is left closed and named. A slowdown that begins on another night has another mark, and
#   hence an issue of its own.
# - An open one that has no text any more is closed where FOLDER/measured names its place: all of it was measured last
#   night, and is not slower. A night that is missing closes nothing. What was closed here is opened again if it returns.
#   ci/open_issues.sh FOLDER
set -euo pipefail
label=mtpbench-regression
gone='<!-- mtpbench-gone -->' # in the body of what was closed here
shopt -s nullglob
[ -d "$1" ] || { echo "open-issues: there is no folder $1: \`mtpbench ci issues\` did not write it" >&2; exit 1; }
all=$(gh issue list --label "$label" --state all --limit 1000 --json number,body,state --jq .)
now=' '
for issue in "$1"/*/; do
    marker=$(< "$issue/marker") title=$(< "$issue/title") owner=$(< "$issue/owner")
    [[ $marker =~ ^\<!--\ [A-Za-z0-9._:-]+\ --\>$ ]] || { echo "$issue: a damaged marker" >&2; exit 1; }
    # An open one before closed ones, of these one that was closed here.
    # shellcheck disable=SC2016 # $marker and $gone are jq's
    query='[.[] | select(.body | startswith($marker))] | sort_by(.state == "CLOSED", (.body | contains($gone) | not)) | .[0]
        | if . == null then empty else "\(.number) \(.state) \(.body | contains($gone))" end'
    read -r number state by_us <<< "$(jq -r --arg marker "$marker" --arg gone "$gone" "$query" <<< "$all")"
    if [ "${state:-}" = CLOSED ] && [ "$by_us" = false ]; then
        echo "$issue: #$number was closed by a person, and stays closed"
        continue
    fi
    if [ -n "$number" ]; then
        now+="$number "
        [ "$state" != CLOSED ] || gh issue reopen "$number" --comment "It is back."
        gh issue edit "$number" --title "$title" --body-file "$issue/body.md"
        continue
    fi
    gh label create "$label" --description "a confirmed slowdown" --force > /dev/null
    create=(gh issue create --label "$label" --title "$title" --body-file "$issue/body.md")
    # A name in the ledger need not be a login: then the issue has its owner in the text alone.
    if [[ ! $owner =~ ^[A-Za-z0-9-]+$ ]] || ! "${create[@]}" --assignee "$owner"; then "${create[@]}"; fi
done

[ -f "$1/measured" ] || exit 0
query='.[] | select(.state == "OPEN" and (.body | startswith("<!-- mtpbench-regression:")))
    | "\(.number) \([.body | scan("<!-- mtpbench-place:[0-9a-f]{16} -->")][0] // "")"'
while read -r number place; do
    case $now in *" $number "*) continue ;; esac
    if [ -z "$place" ] || ! grep -qxF -- "$place" "$1/measured"; then continue; fi
    echo "#$number: the slowdown is gone"
    body=$(mktemp)
    jq -r --argjson number "$number" '.[] | select(.number == $number) | .body' <<< "$all" > "$body"
    printf '\n%s\n' "$gone" >> "$body"
    gh issue edit "$number" --body-file "$body"
    gh issue close "$number" --comment "Gone: all rows of this place were measured last night, and none is slower any more."
    rm "$body"
done < <(jq -r "$query" <<< "$all")
