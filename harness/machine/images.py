"""The newest image of SGLang for a kind of GPU, pinned by its digest: a night follows upstream with nobody's help."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any
from urllib.parse import quote

from harness.errors import MtpbenchError
from harness.http import ApiClient

HUB = "https://hub.docker.com"
_PAGES = 5  # of a hundred tags: more than a week of them
# <version>-<flavour>-<GPU>-<day>, such as v0.5.19-rocm720-mi35x-20260908
_TAG = re.compile(r"(?P<version>v?\d[\w.]*)-(?P<flavour>rocm\d+)-(?P<gpu>mi\w+)-(?P<day>\d{8})")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_REPOSITORY = re.compile(r"[a-z0-9]+(?:[._-]+[a-z0-9]+)*/[a-z0-9]+(?:[._-]+[a-z0-9]+)*")


@dataclass(frozen=True)
class Image:
    """One tag as it stands now. `reference`: with its digest, as `docker run` and `--image` take it."""

    repository: str
    tag: str
    digest: str
    day: date

    @property
    def reference(self) -> str:
        return f"{self.repository}:{self.tag}@{self.digest}"


def newest(repository: str, rows: Iterable[Mapping[str, Any]], flavour: str, gpu: str, since: date) -> Image | None:
    """The newest image among a registry's rows (`name`, `digest`, `images`) that is of this flavour, GPU and time."""
    found = []
    for row in rows:
        match = _TAG.fullmatch(str(row.get("name", "")))
        if match is None or (match["flavour"], match["gpu"]) != (flavour, gpu):
            continue
        try:
            day = datetime.strptime(match["day"], "%Y%m%d").date()
        except ValueError:
            continue
        digest = _digest(row)
        if digest and day >= since:
            found.append((day, _numbers(match["version"]), Image(repository, match[0], digest, day)))
    return max(found, key=lambda one: one[:2])[2] if found else None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))


def _digest(row: Mapping[str, Any]) -> str:
    """What the tag points to; where the registry says only what its parts are, the one for this processor."""
    parts = row.get("images")
    known = [row.get("digest")]
    known += [
        one.get("digest")
        for one in (parts if isinstance(parts, list) else [])
        if isinstance(one, dict) and one.get("architecture") == "amd64"
    ]
    return next((str(one) for one in known if _DIGEST.fullmatch(str(one))), "")


def find_newest(repository: str, flavour: str, gpu: str, today: date, days: int, hub: str = HUB) -> Image:
    """Asks Docker Hub. Raises MtpbenchError where it does not answer, or has no image that is young enough."""
    if not _REPOSITORY.fullmatch(repository):
        raise MtpbenchError(f"{repository!r} is no repository", "OWNER/NAME, such as rocm/sgl-dev.")
    client = ApiClient(hub, {"Accept": "application/json"})
    since, rows = today - timedelta(days), list[Mapping[str, Any]]()
    try:
        for page in range(1, _PAGES + 1):
            path = f"/v2/repositories/{quote(repository)}/tags?page_size=100&page={page}&ordering=last_updated"
            reply = client.ask("GET", path)
            answer = reply.json()
            if not reply.ok or not isinstance(answer, dict) or not isinstance(answer.get("results"), list):
                raise MtpbenchError(
                    f"{hub} did not say which images {repository} has: {reply.status or reply.text[:200]}",
                    "Name the image: --image NAME@sha256:….",
                )
            rows += [row for row in answer["results"] if isinstance(row, dict)]
            if not answer.get("next"):
                break
    finally:
        client.close()
    found = newest(repository, rows, flavour, gpu, since)
    if found is None:
        raise MtpbenchError(
            f"{repository} has no image …-{flavour}-{gpu}-DAY since {since}, among its {len(rows)} newest tags",
            "Look for another flavour, or for longer: --flavour, --days.",
        )
    return found
