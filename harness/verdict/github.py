"""What the CI tells GitHub: a comment on a pull request that is updated in place, a check, pictures on a branch."""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from harness.errors import MtpbenchError
from harness.http import ApiClient
from harness.verdict.compare import Comparison, Verdict

API = "https://api.github.com"
BOT = "github-actions[bot]"
CHECK = "mtpbench A/B"
_PAGE = 100
_REPOSITORY = re.compile(r"^[A-Za-z0-9._-]+/[A-Za-z0-9._-]+$")
# A check is for people who merge: only what says "slower" or "unusable" stops them.
CONCLUSIONS: dict[Verdict, str] = {
    Verdict.PASS: "success",
    Verdict.IMPROVED: "success",
    Verdict.FAIL: "failure",
    Verdict.INVALID: "failure",
    Verdict.INCOMPARABLE: "failure",
    Verdict.MISSING: "failure",
    Verdict.NO_BASELINE: "neutral",
    Verdict.BIMODAL: "neutral",
    Verdict.INCONCLUSIVE: "neutral",
}


class GitHubError(MtpbenchError):
    """GitHub refused, or did not answer."""


@dataclass(frozen=True)
class Posted:
    """A comment as it stands now."""

    id: int
    url: str
    updated: bool  # it was there already


class GitHub:
    """One repository, as the owner of a token. Close it, or use it as a context manager."""

    def __init__(self, repository: str, token: str, api: str = API) -> None:
        if not _REPOSITORY.match(repository):
            raise GitHubError(f"{repository!r} is no repository", "OWNER/NAME, as in $GITHUB_REPOSITORY.")
        self._path = f"/repos/{repository}"
        headers = {
            "Authorization": f"Bearer {token}",
            "Accept": "application/vnd.github+json",
            "X-GitHub-Api-Version": "2022-11-28",
            "User-Agent": "mtpbench",
        }
        self._http = ApiClient(api, headers)

    @classmethod
    def from_environment(cls, repository: str = "", environment: Mapping[str, str] = os.environ) -> GitHub:
        """With the variables that GitHub's runners set. Raises GitHubError where one is missing."""
        repository = repository or environment.get("GITHUB_REPOSITORY", "")
        token = environment.get("GITHUB_TOKEN") or environment.get("GH_TOKEN") or ""
        if not repository or not token:
            what = "GITHUB_TOKEN" if repository else "GITHUB_REPOSITORY"
            raise GitHubError(f"{what} is not set", "Without --pr nothing is sent: the comment is only written.")
        return cls(repository, token, environment.get("GITHUB_API_URL") or API)

    def __enter__(self) -> GitHub:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def comment(self, pull_request: int, marker: str, body: str, author: str = BOT) -> Posted:
        """Updates the author's comment that begins with the marker, or writes the first one.

        Anybody can write a marker: only a comment of our own is ours to change.
        """
        before = self._find(pull_request, marker, author)
        if before is None:
            answer = self._ask("POST", f"/issues/{pull_request}/comments", {"body": body})
        else:
            answer = self._ask("PATCH", f"/issues/comments/{before}", {"body": body})
        return Posted(int(answer["id"]), str(answer.get("html_url", "")), before is not None)

    def _find(self, pull_request: int, marker: str, author: str) -> int | None:
        page = 1
        while True:
            found = self._ask("GET", f"/issues/{pull_request}/comments?per_page={_PAGE}&page={page}")
            for one in found:
                body, user = str(one.get("body") or ""), one.get("user") or {}
                if user.get("login") == author and body.startswith(marker):
                    return int(one["id"])
            if len(found) < _PAGE:
                return None
            page += 1

    def check(self, commit: str, comparison: Comparison, summary: str, details_url: str = "") -> None:
        """The verdict as a completed check of a commit."""
        value: dict[str, Any] = {
            "name": CHECK,
            "head_sha": commit,
            "status": "completed",
            "conclusion": CONCLUSIONS[comparison.verdict],
            "output": {"title": comparison.headline[:250], "summary": summary},
        }
        if details_url:
            value["details_url"] = details_url
        self._ask("POST", "/check-runs", value)

    def picture(self, branch: str, path: str, content: bytes) -> str:
        """Puts a file on a branch that exists, and returns its address. A file of that name is replaced."""
        place = f"/contents/{quote(path)}"
        before = self._http.ask("GET", f"{self._path}{place}?ref={quote(branch, safe='')}").json()
        value = {"message": path, "branch": branch, "content": base64.b64encode(content).decode()}
        if isinstance(before, dict) and "sha" in before:
            value["sha"] = str(before["sha"])
        return str(self._ask("PUT", place, value)["content"]["download_url"])

    def _ask(self, method: str, path: str, value: object = None) -> Any:
        reply = self._http.ask(method, f"{self._path}{path}", value)
        if 200 <= reply.status < 300:
            return reply.json()
        hint = "Is the pull request, the commit or the branch there?"
        if reply.status in (401, 403):
            hint = "The job needs the permissions pull-requests and checks: write; for pictures, contents: write."
        elif reply.status == 0:
            hint = "Check GITHUB_API_URL and the network."
        raise GitHubError(f"GitHub: {method} {path} gave {reply.status or 'no answer'}: {_message(reply.text)}", hint)


def _message(text: str) -> str:
    try:
        value = json.loads(text)
    except ValueError:
        return text[:300]
    return str(value.get("message", ""))[:300] if isinstance(value, dict) else ""
