"""What people say of the series of a store, as events that are appended: wiring only.

They are verbs of `mtpbench store`; a store in a folder and one behind a URL are the same to them.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from harness.cli.common import err, out
from harness.cli.comparing import Today, day_of
from harness.cli.group import verbs_of_a_file
from harness.cli.store import append_events, local
from harness.cli.trend import judged_of, renaming
from harness.errors import MtpbenchError
from harness.nightly.diary import renames, summary
from harness.nightly.judged import Judged
from harness.nightly.rulings import fits
from harness.nightly.series import night_of
from harness.nightly.told import Told
from harness.store.archive import read_archive
from harness.store.events import Event
from harness.store.remote import is_url
from harness.store.runs import rows_path
from harness.verdict.accepted import FILE

StorePlace = Annotated[str, typer.Argument(metavar="STORE", help="A folder, or a store's URL.")]
By = Annotated[str, typer.Option(metavar="NAME", help="Who says so.")]
Why = Annotated[str, typer.Option(help="Why, in a sentence: it is shown wherever the word is.")]
Host = Annotated[str, typer.Option(help="Of this host only.")]
Scenario = Annotated[str, typer.Option(help="Of this scenario only.")]
Arm = Annotated[str, typer.Option(help="Of this arm only.")]
Level = Annotated[str, typer.Option(metavar="LOAD", help='Of this load only, such as "concurrency 16".')]
Metric = Annotated[str, typer.Option(metavar="NAME", help="Of this metric only, such as tpot_p50.")]


verbs = verbs_of_a_file()


@verbs.command()
def retire(
    store: StorePlace,
    by: By,
    why: Why,
    host: Host = "",
    scenario: Scenario = "",
    arm: Arm = "",
    level: Level = "",
    metric: Metric = "",
    today: Today = "",
) -> None:
    """Nobody asks for these series any more: they are not missed from now on, and no slowdown of theirs is told.

    What is measured again after that day is judged again.
    """
    of = _named(host, scenario, arm, level, metric)
    found = _found(_judged(store, today), of)
    last = max(one.series.nights[-1].day for one in found)
    append_events(store, [Event("retired", of, by=by, why=why, facts={"since": str(max(last, day_of(today)))})])
    _say(f"retired: {len(found)} series", found)


@verbs.command()
def rename(
    store: StorePlace,
    names: Annotated[list[str], typer.Argument(metavar="OLD=NEW...", help="SCENARIO@OLD=NEW for an arm.")],
    by: By,
    why: Why,
) -> None:
    """A scenario or an arm has a new name: nights under both names are one series, for every verb and page."""
    pairs = [renaming(text) for text in names]
    known = _judged(store, "")
    now = {**renames(known.events), **dict(pairs)}
    there: set[str] = set()
    for one in known.told:
        for night in one.series.nights:
            name = night.run.scenario.name
            there |= {name, f"{name}@{night.arm}", f"{now.get(name, name)}@{night.arm}"}
    for old, _ in pairs:
        if old not in {*there, *renames(known.events)}:
            some = ", ".join(sorted(there)[:6])
            raise MtpbenchError(f"no night of {store} was recorded as {old}", f"Such as: {some}")
    append_events(store, [Event("renamed", {}, by=by, why=why, facts={"old": old, "new": new}) for old, new in pairs])
    out.print(Text(f"renamed: {', '.join(f'{old} is {new}' for old, new in pairs)}"), soft_wrap=True)


@verbs.command()
def close(
    store: StorePlace,
    by: By,
    why: Why,
    night: Annotated[
        str, typer.Option(metavar="DAY", help="The slowdown's first night. Default: of the one that is told now.")
    ] = "",
    host: Host = "",
    scenario: Scenario = "",
    arm: Arm = "",
    level: Level = "",
    metric: Metric = "",
    today: Today = "",
) -> None:
    """A slowdown is not of the software: it is told no more, and the level after it is the one to compare with."""
    of = _named(host, scenario, arm, level, metric)
    found = [one for one in _found(_judged(store, today), of) if one.since is not None and (one.delta or 0) > 0]
    if night:
        first = day_of(night)
        found = [one for one in found if one.since is not None and abs((one.since - first).days) <= 3]
    days = sorted({one.since for one in found if one.since is not None})
    if not days:
        what = f" that began on {night}" if night else ""
        raise MtpbenchError(f"none of these series has a slowdown{what} to close", f"mtpbench trend {store}")
    if (days[-1] - days[0]).days > 3:
        told = ", ".join(map(str, days))
        raise MtpbenchError(f"these series have slowdowns from {told}", "--night DAY says which one")
    append_events(store, [Event("closed", of, by=by, why=why, facts={"night": str(days[0])})])
    _say(f"closed: {len(found)} series since {days[0]}", found)


@verbs.command()
def prune(
    store: Annotated[Path, typer.Argument(metavar="STORE", help="A store in a folder.")],
    keep: Annotated[int, typer.Option(min=30, metavar="DAYS", help="Nights of the last so many days stay.")],
    by: By,
    why: Why = "",
    today: Today = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be deleted.")] = False,
) -> None:
    """Delete the runs of older nights; their levels and changes stay as events, so that no slowdown is forgotten.

    A/B and A/A runs stay: they say what changes were.
    """
    if is_url(str(store)):
        raise MtpbenchError(f"{store} is a URL", "A store behind a URL keeps everything: set its own lifecycle rules.")
    judged = _judged(str(store), today)
    before = day_of(today) - timedelta(keep)
    old = [one.run for one in judged.archive.kept if one.nightly and night_of(one.run)[0] < before]
    kept = [event for one in judged.told if (event := summary(one.series, one.reading, before)) is not None]
    if dry_run or not old:
        out.print(Text(f"{len(old)} runs before {before} would be deleted, {len(kept)} series summed up"))
        return
    facts = {"runs": len(old), "before": str(before)}
    append_events(str(store), [Event(e.kind, e.series, by=by, why=why, facts={**e.facts, **facts}) for e in kept])
    for run in old:
        rows_path(run.path).unlink(missing_ok=True)
        shutil.rmtree(run.path)
    out.print(Text(f"{len(old)} runs before {before} are deleted, {len(kept)} series summed up"), soft_wrap=True)


def _judged(store: str, today: str) -> Judged:
    return judged_of(read_archive(local(store)), Path(FILE), today=today)


def _named(host: str, scenario: str, arm: str, level: str, metric: str) -> dict[str, Any]:
    given = {"host": host, "scenario": scenario, "arm": arm, "level": level, "metric": metric}
    of = {name: value for name, value in given.items() if value}
    if not of:
        raise MtpbenchError("this would be said of every series", "--host, --scenario, --arm, --level or --metric")
    return of


def _found(judged: Judged, of: dict[str, Any]) -> list[Told]:
    found = [one for one in judged.told if fits(of, one.series)]
    if not found:
        what = ", ".join(f"{name} {value}" for name, value in of.items())
        some = "; ".join(dict.fromkeys(str(one.series.key) for one in judged.told[:3]))
        raise MtpbenchError(f"no series has {what}", f"There are: {some}")
    return found


def _say(first: str, found: Sequence[Told]) -> None:
    out.print(Text(first), soft_wrap=True)
    for one in found[:20]:
        err.print(Text(f"  {one.series.key}", style="dim"), soft_wrap=True)
