"""`mtpbench ci answer`: a pull request is told at once what becomes of its `/ab`. Wiring only."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from harness.cli.common import err
from harness.cli.group import verbs_of_a_file
from harness.cli.plan import cost_of
from harness.errors import MtpbenchError
from harness.nightly.blocks import CostOf
from harness.scenario import yaml_file
from harness.scenario.format import Scenario
from harness.stats.decision import FIRST_LOOK, PAIRS
from harness.units import parse_duration
from harness.verdict.github import BOT, GitHub
from harness.verdict.pr_comment import Stage, marker, to_answer

_NOBODY = "refused"  # in a marker's place of the scenario where none was named that is one
_SAID = {
    Stage.FAILED: "Nothing was compared. The job's log says which step failed.",
    Stage.CANCELLED: "Nothing was compared. Comment again to measure.",
}


verbs = verbs_of_a_file()


@verbs.command()
def answer(
    stage: Annotated[Stage, typer.Argument(help="How far it is.")],
    scenario: Annotated[Path | None, typer.Option(metavar="FILE", help="Which is, or was to be, measured.")] = None,
    base: Annotated[str, typer.Option(metavar="SHA")] = "",
    head: Annotated[str, typer.Option(metavar="SHA")] = "",
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why not.")] = "",
    pull_request: Annotated[int, typer.Option("--pr", metavar="NUMBER", help="Comment on this pull request.")] = 0,
    repository: Annotated[str, typer.Option("--repo", metavar="OWNER/NAME", help="Default: $GITHUB_REPOSITORY.")] = "",
    author: Annotated[str, typer.Option(help="Whose earlier comment is updated.")] = BOT,
    details_url: Annotated[str, typer.Option(metavar="URL", help="The job's page.")] = "",
    limit: Annotated[str, typer.Option(help="What the job may measure for: what takes longer is said to.")] = "230min",
    store: Annotated[str, typer.Option(help="Whose launches say how long each takes: a folder or a URL.")] = "runs",
) -> None:
    """Answer an `/ab` before its verdict: measuring, and for how long; refused; failed; cancelled. Prints the comment.

    It is the comment that `mtpbench ci comment` will replace. Without --pr nothing is sent. The token is GITHUB_TOKEN.
    """
    loaded = yaml_file.load(scenario) if scenario else None
    if stage is Stage.MEASURING and (loaded is None or scenario is None):
        raise MtpbenchError("which scenario is measured?", "--scenario FILE")
    sentence = reason or _SAID.get(stage, "")
    if stage is Stage.MEASURING and loaded is not None and scenario is not None:
        cost = cost_of(store, scenario.parent / "hardware", parse_duration("30min"))
        sentence = f"{head[:12]} against {base[:12]}, {loaded.name}: {_minutes(loaded, cost, parse_duration(limit))}"
    name = loaded.name if loaded else _NOBODY
    text = to_answer(stage, name, sentence, details_url)
    if pull_request:
        with GitHub.from_environment(repository) as github:
            posted = github.comment(pull_request, marker(name), text, author)
        err.print(
            Text(f"comment {'updated' if posted.updated else 'written'}: {posted.url or posted.id}"), soft_wrap=True
        )
    sys.stdout.write(text)


def _minutes(scenario: Scenario, cost: CostOf, limit: float) -> str:
    """From the first look on an A/B may end; it does after its last pair."""
    pair = 2 * sum(cost(scenario, arm, tp).seconds for arm in scenario.arms for tp in scenario.tp)
    first, last = (max(1, round(pairs * pair / 60)) for pairs in (FIRST_LOOK, PAIRS))
    text = f"about {first} minutes once the node is free, or up to {last} if it stays undecided."
    if 60 * first > limit:
        text += f" The job ends after {limit / 60:.0f}: name a scenario with fewer arms or loads."
    return text
