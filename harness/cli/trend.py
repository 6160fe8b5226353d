"""The verbs over many nights, and the check of the rules themselves."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from harness.cli.common import check_format, err, out, show
from harness.cli.comparing import EXIT_HELP, Format, LedgerFile, Metrics, Today, check_metrics, day_of, excuse_of
from harness.cli.group import verbs_of_a_file
from harness.cli.store import append_events, local, say_left_out
from harness.errors import MtpbenchError
from harness.nightly import report as trend_report
from harness.nightly import told as trends
from harness.nightly.diary import new_events, why
from harness.nightly.judged import Judged, judge
from harness.nightly.night import Trouble, last_nights, read_nights, troubles, worst
from harness.store.archive import Archive, read_archive
from harness.store.events import Event
from harness.text import markdown_table
from harness.verdict.accepted import FILE
from harness.verdict.compare import EXIT_CODES
from harness.verdict.pairs import DEFAULT_METRICS

verbs = verbs_of_a_file()
selftests = verbs_of_a_file()

Renamed = Annotated[
    list[str] | None,
    typer.Option(metavar="OLD=NEW", help="A scenario that was renamed, or SCENARIO@OLD=NEW an arm; may be repeated."),
]


@selftests.command(name="series")
def check_series(
    repetitions: Annotated[int, typer.Option(min=10, help="Histories a row.")] = 200,
    seed: Annotated[int, typer.Option(help="Of the random histories.")] = 1,
) -> None:
    """How often is the model of a series of nights right? Simulated nights with the truth known; 4 minutes.

    Exit codes: 0 every target is met, 1 one is missed.
    """
    from harness.selftest.histories import table
    from harness.selftest.rivals import rules, share

    rows = table(repetitions, seed, lambda line: err.print(Text(line, style="dim"), soft_wrap=True))
    others = rules()
    cells = []
    for case, figure, _ in rows:
        theirs = [share(case, rule, repetitions, seed) for rule in others.values()]
        goal = f"≥ {case.least}" if case.least is not None else f"≤ {case.most}"
        cells.append(
            (case.name, case.what, f"{figure:.3f}", goal, *(f"{x:.3f}" if x is not None else "–" for x in theirs))
        )
    titles = ("SIMULATED history", "counted", "share", "goal", *others)
    sys.stdout.writelines(line + "\n" for line in markdown_table(titles, cells, titles[:2]))
    if not all(met for _, _, met in rows):
        raise typer.Exit(1)


@verbs.command(epilog=EXIT_HELP)
def trend(
    store: Annotated[str, typer.Argument(metavar="STORE", help="Folder with stored runs, or a store's URL.")] = "runs",
    metric: Metrics = None,
    scenario: Annotated[str, typer.Option(help="Only this scenario.")] = "",
    renamed: Renamed = None,
    today: Today = "",
    ledger: LedgerFile = Path(FILE),
    commands: Annotated[
        bool, typer.Option("--commands", help="Print only the paired A/B of each unconfirmed alert, one a line.")
    ] = False,
    record: Annotated[
        bool, typer.Option("--record", help="Write what is new into the store's events, which keep a slowdown's name.")
    ] = False,
    explain: Annotated[
        str, typer.Option("--why", metavar="SERIES", help="Why is its word what it is? A part of its name will do.")
    ] = "",
    output: Format = "table",
) -> None:
    """When did it change? Series over the nightly runs of a store, with alerts and confirmed changes."""
    check_format(output, trend_report.RENDERERS)
    check_metrics(metric or ())
    archive = read_archive(local(store))
    judged = judged_of(archive, ledger, metric, scenario, renamed, today)
    told = list(judged.told)
    if explain:
        _tell_why(judged, explain)
        return
    if commands:
        sys.stdout.writelines(line + "\n" for line in trends.commands(told))
        return
    show(told, output, trend_report.to_rich, trend_report.RENDERERS)
    word = trends.headline(told)[0]
    for one in troubles_of(archive, judged.events, day_of(today), scenario):
        (out if output == "table" else err).print(
            Text(f"{one.word.value}: {one.sentence}", style="bold red"), soft_wrap=True
        )
        word = worst(word, one.word)
    if record:
        _record(store, judged)
    code = EXIT_CODES[word]
    if code:
        raise typer.Exit(code)


def troubles_of(archive: Archive, events: Sequence[Event], today: date, scenario: str = "") -> list[Trouble]:
    """What each host's last night was told to measure and did not."""
    nights, left_out = read_nights(archive.root)
    say_left_out(left_out)
    last = last_nights([night for night in nights if night.day <= today], events)
    found = [one for night in last for one in troubles(night, archive)]
    return [one for one in found if not scenario or one.scenario in ("", scenario)]


def judged_of(
    archive: Archive,
    ledger: Path,
    metric: Sequence[str] | None = None,
    scenario: str = "",
    renamed: Sequence[str] | None = None,
    today: str = "",
) -> Judged:
    """A store as it is judged; what was left out of it is said."""
    names = dict(renaming(text) for text in renamed or [])
    day = day_of(today)
    judged = judge(
        archive, day, tuple(metric or DEFAULT_METRICS), excuse=excuse_of(ledger, day), renamed=names,
        scenario=scenario,
    )  # fmt: skip
    say_left_out(judged.archive.left_out)
    return judged


def _tell_why(judged: Judged, name: str) -> None:
    found = [one for one in judged.told if name.lower() in str(one.series.key).lower()]
    if not found:
        names = "; ".join(str(one.series.key) for one in judged.told[:3])
        raise MtpbenchError(f"no series is called {name!r}", f"A part of a name, such as of: {names}")
    for one in found:
        out.print(Text(str(one.series.key), style="bold"), soft_wrap=True)
        out.print(Text("\n".join(why(one, judged.events))), soft_wrap=True)


def _record(store: str, judged: Judged) -> None:
    new = new_events(judged.told, judged.events)
    append_events(store, new)
    out.file.flush()  # a log of both streams begins with what is wrong
    err.print(Text(f"events written down: {len(new)}"), soft_wrap=True)


@selftests.command(name="stats")
def check_statistics(
    repetitions: Annotated[int, typer.Option(help="Simulated A/A comparisons of each kind.")] = 600,
    seed: Annotated[int, typer.Option(help="Of the simulation.")] = 1,
    markdown: Annotated[bool, typer.Option("--markdown", help="As it stands in docs/statistics.md.")] = False,
) -> None:
    """Simulate launches with known effects: false positives, power, and pairs until they are found."""
    from harness.selftest.verdicts import everything, to_markdown, to_rich

    lines = everything(repetitions, seed)
    if markdown:
        sys.stdout.write(to_markdown(lines))
    else:
        out.print(to_rich(lines))
    if any(line.verdict == "MISSED" for line in lines):
        raise typer.Exit(1)


def renaming(text: str) -> tuple[str, str]:
    """`old=new`, or `scenario@old=new` for an arm → both names. Raises MtpbenchError."""
    old, equals, new = text.partition("=")
    if not (old and equals and new) or old.startswith("@") or old.endswith("@") or "@" in new:
        hint = "old-name=new-name, or scenario@old-arm=new-arm"
        raise MtpbenchError(f"--renamed {text!r}: OLD=NEW is needed", f"--renamed {hint}")
    return old, new
