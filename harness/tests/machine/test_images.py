"""Which image a night takes: rows by hand, and a small server that answers as Docker Hub does."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import date
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from commands import mtpbench

from harness.machine.images import newest

SINCE = date(2026, 9, 2)


def row(tag: str, letter: str = "a", **more: object) -> dict[str, object]:
    return {"name": tag, "digest": f"sha256:{letter * 64}", **more}


def found(*rows: dict[str, object]) -> str:
    image = newest("rocm/sgl-dev", rows, "rocm720", "mi35x", SINCE)
    return image.reference if image else ""


def test_the_newest_of_its_kind_with_its_digest() -> None:
    rows = [
        row("v0.5.19-rocm720-mi35x-20260908", "a"),
        row("v0.5.20-rocm720-mi35x-20260908", "b"),  # of one day the later version, as numbers: 0.5.9 is before 0.5.20
        row("v0.5.9-rocm720-mi35x-20260908", "c"),
        row("v0.5.21-rocm700-mi35x-20260909", "d"),  # another ROCm
        row("v0.5.21-rocm720-mi30x-20260909", "e"),  # another GPU
        row("latest", "f"),
    ]
    assert found(*rows) == f"rocm/sgl-dev:v0.5.20-rocm720-mi35x-20260908@sha256:{'b' * 64}"


@pytest.mark.parametrize(
    "only",
    [
        row("v0.5.20-rocm720-mi35x-20260901"),  # the day before
        row("v0.5.20-rocm720-mi35x-20269999"),  # no day
        {"name": "v0.5.20-rocm720-mi35x-20260908"},
        row("v0.5.20-rocm720-mi35x-20260908") | {"digest": "sha256:1"},
        row("v0.5.20-rocm720-mi35x-20260908") | {"digest": None, "images": [{"architecture": "arm64", "digest": "x"}]},
        {"images": 3},
    ],
)
def test_what_is_too_old_or_has_no_digest_is_none(only: dict[str, object]) -> None:
    assert found(only) == ""


def test_a_registry_that_says_digests_of_the_parts_only() -> None:
    parts = [{"architecture": "arm64", "digest": f"sha256:{'1' * 64}"}]
    parts += [{"architecture": "amd64", "digest": f"sha256:{'2' * 64}"}]
    assert found({"name": "v0.5.20-rocm720-mi35x-20260908", "images": parts}).endswith("@sha256:" + "2" * 64)


class Hub(HTTPServer):
    """Pages of tags."""

    pages: list[Any]
    asked: list[str]


@pytest.fixture
def hub() -> Iterator[Hub]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert isinstance(self.server, Hub)
            place = urlsplit(self.path)
            self.server.asked.append(place.path)
            number = int(parse_qs(place.query)["page"][0])
            pages = self.server.pages
            answer = {"results": pages[number - 1], "next": "more" if number < len(pages) else None}
            content = json.dumps(answer if pages[number - 1] is not None else "?").encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    server = Hub(("127.0.0.1", 0), Handler)
    server.asked = []
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_verb_reads_all_pages(hub: Hub, tmp_path: Path) -> None:
    hub.pages = [[row("latest")], [row("v0.5.20-rocm720-mi35x-20260908", "b")]]
    words = ("ci", "image", "--hub", f"http://127.0.0.1:{hub.server_port}", "--today")
    done = mtpbench(*words, "2026-09-15", cwd=tmp_path, check=0)
    assert done.stdout == f"rocm/sgl-dev:v0.5.20-rocm720-mi35x-20260908@sha256:{'b' * 64}\n"
    assert "2026-09-08" in done.stderr
    assert hub.asked == ["/v2/repositories/rocm/sgl-dev/tags"] * 2
    old = mtpbench(*words, "2026-09-16", cwd=tmp_path, check=2)
    assert "no image …-rocm720-mi35x-DAY since 2026-09-09, among its 2 newest tags" in old.stderr
    hub.pages = [None]
    assert "did not say which images" in mtpbench(*words, "2026-09-15", cwd=tmp_path, check=2).stderr
    assert "is no repository" in mtpbench("ci", "image", "a/../b", cwd=tmp_path, check=2).stderr
