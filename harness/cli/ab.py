"""`mtpbench ab` and `mtpbench aa`: two sides are launched in turn, and compared."""

from __future__ import annotations

import contextlib
import functools
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from harness.ab import looks as orchestration
from harness.ab.checkout import HERE, REF_HELP, Origin, checked, places, resolve
from harness.cli.common import EXIT_INVALID, Gpus, Image, ScenarioPath, check_format, err, gpu_ids, out, print_error
from harness.cli.comparing import (
    EXIT_HELP,
    RENDERERS,
    Format,
    LedgerFile,
    Metrics,
    Store,
    check_metrics,
    excuse_of,
    is_ab,
    show_verdict,
)
from harness.cli.group import verbs_of_a_file
from harness.cli.measuring import Asked, Measuring, begin, go_on
from harness.cli.overrides import from_image
from harness.cli.store import local
from harness.errors import MtpbenchError, ServerError
from harness.run.launcher import Place
from harness.run.progress import TerminalUi
from harness.scenario import yaml_file
from harness.scenario.format import Scenario
from harness.stats.decision import FIRST_LOOK, PAIRS
from harness.store.ab_record import Session, load_session
from harness.store.rows import parquet
from harness.store.runs import RunStore, load_run
from harness.verdict.aa_floor import Floors
from harness.verdict.aa_floor import floors as stored_floors
from harness.verdict.accepted import FILE
from harness.verdict.compare import Comparison, Excuse, Row, power_sentence
from harness.verdict.pairs import AB_METRICS

Arms = Annotated[
    list[str] | None, typer.Option("--arm", help="Only this arm of the scenario; may be repeated. Default: all.")
]
Resume = Annotated[
    Path | None, typer.Option(metavar="RUN", help="Go on with an interrupted one: the folder it printed.")
]

verbs = verbs_of_a_file()


@verbs.command(epilog=EXIT_HELP)
def ab(
    scenario: ScenarioPath = None,
    base: Annotated[str, typer.Option(metavar="REF", help=f"What to compare with: {REF_HELP}.")] = "",
    head: Annotated[str, typer.Option(metavar="REF", help="What may have got slower; likewise.")] = HERE,
    pairs: Annotated[int, typer.Option(help="The most pairs of launches to measure.")] = PAIRS,
    first: Annotated[int, typer.Option(help="Pairs before the first look.")] = FIRST_LOOK,
    arm: Arms = None,
    metric: Metrics = None,
    store: Store = "runs",
    resume: Resume = None,
    gpus: Gpus = "",
    image: Image = "",
    ledger: LedgerFile = Path(FILE),
    output: Format = "table",
) -> None:
    """Did it get slower? Launch both sides in turn until it is sure, or the pairs are spent.

    Both sides get the same prompts from the same harness; only the servers differ. Decided by a rule with a known
    error rate: docs/statistics.md.
    """
    if (scenario is None) == (resume is None) or (scenario is not None and not base):
        raise MtpbenchError(
            "give a scenario and --base, or --resume RUN", "mtpbench ab scenarios/quickstart.yaml --base main"
        )
    asked = Asked("ab", scenario, resume, store, gpu_ids(gpus), image)
    _measure(asked, _Pairing(base, head, pairs, first, arm or (), metric or ()), output, excuse_of(ledger))


@verbs.command(epilog=EXIT_HELP)
def aa(
    scenario: ScenarioPath = None,
    pairs: Annotated[int, typer.Option(help="Pairs of launches to measure.")] = 6,
    arm: Arms = None,
    metric: Metrics = None,
    store: Store = "runs",
    resume: Resume = None,
    gpus: Gpus = "",
    image: Image = "",
    output: Format = "table",
) -> None:
    """What do equal servers differ by here? Measures the floor that `ab` and `compare` show beside each change."""
    if (scenario is None) == (resume is None):
        raise MtpbenchError("give a scenario or --resume RUN", "mtpbench aa scenarios/quickstart.yaml")
    asked = Asked("aa", scenario, resume, store, gpu_ids(gpus), image)
    _measure(asked, _Pairing(HERE, HERE, pairs, pairs, arm or (), metric or ()), output, None)


@dataclass(frozen=True)
class _Pairing:
    """What `ab` and `aa` are asked besides: which sides, how many pairs, of which arms and metrics."""

    base: str
    head: str
    pairs: int
    first: int
    arms: Sequence[str]
    metrics: Sequence[str]


def _measure(asked: Asked, pairing: _Pairing, output: str, excuse: Excuse | None) -> None:
    """A new A/B or A/A, or the rest of one."""
    check_format(output, RENDERERS)
    check_metrics(pairing.metrics)
    if asked.resume is not None:
        session = load_session(asked.resume)
        with go_on(replace(asked, verb=session.kind)) as run:
            origins = {orchestration.BASE: _again(session.base.ref, session.base.commit, run.scenario),
                       orchestration.HEAD: _again(session.head.ref, session.head.commit, run.scenario)}  # fmt: skip
            _in_turn(run, session, origins, output, excuse)
        return
    assert asked.file is not None, "checked by the verbs"
    loaded = from_image(yaml_file.load(asked.file), asked.image)
    base, head = resolve(pairing.base, loaded), resolve(pairing.head, loaded)
    session = orchestration.session_of(
        loaded,
        base,
        head,
        kind=asked.verb,
        pairs=pairing.pairs,
        first=pairing.first,
        metrics=pairing.metrics or AB_METRICS,
        only=pairing.arms,
    )
    with begin(asked, orchestration.scenario_of(loaded, base, head, session)) as run:
        orchestration.save(run.path, session)
        _in_turn(run, session, {orchestration.BASE: base, orchestration.HEAD: head}, output, excuse)


def _in_turn(run: Measuring, session: Session, origins: dict[str, Origin], output: str, excuse: Excuse | None) -> None:
    """Launches both sides in turn until it is sure, and tells the verdict."""
    console = out if output == "table" else err  # standard output is for the result alone
    console.print(Text(f"results: {run.path}"), soft_wrap=True)
    before = local(run.asked.store, is_ab) if run.follower else run.path.parent
    known = stored_floors(before, str(run.environment.get("host")), run.scenario.name)
    _tell_plan(session, known, run.scenario)
    with run.resumable():
        session, failures = _launched(run, session, origins, console)
        comparison = _verdict(run.store, session, known, failures, excuse)
        delivered = run.deliver()
    show_verdict(comparison, output)
    if not delivered:
        raise typer.Exit(EXIT_INVALID)


def _launched(
    run: Measuring, session: Session, origins: dict[str, Origin], console: Console
) -> tuple[Session, list[ServerError]]:
    """All pairs that are needed, each side from its own checkout; what the checkouts held, and which servers failed."""
    with contextlib.ExitStack() as stack:
        where = stack.enter_context(places(origins))
        parties = {
            name: checked(getattr(session, name), place, sys.executable)
            for name, place in where.items()
            if origins[name].party.kind in ("git", "tree")
        }
        session = orchestration.checked_out(session, parties)
        orchestration.save(run.path, session)
        ui = stack.enter_context(TerminalUi(console))
        looks = orchestration.Looks(run.path, session, functools.partial(_tell_look, ui))
        outcome = run.drive(ui, places=_by_arm(session, where), enough=looks.enough)
    return session, [error for _, error in outcome.failures]


def _again(ref: str, commit: str, scenario: Scenario) -> Origin:
    """A side of an interrupted A/B: its git ref may have moved, its commit has not. Its arms' settings are stored."""
    if ref.startswith(("arm:", "image:")):
        return Origin(replace(resolve(HERE, scenario).party, ref=ref, kind=ref.partition(":")[0]))
    if ref.startswith("env:") or ref == HERE:
        return resolve(ref, scenario)
    origin = resolve(commit, scenario)
    return replace(origin, party=replace(origin.party, ref=ref))


def _by_arm(session: Session, where: dict[str, Place]) -> dict[str, Place]:
    """The place of every arm of the run."""
    named = [(orchestration.BASE, pair[0]) for pair in session.arms.values()]
    named += [(orchestration.HEAD, pair[1]) for pair in session.arms.values()]
    return {arm: where[side] for side, arm in named if side in where}


def _tell_plan(session: Session, known: Floors, scenario: Scenario) -> None:
    what = f"{session.head.label} against {session.base.label}: {orchestration.plan_text(session)}"
    err.print(Text(what), soft_wrap=True)
    rows = len(session.metrics) * len(session.arms) * len(scenario.tp) * len(scenario.levels())
    power = power_sentence(known, rows, session.plan)
    if session.kind == "ab":
        missing = "no A/A launches of this scenario on this host: `mtpbench aa SCENARIO` says what it can find"
        err.print(Text(power or missing, style="dim"), soft_wrap=True)


def _tell_look(ui: TerminalUi, comparison: Comparison) -> None:
    """The interval so far of the primary endpoint, or of the row that moved most."""
    rows = [row for row in comparison.rows if row.interval is not None]
    if not rows:
        return

    def place(row: Row) -> tuple[bool, float]:
        return row.primary, row.decision.mean if math.isfinite(row.decision.mean) else -math.inf

    row = max(rows, key=place)
    assert row.interval is not None
    assert row.change is not None
    low, high = (100 * end for end in row.interval)
    ui.say(
        f"after {comparison.pairs} pairs: {row.key} {100 * row.change:+.1f} % ({low:+.1f} to {high:+.1f} %); "
        f"{comparison.verdict.value} so far",
        "bold cyan",
    )


def _verdict(
    store: RunStore, session: Session, known: Floors, failures: list[ServerError], excuse: Excuse | None
) -> Comparison:
    """The verdict, and everything derived. Raw results are safe by now."""
    stored = load_run(store.path)
    complete = {one.record.key.launch for one in stored.passes}
    if not stored.failed and complete:
        session = replace(session, finished_pairs=max(complete) + 1)
        orchestration.save(store.path, session)
        stored = load_run(store.path)
    store.write_rows(parquet(stored))
    for error in failures:
        print_error(err, error, error.hint, error.log_path, ())
    if session.kind == "aa":
        known = stored_floors(store.path.parent, str(stored.environment.get("host")), stored.scenario.name)
    comparison = orchestration.evaluate(store.path, session, floors=known, excuse=excuse)
    orchestration.save(store.path, replace(session, verdict=comparison.verdict.value))
    if session.kind == "aa":
        rows = len(comparison.rows)
        for pairs in (6, 10):
            plan = replace(session, kind="ab", pairs=pairs, first_look=FIRST_LOOK).plan
            comparison = replace(comparison, notes=(*comparison.notes, power_sentence(known, rows, plan)))
    if failures:
        err.print(Text(f"next: mtpbench {session.kind} --resume {store.path}"), soft_wrap=True)
    return comparison
