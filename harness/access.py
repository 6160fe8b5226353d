"""How a server is reached: what each request carries besides its question, and whose certificates are trusted."""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass

# Each request's own; and what would cut it in two.
_RESERVED = frozenset({"host", "content-length", "transfer-encoding", "connection", "accept-encoding"})


@dataclass(frozen=True)
class Access:
    """`keep_alive`: may a connection be used again? `headers` may hold secrets and are written down nowhere.
    `ca_file` has the certificates to trust, for https; empty: $SSL_CERT_FILE, else what certifi ships."""

    keep_alive: bool = True
    headers: tuple[tuple[str, str], ...] = ()
    ca_file: str = ""

    def __repr__(self) -> str:
        names = ", ".join(name for name, _ in self.headers)
        return f"Access(keep_alive={self.keep_alive}, headers of {names or 'nobody'}, ca_file={self.ca_file!r})"

    def ssl_context(self) -> ssl.SSLContext:
        """Verifies certificates and names. Raises OSError (ssl.SSLError is one) where the file can't be used."""
        import certifi

        trusted = self.ca_file or os.environ.get("SSL_CERT_FILE") or certifi.where()
        context = ssl.create_default_context(cafile=trusted)
        context.set_alpn_protocols(["http/1.1"])
        return context


PLAIN = Access()


def header_problem(name: str, value: str) -> str:
    """Why a header can't be sent; empty where it can."""
    if not name or not name.isascii() or any(character in name for character in " :\r\n\0\t"):
        return f"{name!r} is no name of a header"
    if name.lower() in _RESERVED:
        return f"the header {name!r} can't be set: the client sets it"
    if any(character in value for character in "\r\n\0") or not value.isprintable() or not _latin_1(value):
        return f"the value of the header {name!r} has characters that a header can't have"
    return ""


def _latin_1(value: str) -> bool:
    return all(ord(character) < 256 for character in value)
