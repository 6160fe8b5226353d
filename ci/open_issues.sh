#!/usr/bin/env bash
# Opens or updates an issue for each text that `mtpbench ci issues STORE FOLDER` wrote. Needs the GitHub CLI, logged in.
# One that was closed is left closed and named: a person did it, as nothing here closes issues. A slowdown that begins on
# another night has another mark, and hence an issue of its own.
#   ci/open_issues.sh FOLDER
set -euo pipefail
label=mtpbench-regression
shopt -s nullglob
for issue in "$1"/*/; do
    marker=$(< "$issue/marker") title=$(< "$issue/title") owner=$(< "$issue/owner")
    # Markers hold letters, digits and ._:<>!- only, so one can stand in a jq string as it is.
    [[ $marker =~ ^\<!--\ [A-Za-z0-9._:-]+\ --\>$ ]] || { echo "$issue: a damaged marker" >&2; exit 1; }
    query="[.[] | select(.body | startswith(\"$marker\"))] | sort_by(.state == \"CLOSED\")"
    query+="[0] | if . == null then empty else \"\\(.number) \\(.state)\" end"
    read -r number state <<< "$(gh issue list --label "$label" --state all --limit 1000 --json number,body,state --jq "$query")"
    if [ "${state:-}" = CLOSED ]; then
        echo "$issue: #$number was closed by a person, and stays closed"
        continue
    fi
    if [ -n "$number" ]; then
        gh issue edit "$number" --title "$title" --body-file "$issue/body.md"
        continue
    fi
    gh label create "$label" --description "a confirmed slowdown" --force > /dev/null
    create=(gh issue create --label "$label" --title "$title" --body-file "$issue/body.md")
    # A name in the ledger need not be a login: then the issue has its owner in the text alone.
    if [[ ! $owner =~ ^[A-Za-z0-9-]+$ ]] || ! "${create[@]}" --assignee "$owner"; then "${create[@]}"; fi
done
