#!/usr/bin/env bash
# Opens or updates an issue for each text that `mtpbench ci issues STORE FOLDER` wrote. Needs the GitHub CLI, logged in.
#   ci/open_issues.sh FOLDER
set -euo pipefail
label=mtpbench-regression
shopt -s nullglob
for issue in "$1"/*/; do
    marker=$(< "$issue/marker") title=$(< "$issue/title") owner=$(< "$issue/owner")
    # Markers hold letters, digits and ._:<>!- only, so one can stand in a jq string as it is.
    [[ $marker =~ ^\<!--\ [A-Za-z0-9._:-]+\ --\>$ ]] || { echo "$issue: a damaged marker" >&2; exit 1; }
    query="[.[] | select(.body | startswith(\"$marker\"))][0].number // empty"
    number=$(gh issue list --label "$label" --state open --limit 500 --json number,body --jq "$query")
    if [ -n "$number" ]; then
        gh issue edit "$number" --title "$title" --body-file "$issue/body.md"
        continue
    fi
    gh label create "$label" --description "a confirmed slowdown" --force > /dev/null
    create=(gh issue create --label "$label" --title "$title" --body-file "$issue/body.md")
    # A name in the ledger need not be a login: then the issue has its owner in the text alone.
    if [[ ! $owner =~ ^[A-Za-z0-9-]+$ ]] || ! "${create[@]}" --assignee "$owner"; then "${create[@]}"; fi
done
