"""`mtpbench explain`: why did TPOT change?"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from harness.cli.common import check_format, default_cache, err, out, show
from harness.cli.comparing import Allow, Store, here, is_ab
from harness.cli.group import verbs_of_a_file
from harness.cli.store import local
from harness.errors import MissingPackageError, MtpbenchError
from harness.explain import report as explain_report
from harness.explain.answer import Explanation, explain
from harness.explain.change import Subject
from harness.model import LoadLevel
from harness.store.ab_record import Side, load_session, sides
from harness.store.runs import AB_FILE, load_run, write_atomically
from harness.verdict.aa_floor import floors as stored_floors
from harness.verdict.pairs import one_label, runs_of

_EXAMPLE = "mtpbench explain runs/RUN --base-arm mtp-generic --head-arm mtp-in-tree --level 16"


verbs = verbs_of_a_file()
selftests = verbs_of_a_file()


@verbs.command(name="explain")
def explain_command(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN...", help="One run, or BASE HEAD, or BASE... vs HEAD...; RUN@ARM for an arm."),
    ],
    base_arm: Annotated[str, typer.Option(metavar="ARM", help="Base's arm. Default: the only one.")] = "",
    head_arm: Annotated[str, typer.Option(metavar="ARM", help="Head's arm. Default: the only one, or the same.")] = "",
    level: Annotated[
        list[float] | None,
        typer.Option(help="Concurrency or rate. Twice: base's, then head's. Default: the primary endpoint's."),
    ] = None,
    factor: Annotated[
        list[str] | None,
        typer.Option(help="Factor of the scenario, `none` for its own levels. Twice: base's, then head's."),
    ] = None,
    input_tokens: Annotated[
        int, typer.Option(help="Prompt length, where several are swept. Default: the longest.")
    ] = 0,
    tp: Annotated[int, typer.Option(help="Tensor-parallel size. Default: the first.")] = 0,
    allow: Allow = None,
    store: Store = "runs",
    output: Annotated[str, typer.Option("--format", help="table, markdown, json or html.")] = "table",
    file: Annotated[
        Path | None, typer.Option("--output", metavar="FILE", help="Where the page goes, for html.")
    ] = None,
) -> None:
    """Why did TPOT change? The account of each side, what of it changed, and which hypotheses that bears out.

    Between two runs, two arms of one run, the sides of an A/B run, or two levels of one arm (--level 8 --level 16).
    """
    check_format(output, explain_report.RENDERERS, "html")
    base, head = subjects([here(run) for run in runs], base_arm, head_arm, level or [], factor or [], input_tokens, tp)
    known = stored_floors(local(store, is_ab), str(head.side.runs[0].environment.get("host")), head.side.scenario.name)
    explanation = explain(base, head, floors=known, allowed=tuple(allow or ()))
    if output == "html":
        _write_page(explanation, file or Path("explain.html"))
    else:
        show(explanation, output, explain_report.to_rich, explain_report.RENDERERS)


@selftests.command(name="explain")
def check_explain(
    repetitions: Annotated[int, typer.Option(help="Configurations of each cause.")] = 30,
    quiet: Annotated[int, typer.Option(help="Configurations in which nothing but noise differs.")] = 100,
    cause: Annotated[list[str] | None, typer.Option(help="Only this cause; may be repeated.")] = None,
    seed: Annotated[int, typer.Option(help="Of the configurations.")] = 1,
    machines: Annotated[Path, typer.Option(help="Folder with machine files.")] = Path("scenarios/hardware"),
    other_texts: Annotated[
        bool, typer.Option("--other-texts", help="Launches answer the same prompts with other texts: much harder.")
    ] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="As it stands in docs/c16.md.")] = False,
) -> None:
    """Put causes into simulated servers, and count how often `explain` names them. A hundred take about ten minutes."""
    from harness.selftest import causes as explain_check
    from harness.simulator.hardware import load_hardware

    files = sorted(machines.glob("*.yaml"))
    if not files:
        raise MtpbenchError(f"no machine files in {machines}", "Run it in a checkout, or name the folder: --machines.")
    unknown = [name for name in cause or [] if name not in explain_check.CAUSES]
    if unknown:
        raise MtpbenchError(f"{unknown[0]!r} is no cause", f"One of: {', '.join(explain_check.CAUSES)}.")
    chosen = {
        name: quiet if name == explain_check.NOISE else repetitions
        for name in explain_check.CAUSES
        if not cause or name in cause
    }

    def tell(one: explain_check.Trial) -> None:
        style = None if one.right else "bold red"
        err.print(Text(f"{one.configuration} → {one.named or 'not told'}", style=style or ""), soft_wrap=True)

    done = explain_check.trials([load_hardware(file) for file in files], chosen, seed, tell, other_texts)
    if markdown:
        sys.stdout.write(explain_check.to_markdown(done))
    else:
        out.print(explain_check.to_rich(done))
    if not all(line.met for line in explain_check.lines(done)):
        raise typer.Exit(1)


def _write_page(explanation: Explanation, file: Path) -> None:
    try:
        from dashboards.explain_page import render
    except ImportError as error:
        raise MissingPackageError(str(error.name), "The page", "") from error
    write_atomically(file, render(explanation, default_cache()).encode())
    out.print(Text(str(file)), soft_wrap=True)


def subjects(
    runs: Sequence[str],
    base_arm: str = "",
    head_arm: str = "",
    levels: Sequence[float] = (),
    factors: Sequence[str] = (),
    input_tokens: int = 0,
    tp: int = 0,
) -> tuple[Subject, Subject]:
    """What the command line names. Raises MtpbenchError where it names nothing, or more than one thing."""
    for option, values in (("--level", levels), ("--factor", factors)):
        if len(values) > 2:
            raise MtpbenchError(f"{option} stands there {len(values)} times", "Once, or twice: base's, then head's.")
    base, head = _sides(runs)
    ours, theirs = _labels(base, head, base_arm, head_arm)
    size = tp or base.scenario.tp[0]
    found = []
    for side, label, position in ((base, ours, 0), (head, theirs, -1)):
        if size not in side.scenario.tp:
            raise MtpbenchError(f"{side.name} has no TP{size}", f"It has: {', '.join(map(str, side.scenario.tp))}.")
        wanted = (levels[position] if levels else None, factors[position] if factors else "none")
        found.append(Subject(side, label, size, level_of(side, *wanted, input_tokens)))
    return found[0], found[1]


def _sides(runs: Sequence[str]) -> tuple[Side, Side]:
    words = list(runs)
    if len(words) == 1:
        if (Path(words[0]) / AB_FILE).is_file():
            return sides(load_run(Path(words[0])), load_session(Path(words[0])))
        side = runs_of(words, words[0])
        return side, side
    if words.count("vs") == 1:
        cut = words.index("vs")
        base, head = words[:cut], words[cut + 1 :]
    else:
        base, head = words[:1], words[1:]
    if not base or not head or "vs" in head or (len(words) > 2 and "vs" not in words):
        raise MtpbenchError("name one run, two, or several on each side of the word vs", _EXAMPLE)
    return one_label(*_once(runs_of(base, " ".join(base)), runs_of(head, " ".join(head))))


def _once(base: Side, head: Side) -> tuple[Side, Side]:
    """A run that stands on both sides is one and the same, so that its launches pair with each other."""
    if [run.path for run in base.runs] == [run.path for run in head.runs]:
        head = replace(head, runs=base.runs)
    return base, head


def _labels(base: Side, head: Side, base_arm: str, head_arm: str) -> tuple[str, str]:
    """The label of each side's arm."""
    out = []
    for side, asked in ((base, base_arm), (head, head_arm or base_arm)):
        labels = {arm: label for label, arm in side.arms.items()} | {label: label for label in side.arms}
        if asked and asked not in labels:
            raise MtpbenchError(f"{side.name} has no arm {asked!r}", f"It has: {', '.join(side.arms.values())}.")
        if not asked and len(side.arms) > 1:
            option = "--base-arm" if side is base else "--head-arm"
            raise MtpbenchError(
                f"{side.name} has several arms: {', '.join(side.arms.values())}", f"Name one with {option}: {_EXAMPLE}"
            )
        out.append(labels[asked] if asked else next(iter(side.arms)))
    return out[0], out[1]


def level_of(side: Side, load: float | None, factor: str, input_tokens: int) -> LoadLevel:
    """The level of a side's scenario that is meant. Raises MtpbenchError with those that there are."""
    levels = side.scenario.levels()
    primary = side.scenario.primary_level
    wanted = "" if factor == "none" else factor
    if load is None and not wanted and not input_tokens and primary is not None:
        return primary
    found = [one for one in levels if one.factor == wanted]
    if load is not None:
        found = [one for one in found if one.value == load]
    elif primary is not None and any(one.value == primary.value for one in found):
        found = [one for one in found if one.value == primary.value]
    if input_tokens:
        own = side.scenario.workload.input_tokens  # of a level that names no length
        lengths = {input_tokens} if isinstance(own, int) and own != input_tokens else {0, input_tokens}
        found = [one for one in found if one.input_tokens in lengths]
    loads = {one.value for one in found}
    if not found or len(loads) > 1:
        known = ", ".join(dict.fromkeys(one.label for one in levels))
        what = "no such level" if not found else "no primary endpoint, and several levels"
        raise MtpbenchError(
            f"{side.name} has {what}", f"Choose one with --level (and --factor, --input-tokens): {known}"
        )
    return max(found, key=lambda one: one.input_tokens)
