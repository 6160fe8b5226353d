"""What a trend says, for the terminal, as Markdown or JSON. Pure: what is told in, text out."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from harness.nightly.told import Status, Told, headline, percent
from harness.stats.series import Change
from harness.text import escape, markdown_table, terminal_table
from harness.verdict.compare import Verdict

_STYLES = {
    Status.OK: "green",
    Status.ALERT: "yellow",
    Status.YOUNG: "dim",
    Status.UNSTABLE: "yellow",
    Status.RETIRED: "dim",
    Status.MOVED: "dim",
    Status.REGRESSED: "bold red",
}
_HEADERS = ("host", "scenario", "TP", "load", "arm", "metric", "nights", "last night", "value", "")


def _cells(told: Told) -> tuple[str, ...]:
    key, last = told.series.key, told.series.nights[-1]
    metric = told.series.metric
    value = f"{1e3 * last.value:.4g} ms" if metric.unit == "s" else f"{last.value:.4g}"
    return (
        key.host, key.scenario, str(key.row.tp), key.row.level.label, key.row.arm, metric.label,
        str(len(told.series.nights)), str(last.day), value, told.status.value,
    )  # fmt: skip


def history(told: Told) -> list[str]:
    """Every change of a series, a line each."""
    return [_sentence(told, change) for change in told.changes]


def _sentence(told: Told, change: Change) -> str:
    nights = told.series.nights
    moved = f"{nights[change.start].day}: {percent(told.series, change.delta)}"
    if change.drift:
        moved += f", a drift of {percent(told.series, change.slope, 2)} a night"
    moved += f" (p {change.p:.2g})" if change.p else ""
    if change.withdrawn and change.ended is not None:
        return f"{moved}, undone on {nights[change.ended].day}: later nights did not bear it out"
    if change.closed and change.ruling is not None:
        return f"{moved}, closed: {change.ruling.why}"
    if change.confirmed is None:
        return f"{moved}, not confirmed"
    by = f" ({change.ruling.why})" if change.ruling is not None else ""
    undone = f", undone on {nights[change.ended].day}" if change.ended is not None else ""
    return f"{moved}, confirmed on {nights[change.confirmed].day}{by}{undone}"


def to_rich(told: Sequence[Told]) -> RenderableType:
    """For the terminal."""
    verdict, sentence = headline(told)
    style = {0: "bold green"}.get(len([t for t in told if t.verdict is not Verdict.PASS]), "bold red")
    parts: list[RenderableType] = [Text(sentence, style=style if verdict.value != "INCONCLUSIVE" else "bold yellow")]
    if told:
        table = terminal_table(_HEADERS, _HEADERS)
        for one in told:
            last = Text(one.status.value, style=_STYLES.get(one.status, "bold magenta"))
            table.add_row(*(Text(cell) for cell in _cells(one)[:-1]), last)
        parts.append(table)
    for one in told:
        if one.status is not Status.OK or one.delta is not None:
            parts.append(Text(one.sentence, style=_STYLES.get(one.status, "bold magenta")))
        parts += [Text(f"  {line}", style="dim") for line in history(one)]
        if one.command and one.status in (Status.ALERT, Status.REGRESSED):
            parts.append(Text(f"  confirm: {one.command}"))
        parts += [Text(f"  note: {note}", style="yellow") for note in one.series.notes]
    return Group(*parts)


def to_markdown(told: Sequence[Told]) -> str:
    """For a summary page of the nightly job; every name is escaped."""
    out = [f"**{escape(headline(told)[1])}**", ""]
    out += markdown_table(_HEADERS, map(_cells, told), _HEADERS, escape)
    out.append("")
    for one in told:
        if one.status is Status.OK and not one.series.notes and one.delta is None:
            continue
        out.append(f"- {escape(one.sentence)}")
        out += [f"  - {escape(line)}" for line in history(one)]
        if one.command:
            out.append(f"  - confirm: `{one.command}`")
        out += [f"  - note: {escape(note)}" for note in one.series.notes]
    return "\n".join(out)


def to_json(told: Sequence[Told]) -> str:
    """For programs and charts: values in the metric's unit, changes as fractions."""

    def change(one: Told, found: Change) -> dict[str, Any]:
        nights = one.series.nights
        return {
            "night": str(nights[found.start].day),
            "change": one.series.metric.change(found.delta),
            "worse": found.worse,
            "p": found.p,
            "alerted": str(nights[found.alerted].day),
            "confirmed": str(nights[found.confirmed].day) if found.confirmed is not None else None,
            "withdrawn": found.withdrawn,
            "drift_a_night": one.series.metric.change(found.slope) if found.drift else None,
            "undone": str(nights[found.ended].day) if found.ended is not None else None,
            "ruling": found.ruling.why if found.ruling is not None else None,
        }

    def series(one: Told) -> dict[str, Any]:
        key = one.series.key
        return {
            "host": key.host,
            "fingerprint": key.fingerprint,
            "scenario": key.scenario,
            "metric": key.row.metric,
            "arm": key.row.arm,
            "tp": key.row.tp,
            "concurrency": key.row.level.concurrency or None,
            "rate": key.row.level.rate or None,
            "status": one.status.value,
            "sentence": one.sentence,
            "change": one.series.metric.change(one.delta) if one.delta is not None else None,
            "since": str(one.since) if one.since is not None else None,
            "excursions": [str(one.series.nights[n].day) for n in one.reading.excursions],
            "command": one.command or None,
            "notes": one.series.notes,
            "changes": [change(one, found) for found in one.changes],
            "nights": [
                {"day": str(n.day), "value": n.value, "launches": n.launches, "commit": n.commit, "run": n.run.id}
                for n in one.series.nights
            ],
        }

    verdict, sentence = headline(told)
    document = {"verdict": verdict.value, "headline": sentence, "series": [series(one) for one in told]}
    return json.dumps(document, indent=1, allow_nan=False)


RENDERERS: dict[str, Callable[[Sequence[Told]], str]] = {"markdown": to_markdown, "json": to_json}
