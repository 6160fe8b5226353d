#!/usr/bin/env bash
# May this comment start an A/B of a pull request, and of which commits? Needs the GitHub CLI, logged in.
#
# A comment `/ab SHA [SCENARIO]` names the commit that its author has looked at: what is pushed afterwards is not run.
# Reads REPOSITORY, PULL_REQUEST, COMMENT, COMMENT_AUTHOR; writes base=, head= and scenario= for a job's outputs, or
# refused=, which says why not.
set -euo pipefail
refuse() { echo "refused: $1" >&2; printf 'refused=%s\n' "$(tr -d '\r\n' <<< "$1")"; exit 1; }

read -r word commit scenario rest <<< "$(head -n 1 <<< "$COMMENT" | tr -d '\r')"
[ "$word" = /ab ] || refuse "the comment is not: /ab SHA [SCENARIO]"
[[ $commit =~ ^[0-9a-f]{7,40}$ ]] || refuse "name the commit that you have looked at: /ab SHA [SCENARIO]"
[ -z "${rest:-}" ] || refuse "one scenario at a time"
scenario=${scenario:-pr-mi355x}
[[ $scenario =~ ^[A-Za-z0-9][A-Za-z0-9._-]*$ ]] || refuse "no scenario is called so"
[ -f "$(dirname "${BASH_SOURCE[0]}")/../scenarios/$scenario.yaml" ] || refuse "there is no scenarios/$scenario.yaml"
[[ $PULL_REQUEST =~ ^[0-9]+$ && $COMMENT_AUTHOR =~ ^[A-Za-z0-9-]+$ ]] || refuse "that is no pull request or no author"

permission=$(gh api "repos/$REPOSITORY/collaborators/$COMMENT_AUTHOR/permission" --jq .permission)
[[ $permission = admin || $permission = write ]] || refuse "$COMMENT_AUTHOR may not write to this repository"
head=$(gh api "repos/$REPOSITORY/pulls/$PULL_REQUEST" --jq .head.sha)
[[ $head =~ ^[0-9a-f]{40}$ ]] || refuse "the pull request has no head"
[[ $head = "$commit"* ]] || refuse "the pull request is at ${head:0:12} now, not at $commit: look at it again"
target=$(gh api "repos/$REPOSITORY/pulls/$PULL_REQUEST" --jq .base.sha)
base=$(gh api "repos/$REPOSITORY/compare/$target...$head" --jq .merge_base_commit.sha)
[[ $base =~ ^[0-9a-f]{40}$ ]] || refuse "the pull request has no common ancestor with its base"
printf 'base=%s\nhead=%s\nscenario=scenarios/%s.yaml\n' "$base" "$head" "$scenario"
