"""The verbs around a night as a whole: `mtpbench ci begin` and `mtpbench ci night`."""

from __future__ import annotations

import html
import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from harness.cli.common import err, out, print_error
from harness.cli.group import verbs_of_a_file
from harness.cli.overrides import only_arms
from harness.cli.plan import read_plan
from harness.cli.store import local, put
from harness.engines.command import JOB
from harness.errors import MtpbenchError, Problem, ScenarioError
from harness.machine.fingerprint import host_name
from harness.nightly import night as nights
from harness.scenario import yaml_file
from harness.store.archive import Archive, read_archive
from harness.store.runs import write_atomically
from harness.text import inert
from harness.verdict.compare import EXIT_CODES

verbs = verbs_of_a_file()


@verbs.command(name="begin")
def begin_night(
    store: Annotated[str, typer.Argument(metavar="STORE", help="A folder, or a store's URL.")],
    scenarios: Annotated[
        list[Path] | None, typer.Argument(metavar="SCENARIO...", help="What this night is to measure.")
    ] = None,
    plan: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Instead: all jobs of a plan, of `ci plan --output`, on any host."),
    ] = None,
    job: Annotated[str, typer.Option(help="Names the night among those of its day. Default: $MTPBENCH_JOB.")] = "",
    every: Annotated[int, typer.Option(min=1, metavar="DAYS", help="How often this job runs: 7 for once a week.")] = 1,
) -> None:
    """A night begins: note in the store what it is to measure, so that whatever is missing in the end is missed.

    Prints the file that holds it; `mtpbench ci night` ends it.
    """
    if bool(scenarios) == bool(plan):
        raise MtpbenchError("give either scenarios or --plan FILE", "mtpbench ci begin STORE --plan plan.json")
    name = job or os.environ.get(JOB, "") or "night"
    made = read_plan(plan) if plan else None
    wanted = (
        [(Path(block.file), block.arms) for block in made.blocks] if made else [(path, ()) for path in scenarios or ()]
    )
    good, wrong = [], list[Problem]()
    for path, arms in wanted:
        try:
            good.append(only_arms(yaml_file.load(path), arms))
        except ScenarioError as error:
            wrong += error.problems
    whose = (nights.ANY, every, made.created_at) if made else (host_name(), every)
    night = nights.begin(good, name, *whose)
    put(store, night.file, night.to_bytes())
    out.print(Text(f"{store}/{night.file}: {len(night.expected)} rows are expected of {night.host}"), soft_wrap=True)
    if wrong:
        raise ScenarioError(wrong)


@verbs.command(name="night")
def end_night(
    store: Annotated[str, typer.Argument(metavar="STORE", help="A folder, or a store's URL.")],
    steps: Annotated[
        Path, typer.Option(metavar="FILE", help="How the steps ended: a line for each, its name and its exit code.")
    ],
    job: Annotated[str, typer.Option(help="As given to `ci begin`. Default: $MTPBENCH_JOB.")] = "",
    site: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="If its pages could not be written, say so in its index.html.")
    ] = None,
) -> None:
    """How the night went: steps that failed, and rows that were expected and are not there. Prints Markdown.

    Exit codes: that of the worst: 2 where a step failed, 6 where a row is missing, else that of the step `trend`.
    """
    ended = nights.read_steps(steps)
    name = nights.job_name(job or os.environ.get(JOB, "") or "night")
    try:
        root = local(store)
        begun = [night for night in nights.read_nights(root)[0] if night.job == name]
        night = nights.with_steps(begun[-1], ended) if begun else nights.unknown(name, host_name(), ended)
        found = nights.troubles(night, read_archive(root))
        put(store, night.file, night.to_bytes())
    except MtpbenchError as error:  # the steps are known all the same
        print_error(err, error, error.hint, None, ())
        night = nights.unknown(name, host_name(), ended)
        found = nights.troubles(night, Archive(Path(store), ()))
    word, _ = nights.word_of(found, night.steps)
    text = nights.summary(night, found)
    sys.stdout.write(text)
    if site is not None and ended.get("publish"):
        _page_of_failure(site, text)
    raise typer.Exit(EXIT_CODES[word])


def _page_of_failure(site: Path, text: str) -> None:
    """In place of a first page that could not be made: else yesterday's, which is green, would stay."""
    page = (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>INVALID – mtpbench</title>'
        '<body style="font: 1rem sans-serif; margin: 2rem; border-top: 1rem solid #b00020"><h1>INVALID: the pages of '
        f"this night could not be made</h1><pre>{html.escape(inert(text))}</pre></body></html>"
    )
    try:
        site.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MtpbenchError(f"can't write {site}: {error.strerror}", "Choose another --site.") from error
    write_atomically(site / "index.html", page.encode())
