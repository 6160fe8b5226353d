"""One connection against a server that sends exactly the bytes it is told to."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import ipaddress
import os
import resource
import socket
import ssl
import struct
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.access import Access
from harness.load.connection import MAX_HEAD_BYTES, RawStream
from harness.load.recording import BLOCK_BYTES, Recording
from harness.load.sse import events
from harness.load.stream import Endpoint, StreamClient

T = TypeVar("T")
OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
EVENT = b'data: {"n": 1}\n\n'


def chunk(data: bytes, extension: bytes = b"") -> bytes:
    return b"%x%b\r\n%b\r\n" % (len(data), extension, data)


WHOLE = CHUNKED + chunk(EVENT) + b"0\r\n\r\n"


def run(main: Awaitable[T]) -> T:
    """As in a load process."""
    import uvloop

    async def bounded() -> T:
        return await asyncio.wait_for(main, 20)

    return uvloop.run(bounded()) if sys.platform != "win32" else asyncio.run(bounded())


Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]


class Server:
    """Reads whole requests and gives the n-th of them the n-th answer; the last one again for all later ones."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = answers
        self.heads: list[bytes] = []
        self.bodies: list[bytes] = []
        self.connections = self.open = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with self.counted(), contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
                self.heads.append(head)
                self.bodies.append(await reader.readexactly(length))
                await self.answers[min(len(self.heads), len(self.answers)) - 1](writer)
                if writer.is_closing():
                    return
        writer.transport.abort()

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        self.open += 1
        try:
            yield
        finally:
            self.open -= 1


@contextlib.asynccontextmanager
async def listening(server: Server, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    running = await asyncio.start_server(server.serve, host, 0, ssl=tls)
    port = running.sockets[0].getsockname()[1]
    name = f"[{host}]" if ":" in host else host
    try:
        yield f"http{'s' if tls else ''}://{name}:{port}"
    finally:
        running.close()
        while server.open:
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.005)


def says(*pieces: bytes, close: bool = False, pause: float = 0.0) -> Answer:
    async def answer(writer: asyncio.StreamWriter) -> None:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(pause)
        if close:
            writer.close()

    return answer


async def reset(writer: asyncio.StreamWriter) -> None:
    """Closes with a RST instead of a FIN."""
    link = writer.get_extra_info("socket")
    await asyncio.sleep(0.02)  # what was written has arrived
    os_socket = socket.socket(fileno=os.dup(link.fileno()))
    os_socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
    await asyncio.sleep(0)
    os_socket.close()


async def ask(url: str, timeout_s: float = 5.0, count: int = 1, **access: object) -> list[RawStream]:
    client = StreamClient(await Endpoint.of(url, Access(**access)), timeout_s)  # type: ignore[arg-type]
    try:
        return [await client.stream("/v1/completions", b'{"prompt": "x"}', lambda _: None) for _ in range(count)]
    finally:
        client.close()


def asked(*answers: Answer, count: int = 1, timeout_s: float = 5.0) -> tuple[Server, list[RawStream]]:
    async def main() -> tuple[Server, list[RawStream]]:
        server = Server(*answers)
        async with listening(server) as url:
            return server, await ask(url, timeout_s, count)

    return run(main())


def data(raw: RawStream) -> list[bytes]:
    return [event for _, event in events(raw.body.pieces())]


WHOLE_ANSWERS = {
    "chunked": says(WHOLE),
    "content length": says(OK + b"Content-Length: %d\r\n\r\n" % len(EVENT) + EVENT),
    "http/1.0 until close": says(b"HTTP/1.0 200 OK\r\n\r\n" + EVENT[:5], EVENT[5:], close=True),
    "http/1.1 until close": says(OK + b"\r\n" + EVENT, close=True),
    "chunk extensions": says(CHUNKED + chunk(EVENT, b";a=b;c") + b"0\r\n\r\n"),
    "trailers": says(CHUNKED + chunk(EVENT) + b"0\r\nContent-Encoding: gzip\r\nX-Sum: 5\r\n\r\n"),
    "1xx first": says(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n", WHOLE),
    "header names of any case": says(WHOLE.replace(b"Transfer-Encoding", b"tRANSFER-eNCODING")),
}


@pytest.mark.parametrize("name", WHOLE_ANSWERS)
def test_whole_answers(name: str) -> None:
    """Twice: what one answer leaves behind, such as a trailer, must not reach the next."""
    _, raws = asked(WHOLE_ANSWERS[name], count=2)
    for raw in raws:
        assert (raw.outcome, raw.error, raw.http_status) == ("eof", "", 200)
        assert data(raw) == [b'{"n": 1}']
        assert raw.t_start <= raw.t_send <= raw.t_end


def test_one_byte_at_a_time() -> None:
    _, [raw] = asked(says(*(WHOLE[n : n + 1] for n in range(len(WHOLE)))))
    assert raw.outcome == "eof"
    assert data(raw) == [b'{"n": 1}']
    assert raw.body.size == len(EVENT)


def test_each_event_has_the_time_of_its_arrival() -> None:
    _, [raw] = asked(says(CHUNKED, *(chunk(EVENT) for _ in range(4)), b"0\r\n\r\n", pause=0.03))
    times = [t for t, _ in events(raw.body.pieces())]
    assert len(times) == 4
    assert all(0.025 < b - a < 1 for a, b in pairwise(times))


FAILURES: dict[str, tuple[Answer, str, str]] = {
    "503": (says(b"HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nfull"), "refused", "HTTP 503: full"),
    "500, cut": (says(b"HTTP/1.1 500 No\r\nContent-Length: 9\r\n\r\nfu", close=True), "refused", "HTTP 500: fu"),
    "closed before": (says(close=True), "broken", "closed by the server before it answered"),
    "closed within": (says(CHUNKED + chunk(EVENT), close=True), "broken", "closed by the server in the middle"),
    "short body": (says(OK + b"Content-Length: 99\r\n\r\n" + EVENT, close=True), "broken", "closed by the server"),
    "not HTTP": (says(b"SSH-2.0-OpenSSH_9.2\r\n", close=True), "garbled", "SSH-2.0"),
    "bad chunk": (says(CHUNKED + chunk(EVENT) + b"zz\r\n"), "garbled", "Invalid character in chunk size"),
    "endless headers": (says(OK + b"X: " + b"y" * MAX_HEAD_BYTES), "garbled", "64 KiB of headers"),
    "another protocol": (
        says(b"HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n"), "garbled", "another protocol",
    ),
    "gzip": (says(OK + b"Content-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc"), "refused", "compressed (gzip)"),
    "silence": (says(CHUNKED + chunk(EVENT)), "timeout", "no end after 0.4 s"),
    "silence before": (says(), "timeout", "no end after 0.4 s"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAILURES)
def test_failures_say_what_happened(name: str) -> None:
    answer, outcome, message = FAILURES[name]
    server, [raw, good] = asked(answer, says(WHOLE), count=2, timeout_s=0.4)
    assert raw.outcome == outcome
    assert message in raw.error
    assert good.outcome == "eof"  # on a connection that the failure did not spoil
    assert server.connections == (1 if name in ("503", "gzip") else 2)


def test_reset_and_refused_are_told_apart() -> None:
    _, [before] = asked(reset)
    assert (before.outcome, before.error) == ("broken", "reset by the server before it answered")

    async def within(writer: asyncio.StreamWriter) -> None:
        await says(CHUNKED + chunk(EVENT))(writer)
        await reset(writer)

    _, [broken] = asked(within)
    assert (broken.outcome, broken.error) == ("broken", "reset by the server in the middle of its answer")
    assert data(broken) == [b'{"n": 1}']
    [refused] = run(ask("http://127.0.0.1:9"))
    assert refused.outcome == "refused"
    assert refused.error == "connection lost before it began: connection refused (127.0.0.1:9)"
    [unknown] = run(ask("http://no-such-host.invalid:9"))
    assert unknown.outcome == "refused"
    assert "can't be resolved" in unknown.error


def test_connections_are_kept_where_the_server_keeps_them() -> None:
    kept, raws = asked(says(WHOLE), count=5)
    assert kept.connections == 1
    closed, raws = asked(says(WHOLE.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1)), count=3)
    assert closed.connections == 3
    assert [raw.outcome for raw in raws] == ["eof"] * 3

    async def main() -> int:
        server = Server(says(WHOLE))
        async with listening(server) as url:
            await ask(url, count=3, keep_alive=False)
            assert b"Connection: close" in server.heads[0]
        return server.connections

    assert run(main()) == 3


def test_bytes_after_a_whole_answer_cost_the_connection_only() -> None:
    server, raws = asked(says(WHOLE + b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx"), count=2)
    assert [(raw.outcome, len(data(raw))) for raw in raws] == [("eof", 1)] * 2
    assert server.connections == 2


def test_an_idle_connection_is_not_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.load.stream.MAX_IDLE_S", 0.05)

    async def main() -> int:
        server = Server(says(WHOLE))
        async with listening(server) as url:
            client = StreamClient(await Endpoint.of(url), 5.0)
            await client.connect()
            for pause in (0.0, 0.0, 0.1):
                await asyncio.sleep(pause)
                assert (await client.stream("/x", b"", lambda _: None)).outcome == "eof"
            client.close()
        return server.connections

    assert run(main()) == 2


def test_cancelling_keeps_what_came() -> None:
    async def main() -> RawStream:
        server = Server(says(CHUNKED + chunk(EVENT)))
        async with listening(server) as url:
            client = StreamClient(await Endpoint.of(url), 30.0)
            came = asyncio.Event()
            task = asyncio.ensure_future(client.stream("/x", b"{}", lambda _: came.set()))
            await came.wait()
            task.cancel()
            return await task

    raw = run(main())
    assert raw.outcome == "cancelled"
    assert data(raw) == [b'{"n": 1}']


def test_a_body_larger_than_the_socket_takes_is_sent_whole() -> None:
    async def main() -> tuple[RawStream, bytes]:
        server = Server(says(WHOLE))
        async with listening(server) as url:
            client = StreamClient(await Endpoint.of(url), 10.0)
            raw = await client.stream("/x", bytes(range(256)) * 60_000, lambda _: None)
            client.close()
        return raw, server.bodies[0]

    raw, body = run(main())
    assert raw.outcome == "eof"
    assert body == bytes(range(256)) * 60_000


def test_requests_are_what_a_server_expects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")  # no proxy between us and the server
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")

    async def main() -> bytes:
        server = Server(says(WHOLE))
        async with listening(server) as url:
            [raw] = await ask(url + "/base/", headers=(("Authorization", "Bearer k"), ("X-Team", "a")))
            assert raw.outcome == "eof"
        return server.heads[0]

    head = run(main())
    assert head.startswith(b"POST /base/v1/completions HTTP/1.1\r\nHost: 127.0.0.1:")
    for line in (b"Authorization: Bearer k", b"X-Team: a", b"Accept-Encoding: identity", b"Content-Length: 15"):
        assert line in head.split(b"\r\n")


@pytest.mark.parametrize(
    "header", [("Host", "x"), ("content-length", "5"), ("X", "a\r\nY: b"), ("X: y", "a"), ("X", "€")]
)
def test_headers_that_would_break_a_request(header: tuple[str, str]) -> None:
    with pytest.raises(ValueError, match="header"):
        run(Endpoint.of("http://127.0.0.1:9", Access(headers=(header,))))


def test_ipv6() -> None:
    async def main() -> tuple[bytes, list[RawStream]]:
        server = Server(says(WHOLE))
        async with listening(server, "::1") as url:
            return server, await ask(url)

    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    server, [raw] = run(main())
    assert raw.outcome == "eof"
    assert b"Host: [::1]:" in server.heads[0]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, Path]:
    """A server's context and the file with the CA that signed it: itself."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.timezone.utc)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        .sign(key, hashes.SHA256())
    )
    folder = tmp_path_factory.mktemp("tls")
    (folder / "ca.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    plain = serialization.NoEncryption()
    (folder / "key.pem").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    )
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "ca.pem", folder / "key.pem")
    return context, folder / "ca.pem"


def test_tls_with_a_ca_file(certificate: tuple[ssl.SSLContext, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    context, ca_file = certificate

    async def main() -> tuple[Server, list[RawStream], list[RawStream], list[RawStream]]:
        server = Server(says(CHUNKED, chunk(EVENT), b"0\r\n\r\n", pause=0.01))
        async with listening(server, tls=context) as url:
            trusted = await ask(url, count=3, ca_file=str(ca_file))
            untrusted = await ask(url)
            monkeypatch.setenv("SSL_CERT_FILE", str(ca_file))
            return server, trusted, untrusted, await ask(url)

    server, trusted, [untrusted], [by_environment] = run(main())
    assert [(raw.outcome, data(raw)) for raw in trusted] == [("eof", [b'{"n": 1}'])] * 3
    assert untrusted.outcome == "refused"
    assert "is not trusted: self" in untrusted.error
    assert by_environment.outcome == "eof"
    assert len(server.heads) == 4


def test_tls_asked_of_a_plain_server() -> None:
    class Plain(Server):
        async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1)
            await says(b"HTTP/1.1 400 Bad Request\r\n\r\n", close=True)(writer)

    async def main() -> list[RawStream]:
        async with listening(Plain()) as url:
            return await ask(url.replace("http:", "https:"))

    [raw] = run(main())
    assert raw.outcome == "refused"
    assert raw.error.startswith("no TLS with")


@pytest.fixture
def no_descriptors_left() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_out_of_file_descriptors_is_not_the_servers_fault(no_descriptors_left: None) -> None:
    async def main() -> RawStream:
        async with listening(Server(says(WHOLE))) as url:
            endpoint = await Endpoint.of(url)
            highest = max(map(int, os.listdir("/proc/self/fd")))
            resource.setrlimit(resource.RLIMIT_NOFILE, (highest, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
            held = []
            with contextlib.suppress(OSError):
                while True:
                    held.append(os.dup(0))
            raw = await StreamClient(endpoint, 5.0).stream("/x", b"", lambda _: None)
            for descriptor in held:
                os.close(descriptor)
            return raw

    raw = run(main())
    assert raw.outcome == "refused"
    assert "raise `ulimit -n`" in raw.error


class _Sink:
    def set_write_buffer_limits(self, **_: int) -> None: ...
    def write(self, _: bytes) -> None: ...
    def abort(self) -> None: ...


@settings(deadline=None, max_examples=400, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.one_of(
            st.binary(max_size=40),
            st.sampled_from(
                [OK, CHUNKED, WHOLE, EVENT, chunk(EVENT), b"0\r\n\r\n", b"\r\n", b"HTTP/1.1 ", b"\xff\x00"]
            ),
        ),
        max_size=8,
    ),
    st.sampled_from([None, ConnectionResetError(), OSError("strange")]),
)
def test_any_bytes_end_in_an_outcome(pieces: list[bytes], error: Exception | None) -> None:
    from harness.load.connection import Connection

    async def main() -> RawStream:
        connection, raw = Connection(), RawStream(0.0)
        connection.connection_made(_Sink())  # type: ignore[arg-type]
        over = connection.ask(b"", raw, lambda _: None)
        for piece in pieces:
            if piece:
                connection.data_received(piece)
        connection.connection_lost(error)
        await over
        return raw

    raw = asyncio.run(main())
    assert raw.outcome in {"eof", "refused", "broken", "garbled"}
    assert (raw.error == "") == (raw.outcome == "eof")
    data(raw)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.binary(min_size=1, max_size=2 * BLOCK_BYTES), max_size=40))
def test_a_recording_gives_back_what_it_was_given(pieces: list[bytes]) -> None:
    recording = Recording()
    for n, piece in enumerate(pieces):
        recording.add(float(n), piece)
    assert list(recording.pieces()) == [(float(n), piece) for n, piece in enumerate(pieces)]
    assert recording.size == sum(map(len, pieces))
    assert recording.head(20) == b"".join(pieces)[:20]


def test_a_recording_is_compact() -> None:
    """28 bytes for each event of 300 that repeats its neighbours', as those of real servers do."""
    recording = Recording()
    template = (
        b'data: {"id":"cmpl-1","object":"text_completion","created":1,"model":"Qwen/Qwen3.5-397B-A17B","choices":'
    )
    template += b'[{"index":0,"text":" w%d","logprobs":null,"finish_reason":null}],"usage":{"prompt_tokens":8192,'
    template += b'"completion_tokens":%d,"total_tokens":%d}}\n\n'
    for n in range(8192):
        recording.add(n * 0.01, template % (n * 7919 % 30011, n, 8192 + n))
    assert recording.stored < 45 * 8192
