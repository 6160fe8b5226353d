"""`mtpbench compare`: the verdict of what is stored."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from harness.cli.common import check_format, show
from harness.cli.comparing import (
    EXIT_HELP,
    RENDERERS,
    THEMES,
    Allow,
    Format,
    LedgerFile,
    Metrics,
    PictureUrl,
    Store,
    WhyFile,
    check_metrics,
    excuse_of,
    here,
    is_ab,
    show_verdict,
)
from harness.cli.group import verbs_of_a_file
from harness.cli.store import local
from harness.errors import MtpbenchError
from harness.importers import compare as import_compare
from harness.store.ab_record import load_session, sides
from harness.store.runs import AB_FILE, load_run
from harness.verdict.aa_floor import floors as stored_floors
from harness.verdict.accepted import FILE
from harness.verdict.compare import Comparison
from harness.verdict.compare import compare as compare_sides
from harness.verdict.pairs import AB_METRICS, one_label, runs_of
from harness.verdict.pr_comment import Pictures, to_comment

verbs = verbs_of_a_file()


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
    named = named_runs(runs)
    imported = None if named.ab else import_compare.imported_sides(named.base, named.head)
    if imported is not None:
        result = import_compare.compare_imported(*imported, tuple(metric or ()), tuple(allow or ()))
        show(result, output, import_compare.to_rich, import_compare.RENDERERS)
        raise typer.Exit(result.exit_code)
    comparison = stored_comparison(named, metric, allow, store, ledger)
    if output == "markdown":
        pictures = Pictures(*(f"{picture_url}-{theme}.png" for theme in THEMES)) if picture_url else None
        sys.stdout.write(to_comment(comparison, why_of(why), pictures))
        raise typer.Exit(comparison.exit_code)
    show_verdict(comparison, output)


@dataclass(frozen=True)
class NamedRuns:
    """The runs that the command line names, behind a URL or not, each as a folder here."""

    ab: Path | None
    """An A/B run, which holds both sides; without one, they are these:"""

    base: list[str]
    head: list[str]
    names: tuple[str, str]
    """What a person typed for each side."""


def named_runs(runs: Sequence[str]) -> NamedRuns:
    """Fetches what is behind a URL. Raises MtpbenchError where words do not name two sides."""
    if len(runs) == 1:
        one = Path(here(runs[0]))
        if (one / AB_FILE).is_file():
            return NamedRuns(one, [], [], ("", ""))
    base, head = _split(runs)
    names = " ".join(base) or "nothing", " ".join(head)
    return NamedRuns(None, [here(run) for run in base], [here(run) for run in head], names)


def stored_comparison(
    named: NamedRuns, metric: Sequence[str] | None, allow: Sequence[str] | None, store: str, ledger: Path
) -> Comparison:
    """What stored runs say."""
    if named.ab is not None:
        session = load_session(named.ab)
        base, head = sides(load_run(named.ab), session)
        allowed, plan, metrics = (*session.allowed, *(allow or ())), session.plan, tuple(metric or session.metrics)
    else:
        base, head = one_label(runs_of(named.base, named.names[0]), runs_of(named.head, named.names[1]))
        allowed, plan, metrics = tuple(allow or ()), None, tuple(metric or AB_METRICS)
    check_metrics(metrics)
    known = stored_floors(local(store, is_ab), str(head.runs[0].environment.get("host")), head.scenario.name)
    return compare_sides(
        base, head, metrics=metrics, plan=plan, allowed=allowed, floors=known, excuse=excuse_of(ledger)
    )


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
