"""Short questions over HTTP, to servers and web APIs. Nothing here is timed: `harness.load.stream` is what measures."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.access import PLAIN, Access

HEADERS = {"Content-Type": "application/json", "Accept-Encoding": "identity"}


@dataclass(frozen=True)
class Reply:
    """A short answer: status 0 means that nobody answered, and `text` says why."""

    status: int
    text: str

    @property
    def ok(self) -> bool:
        return self.status == 200

    def json(self) -> Any:
        """The body as JSON, or None where it isn't."""
        try:
            return json.loads(self.text)
        except (ValueError, RecursionError):
            return None


class ControlClient:
    """Short questions to a server: health, models, counters, tokenisation. Never raises for HTTP failures."""

    def __init__(self, base_url: str, access: Access = PLAIN) -> None:
        import httpx  # not above: every engine imports this file, also for `validate`, which asks nobody anything

        self.base_url = base_url
        headers = HEADERS | dict(access.headers) | {"Connection": "close"}
        verify = access.ssl_context() if base_url.startswith("https:") else True
        self._failure = httpx.HTTPError
        self._http = httpx.AsyncClient(base_url=base_url, headers=headers, verify=verify, trust_env=False)

    async def __aenter__(self) -> ControlClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def get(self, path: str, timeout_s: float = 10.0) -> Reply:
        return await self._ask("GET", path, None, timeout_s)

    async def post(self, path: str, value: object, timeout_s: float = 60.0) -> Reply:
        return await self._ask("POST", path, json.dumps(value).encode(), timeout_s)

    async def _ask(self, method: str, path: str, body: bytes | None, timeout_s: float) -> Reply:
        try:
            answer = await self._http.request(method, path, content=body, timeout=timeout_s)
            return Reply(answer.status_code, answer.text)
        except self._failure as error:
            return Reply(0, f"{type(error).__name__}: {error}")


class ApiClient:
    """Questions to a web API that wants a token. Never raises for HTTP failures, and never says the token."""

    def __init__(self, base_url: str, headers: Mapping[str, str], timeout_s: float = 30.0) -> None:
        import httpx

        self._failure = httpx.HTTPError
        self._http = httpx.Client(base_url=base_url, headers=dict(headers), timeout=timeout_s, trust_env=False)

    def close(self) -> None:
        self._http.close()

    def ask(self, method: str, path: str, value: object = None) -> Reply:
        """`value` is sent as JSON. Status 0: nobody answered, and the text says why."""
        try:
            answer = self._http.request(method, path, json=value)
            return Reply(answer.status_code, answer.text)
        except self._failure as error:
            return Reply(0, f"{type(error).__name__}: {error}")
