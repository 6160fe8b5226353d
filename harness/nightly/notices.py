"""What a person is told of the nights: once when their state changes, and once when a night did not run.

The state is a small file in the store, `notices.json`; which notice a new state needs is a pure function of it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

from harness.errors import MtpbenchError
from harness.http import ApiClient

STATE_FILE = "notices.json"
_LARK = ("larksuite.com", "feishu.cn", "larkoffice.com")


@dataclass(frozen=True)
class State:
    """How the nights stand. `at`: ISO 8601, when the last one ended; `overdue`: that it is late was told."""

    word: str
    at: str
    overdue: bool = False

    def to_json(self) -> bytes:
        return (json.dumps(asdict(self)) + "\n").encode()


def state_of(content: bytes | None) -> State | None:
    """The stored state; None where there is none yet. Raises MtpbenchError for a damaged file."""
    if content is None:
        return None
    try:
        return State(**json.loads(content))
    except (ValueError, TypeError) as error:
        raise MtpbenchError(
            f"{STATE_FILE} is damaged: {error!r}", "Remove it: the next night writes it anew."
        ) from error


def after_a_night(before: State | None, word: str, sentence: str, now: str) -> tuple[State, str]:
    """The new state, and what to tell; empty where it is as it was."""
    told = ""
    if before is None or before.word != word or before.overdue:
        was = f" (before: {before.word}{', and a night that did not run' if before.overdue else ''})" if before else ""
        told = f"mtpbench: the night is {word}{was}. {sentence}".strip()
    return State(word, now), told


def on_watch(before: State | None, now: str, patience: timedelta) -> tuple[State | None, str]:
    """What to tell of a night that did not end in time: once, until one does."""
    if before is None or before.overdue:
        return before, ""
    late = datetime.fromisoformat(now) - datetime.fromisoformat(before.at)
    if late <= patience:
        return before, ""
    hours = late.total_seconds() / 3600
    told = f"mtpbench: no night has ended for {hours:.0f} hours; the last was {before.word}, at {before.at}."
    return State(before.word, before.at, overdue=True), told


def message(url: str, text: str) -> Mapping[str, Any]:
    """The body that a webhook wants: Lark and Feishu name their hosts, all else takes Slack's form."""
    host = urlsplit(url).hostname or ""
    if any(host == one or host.endswith("." + one) for one in _LARK):
        return {"msg_type": "text", "content": {"text": text}}
    return {"text": text}


def send(url: str, text: str) -> None:
    """Posts a notice. Raises MtpbenchError that does not say the URL: whoever has it may write there."""
    if urlsplit(url).scheme not in ("http", "https"):
        raise MtpbenchError("the webhook is no http(s) URL", "Put it whole into $MTPBENCH_WEBHOOK.")
    client = ApiClient("", {})
    try:
        reply = client.ask("POST", url, message(url, text))
    finally:
        client.close()
    answer = reply.json()
    refused = isinstance(answer, dict) and answer.get("code") not in (None, 0)  # Lark says 200 to everything
    if reply.status not in (200, 201, 202, 204) or refused:
        why = reply.text.replace(url, "***")[:200] if reply.status else "nobody answered"
        raise MtpbenchError(f"the webhook did not take the notice: {reply.status} {why}", "Check $MTPBENCH_WEBHOOK.")
