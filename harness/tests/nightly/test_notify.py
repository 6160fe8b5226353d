"""Webhooks against a server that takes them, and the verb that remembers what was told."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from commands import mtpbench

from harness.errors import MtpbenchError
from harness.nightly.notices import send


class Hook(HTTPServer):
    """Keeps what it is sent. `answer`: the status and body that it gives."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.got: list[object] = []
        self.answer: tuple[int, bytes] = (200, b"ok")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/services/a-secret"


class _Handler(BaseHTTPRequestHandler):
    server: Hook

    def do_POST(self) -> None:
        self.server.got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        status, body = self.server.answer
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hook() -> Iterator[Hook]:
    server = Hook()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_notice_arrives(hook: Hook) -> None:
    send(hook.url, "the night is FAIL")
    hook.answer = (200, b'{"code": 0, "msg": "success"}')  # Lark's yes
    send(hook.url, "again")
    assert hook.got == [{"text": "the night is FAIL"}, {"text": "again"}]


@pytest.mark.parametrize(
    ("status", "body"), [(404, b"no_service"), (500, b""), (200, b'{"code": 19021, "msg": "sign match fail"}')]
)
def test_what_is_not_taken_is_an_error_that_keeps_the_url(hook: Hook, status: int, body: bytes) -> None:
    hook.answer = (status, body or hook.url.encode())
    with pytest.raises(MtpbenchError, match=f"did not take the notice: {status}") as caught:
        send(hook.url, "t")
    assert "a-secret" not in f"{caught.value} {caught.value.hint}"


def test_a_dead_webhook_and_one_that_is_none(hook: Hook) -> None:
    url = hook.url.replace(str(hook.server_port), "1")  # nobody listens there
    with pytest.raises(MtpbenchError, match="did not take the notice") as caught:
        send(url, "t")
    assert "a-secret" not in str(caught.value)
    with pytest.raises(MtpbenchError, match=r"no http\(s\) URL"):
        send("file:///etc/passwd", "t")


def test_the_store_remembers_what_was_told(hook: Hook, tmp_path: Path) -> None:
    def notify(*words: str, check: int = 0) -> str:
        done = mtpbench("ci", "notify", "store", *words, cwd=tmp_path, check=check, MTPBENCH_WEBHOOK=hook.url)
        return done.stdout + done.stderr

    assert "knows of no night yet" in notify("--overdue", "30h")
    notify("--word", "PASS")
    assert "as before: PASS" in notify("--word", "PASS")
    assert "as before: PASS" in notify("--overdue", "30h")
    assert len(hook.got) == 1
    hook.answer = (500, b"")
    notify("--word", "FAIL", check=2)  # nobody was told, so that the next one tells it
    hook.answer = (200, b"ok")
    notify("--word", "FAIL", "--sentence", "TPOT +5 %")
    assert hook.got[-1] == {"text": "mtpbench: the night is FAIL (before: PASS). TPOT +5 %"}
    assert json.loads((tmp_path / "store" / "notices.json").read_text())["word"] == "FAIL"
    assert "either --word or --overdue" in notify(check=2)
