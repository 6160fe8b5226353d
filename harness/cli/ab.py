"""The verbs that answer "did it get slower?"."""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import date, datetime, timezone
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from harness.ab import looks as orchestration
from harness.ab.checkout import HERE, REF_HELP, Origin, checked, places, resolve
from harness.cli.common import (
    EXIT_INVALID,
    Gpus,
    Image,
    ScenarioPath,
    check_format,
    default_cache,
    err,
    gpu_ids,
    out,
    print_error,
    show,
)
from harness.cli.group import verbs_of_a_file
from harness.cli.measuring import check_same_environment, drive, resumable, tell_resume, with_prompts
from harness.cli.overrides import from_image
from harness.cli.store import STORE_HELP, deliver, follow, local, local_run, spool
from harness.errors import MtpbenchError, ServerError
from harness.importers import compare as import_compare
from harness.machine.fingerprint import fingerprint
from harness.machine.telemetry import open_source
from harness.run.experiment import Experiment
from harness.run.launcher import Options, Place
from harness.run.progress import TerminalUi
from harness.scenario import yaml_file
from harness.scenario.format import Scenario
from harness.stats.decision import FIRST_LOOK, PAIRS
from harness.store.ab_record import Session, Side, load_session, sides
from harness.store.imported_runs import ImportedRun
from harness.store.remote import is_url
from harness.store.rows import parquet
from harness.store.runs import AB_FILE, RunStore, load_run, with_secrets
from harness.verdict import report as verdict_report
from harness.verdict.aa_floor import Floors
from harness.verdict.aa_floor import floors as stored_floors
from harness.verdict.accepted import FILE
from harness.verdict.accepted import load as load_ledger
from harness.verdict.compare import EXIT_CODES, Comparison, Excuse, Row, power_sentence
from harness.verdict.compare import compare as compare_sides
from harness.verdict.pairs import DEFAULT_METRICS, Metric, one_label, runs_of
from harness.verdict.pr_comment import Pictures, to_comment

RENDERERS = {"markdown": to_comment, "json": verdict_report.to_json}
EXIT_HELP = "Exit codes: " + ", ".join(f"{code} {verdict.value}" for verdict, code in EXIT_CODES.items())
EXIT_HELP += ", 70 a bug of mtpbench, 130 interrupted. A wrong call or a server that fails also exits with 2."

Format = Annotated[str, typer.Option("--format", help="table, markdown or json.")]
Metrics = Annotated[
    list[str] | None,
    typer.Option("--metric", help=f"Compare this number; may be repeated. Default: {', '.join(DEFAULT_METRICS)}."),
]
Arms = Annotated[
    list[str] | None, typer.Option("--arm", help="Only this arm of the scenario; may be repeated. Default: all.")
]
Allow = Annotated[
    list[str] | None,
    typer.Option("--allow", help="A fact that is meant to differ, such as packages or server; may be repeated."),
]
Store = Annotated[str, typer.Option(help=f"{STORE_HELP} A/A runs in it give the floor.")]
LedgerFile = Annotated[Path, typer.Option(help="Accepted slowdowns.")]
WhyFile = Annotated[
    Path | None,
    typer.Option("--why", metavar="FILE", help="With markdown: the cause, of `mtpbench explain --format json`."),
]
PictureUrl = Annotated[
    str,
    typer.Option(metavar="URL", help="With markdown: where `mtpbench ci comment` put URL-light.png and URL-dark.png."),
]
THEMES = ("light", "dark")
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
    _measure(
        scenario, resume, "ab", base, head, pairs, first, arm, metric, store, gpus, image, output, excuse_of(ledger)
    )


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
    _measure(scenario, resume, "aa", HERE, HERE, pairs, pairs, arm, metric, store, gpus, image, output, None)


@verbs.command(epilog=EXIT_HELP)
def compare(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN...", help="BASE HEAD, or BASE... vs HEAD...; RUN@ARM for one arm."),
    ],
    metric: Metrics = None,
    allow: Allow = None,
    store: Store = "runs",
    ledger: LedgerFile = Path(FILE),
    why: WhyFile = None,
    picture_url: PictureUrl = "",
    output: Format = "table",
) -> None:
    """The same for what is stored: two runs, several on each side of the word vs, or one A/B run.

    Imported results of one tool are compared with each other, under that tool's names (--metric p99_tpot_ms).
    """
    check_format(output, RENDERERS)
    imported = _imported(runs)
    if imported is not None:
        result = import_compare.compare_imported(*imported, tuple(metric or ()), tuple(allow or ()))
        show(result, output, import_compare.to_rich, import_compare.RENDERERS)
        raise typer.Exit(result.exit_code)
    comparison = stored_comparison(runs, metric, allow, store, ledger)
    if output == "markdown":
        pictures = Pictures(*(f"{picture_url}-{theme}.png" for theme in THEMES)) if picture_url else None
        sys.stdout.write(to_comment(comparison, why_of(why), pictures))
        raise typer.Exit(comparison.exit_code)
    _show(comparison, output)


def stored_comparison(
    runs: Sequence[str], metric: Sequence[str] | None, allow: Sequence[str] | None, store: str, ledger: Path
) -> Comparison:
    """What stored runs say, read from folders or URLs."""
    one = Path(here(runs[0]))
    session = load_session(one) if len(runs) == 1 and (one / AB_FILE).is_file() else None
    if session is not None:
        base, head = sides(load_run(one), session)
        allowed, plan, metrics = (*session.allowed, *(allow or ())), session.plan, tuple(metric or session.metrics)
    else:
        base, head = _sides_of(*_split(runs))
        allowed, plan, metrics = tuple(allow or ()), None, tuple(metric or DEFAULT_METRICS)
    check_metrics(metrics)
    known = stored_floors(local(store, is_ab), str(head.runs[0].environment.get("host")), head.scenario.name)
    return compare_sides(
        base, head, metrics=metrics, plan=plan, allowed=allowed, floors=known, excuse=excuse_of(ledger)
    )


def _imported(runs: Sequence[str]) -> tuple[list[ImportedRun], list[ImportedRun]] | None:
    """Both sides, where they are imported results."""
    if len(runs) == 1 and (Path(here(runs[0])) / AB_FILE).is_file():
        return None
    base, head = _split(runs)
    return import_compare.imported_sides([here(run) for run in base], [here(run) for run in head])


def why_of(file: Path | None) -> str:
    """A sentence on the cause: a text, or what `mtpbench explain --format json` printed."""
    if file is None:
        return ""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise MtpbenchError(f"{file} can't be read: {error}", "mtpbench explain RUN --format json > FILE") from error
    try:
        value = json.loads(text)
    except ValueError:
        return text.strip()
    return str(value.get("sentence", "")) if isinstance(value, dict) else ""


def check_metrics(names: Sequence[str]) -> None:
    """Raises MtpbenchError for a name that is no metric's, with those that are."""
    for name in names:
        Metric.of(name)


def is_ab(_run: str, files: frozenset[str]) -> bool:
    """Of a store behind a URL, all that floors need."""
    return AB_FILE in files


def here(run: str) -> str:
    """A run of the command line, fetched if it is a URL; what follows an @ in its name is an arm."""
    if not is_url(run):
        return run
    path, at, arm = run.rpartition("@") if "@" in run.rpartition("/")[2] else (run, "", "")
    return f"{local_run(path)}{at}{arm}"


def day_of(text: str) -> date:
    """A day as a person writes it; today, in UTC, when empty."""
    try:
        return date.fromisoformat(text) if text else datetime.now(timezone.utc).date()
    except ValueError as error:
        raise MtpbenchError(f"--today {text!r} is no day", "Write it as 2026-11-30.") from error


def excuse_of(file: Path, today: date | None = None) -> Excuse:
    """Looks rows up in the ledger, and says which of its entries have lapsed."""
    day = today or day_of("")
    known = load_ledger(file)
    for entry in known.lapsed(day):
        what = f"{file}: {entry.scenario} {entry.metric} ({entry.owner}) expired on {entry.expires}"
        err.print(Text(f"note: {what}: remove or renew it", style="yellow"), soft_wrap=True)
    return functools.partial(known.excuse, today=day)


def _measure(
    file: Path | None,
    resume: Path | None,
    kind: str,
    base: str,
    head: str,
    pairs: int,
    first: int,
    arm: list[str] | None,
    metric: list[str] | None,
    store: str,
    gpus: str,
    image: str,
    output: str,
    excuse: Excuse | None,
) -> None:
    """A new A/B or A/A, or the rest of one."""
    check_format(output, RENDERERS)
    check_metrics(metric or ())
    root, remote = spool(store)
    source = open_source()
    environment = fingerprint(source)
    if resume is not None:
        session, stored = load_session(resume), load_run(resume)
        scenario = with_secrets(stored.scenario, os.environ).model_copy(update={"launches": session.pairs})
        check_same_environment(stored, with_prompts(environment, scenario))
        origins = {orchestration.BASE: _again(session.base.ref, session.base.commit, scenario),
                   orchestration.HEAD: _again(session.head.ref, session.head.commit, scenario)}  # fmt: skip
        opened, root = RunStore.resume(resume), resume.parent
    else:
        assert file is not None, "checked by the verbs"
        loaded = from_image(yaml_file.load(file), image)
        origins = {orchestration.BASE: resolve(base, loaded), orchestration.HEAD: resolve(head, loaded)}
        first_origin, second_origin = origins.values()
        session = orchestration.session_of(
            loaded,
            first_origin,
            second_origin,
            kind=kind,
            pairs=pairs,
            first=first,
            metrics=metric or DEFAULT_METRICS,
            only=arm or (),
        )
        scenario = orchestration.scenario_of(loaded, first_origin, second_origin, session)
        text = file.read_text(encoding="utf-8")
        opened = RunStore.create(root, scenario, text, with_prompts(environment, scenario))
        orchestration.save(opened.path, session)
    console = out if output == "table" else err  # standard output is for the result alone
    console.print(Text(f"results: {opened.path}"), soft_wrap=True)
    follower = follow(opened, remote)
    known = stored_floors(local(store, is_ab) if remote else root, str(environment.get("host")), scenario.name)
    _tell_plan(session, known, scenario)
    try:
        with resumable(session.kind, opened.path), contextlib.ExitStack() as stack:
            where = stack.enter_context(places(origins))
            parties = {
                name: checked(getattr(session, name), place, sys.executable)
                for name, place in where.items()
                if origins[name].party.kind in ("git", "tree")
            }
            session = orchestration.checked_out(session, parties)
            orchestration.save(opened.path, session)
            ui = stack.enter_context(TerminalUi(console))
            options = Options(default_cache(), gpu_ids(gpus), places=_by_arm(session, where))
            experiment = Experiment(scenario, opened, options, source, ui)
            looks = orchestration.Looks(opened.path, session, functools.partial(_tell_look, ui))
            outcome = drive(
                lambda: experiment.run(looks.enough),
                experiment.launcher,
                lambda: tell_resume(session.kind, opened.path),
            )
        with resumable(session.kind, opened.path):
            comparison = _finish(opened, session, known, [error for _, error in outcome.failures], excuse)
            delivered = deliver(opened.path, follower)
        _show(comparison, output)
        if not delivered:
            raise typer.Exit(EXIT_INVALID)
    finally:
        opened.close()


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


def _finish(
    store: RunStore,
    session: Session,
    known: Floors,
    failures: list[ServerError],
    excuse: Excuse | None,
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


def _show(comparison: Comparison, output: str) -> None:
    """Prints a comparison and ends with its exit code."""
    show(comparison, output, verdict_report.to_rich, RENDERERS)
    if comparison.exit_code:
        raise typer.Exit(comparison.exit_code)


def _split(runs: Sequence[str]) -> tuple[list[str], list[str]]:
    """`BASE HEAD`, or `BASE… vs HEAD…`."""
    words = list(runs)
    if words.count("vs") == 1:
        cut = words.index("vs")
        base, head = words[:cut], words[cut + 1 :]
    elif "vs" not in words and len(words) == 2:
        base, head = words[:1], words[1:]
    else:
        raise MtpbenchError(
            "name two runs, or several on each side of the word vs", "mtpbench compare runs/A runs/B vs runs/C runs/D"
        )
    if not head:
        raise MtpbenchError("no runs after vs", "mtpbench compare runs/A vs runs/B")
    return base, head


def _sides_of(base: Sequence[str], head: Sequence[str]) -> tuple[Side, Side]:
    return one_label(
        runs_of([here(run) for run in base], " ".join(base) or "nothing"),
        runs_of([here(run) for run in head], " ".join(head)),
    )
