"""The verbs that automation calls: `mtpbench ci …`."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from harness.cli.common import Gpus, Image, err, gpu_ids, out
from harness.cli.compare import named_runs, stored_comparison, why_of
from harness.cli.comparing import THEMES, LedgerFile, PictureUrl, Store, Today, WhyFile, day_of
from harness.cli.group import verbs_of_a_file
from harness.cli.store import local
from harness.cli.trend import Renamed, judged_of
from harness.errors import MissingPackageError, MtpbenchError
from harness.machine.idle_check import GpuState, Limits, look
from harness.machine.telemetry import open_source
from harness.nightly import told as trends
from harness.nightly.issues import issues
from harness.nightly.issues import to_json as issues_json
from harness.nightly.quarantine import CLEAN_NIGHTS, Mark, Period, Written, judge, periods, quarantined, release
from harness.nightly.recovered import measured_places
from harness.stats.series import MIN_BASELINE
from harness.store.archive import read_archive
from harness.store.remote import Remote, is_url
from harness.store.runs import QUARANTINE_FILE, write_atomically
from harness.verdict.accepted import FILE
from harness.verdict.accepted import load as load_ledger
from harness.verdict.compare import Comparison
from harness.verdict.github import BOT, GitHub
from harness.verdict.pr_comment import Pictures, marker, to_comment

_WAIT_S = 15.0

verbs = verbs_of_a_file()


@verbs.command()
def comment(
    run: Annotated[str, typer.Argument(metavar="RUN", help="An A/B run: its folder, or its URL.")],
    output: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write comment.md, ab-light.png and ab-dark.png here.")
    ] = None,
    pull_request: Annotated[int, typer.Option("--pr", metavar="NUMBER", help="Comment on this pull request.")] = 0,
    commit: Annotated[str, typer.Option(metavar="SHA", help="Also set the verdict as a check of this commit.")] = "",
    repository: Annotated[str, typer.Option("--repo", metavar="OWNER/NAME", help="Default: $GITHUB_REPOSITORY.")] = "",
    author: Annotated[str, typer.Option(help="Whose earlier comment is updated.")] = BOT,
    pictures_branch: Annotated[
        str, typer.Option(metavar="BRANCH", help="Put the pictures on this branch, which must be there.")
    ] = "",
    picture_url: PictureUrl = "",
    details_url: Annotated[
        str, typer.Option(metavar="URL", help="Where the check leads, such as the job's page.")
    ] = "",
    why: WhyFile = None,
    store: Store = "runs",
    ledger: LedgerFile = Path(FILE),
) -> None:
    """The verdict of an A/B as a comment on a pull request, updated in place, and as a check. Prints the comment.

    Without --pr and --commit nothing is sent. The token is read from GITHUB_TOKEN. Exit code 0 once it is told,
    whatever the verdict: the check says that.
    """
    comparison = stored_comparison(named_runs([run]), None, None, store, ledger)
    drawn = _pictures(comparison)
    pictures = Pictures(*(f"{picture_url}-{theme}.png" for theme in THEMES)) if picture_url and drawn else None
    with contextlib.ExitStack() as stack:
        github = None
        if pull_request or commit:
            github = stack.enter_context(GitHub.from_environment(repository))
        if github and pictures_branch and drawn:
            name = re.sub(r"[^A-Za-z0-9._-]", "_", Path(run).name)
            places = [github.picture(pictures_branch, f"{name}-{theme}.png", drawn[theme]) for theme in THEMES]
            pictures = Pictures(*places)
        text = to_comment(comparison, why_of(why), pictures)
        if output is not None:
            _write(output, text, drawn)
        if github and pull_request:
            posted = github.comment(pull_request, marker(comparison.scenario), text, author)
            done = "updated" if posted.updated else "written"
            err.print(Text(f"comment {done}: {posted.url or posted.id}"), soft_wrap=True)
        if github and commit:
            github.check(commit, comparison, text, details_url)
    sys.stdout.write(text)


def _pictures(comparison: Comparison) -> dict[str, bytes]:
    try:
        from dashboards.comparison_picture import render
    except ImportError as error:
        raise MissingPackageError(str(error.name), "The picture", "") from error
    found = {theme: render(comparison, theme == "dark") for theme in THEMES}
    return {theme: content for theme, content in found.items() if content is not None}


def _write(folder: Path, text: str, drawn: dict[str, bytes]) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MtpbenchError(f"can't write {folder}: {error.strerror}", "Choose another --output.") from error
    write_atomically(folder / "comment.md", text.encode())
    for theme, content in drawn.items():
        write_atomically(folder / f"ab-{theme}.png", content)
    out_files = ", ".join(["comment.md", *(f"ab-{theme}.png" for theme in drawn)])
    err.print(Text(f"{folder}: {out_files}"), soft_wrap=True)


@verbs.command()
def precheck(
    gpus: Gpus = "",
    memory: Annotated[float, typer.Option(help="MB of GPU memory in use, at most.")] = Limits.memory_mb,
    temperature: Annotated[float, typer.Option(help="°C, at most.")] = Limits.temperature_c,
    power: Annotated[float, typer.Option(help="W, at most.")] = Limits.power_w,
    min_clock: Annotated[float, typer.Option(help="MHz, at least; for nodes with fixed clocks.")] = 0.0,
    wait: Annotated[float, typer.Option(metavar="SECONDS", help="How long a node may take to become free.")] = 0.0,
    need_gpu: Annotated[bool, typer.Option("--need-gpu", help="That no GPU can be read is an error.")] = False,
) -> None:
    """Is the node free, cool and unthrottled? Reads GPU memory, temperature, power and clock.

    Exit codes: 0 it is, or there is no GPU to look at; 1 it is not; 2 it could not be looked at.
    """
    source = open_source()
    if source is None:
        what = "no GPU, or no library to read one (amdsmi on AMD, nvidia-ml-py on NVIDIA)"
        if need_gpu:
            raise MtpbenchError(what, "Install the library where mtpbench runs; ROCm has amdsmi in /opt/rocm/share.")
        out.print(Text(f"skipped: {what}"), soft_wrap=True)
        return
    limits = Limits(memory, temperature, power, min_clock)
    ids = gpu_ids(gpus) or tuple(range(len(source.inventory())))
    deadline = time.monotonic() + wait
    while True:
        states = look(source, ids, limits)
        if not any(state.problems for state in states) or time.monotonic() >= deadline:
            break
        err.print(Text(f"waiting: {next(p for s in states for p in s.problems)}", style="dim"), soft_wrap=True)
        time.sleep(_WAIT_S)
    source.close()
    _show_states(states)
    blind = [str(state.worst.gpu) for state in states if state.blind]
    if blind and need_gpu:
        raise MtpbenchError(
            f"GPU {', '.join(blind)}: memory, temperature and power can't be read, so nobody knows whether it is free",
            "Does amd-smi or nvidia-smi show them here? A container needs /dev/kfd and /dev/dri.",
        )
    if any(state.problems for state in states):
        raise typer.Exit(1)


def _show_states(states: Sequence[GpuState]) -> None:
    table = Table("GPU", "memory MB", "temperature °C", "power W", "clock MHz", "", box=box.SIMPLE_HEAD)
    for state in states:
        one = state.worst
        values = (one.memory_used_mb, one.temperature_c, one.power_w, one.clock_mhz)
        cells = [f"{value:.0f}" if value is not None else "not read" for value in values]
        table.add_row(str(one.gpu), *cells, state.word)
    out.print(table)
    for state in states:
        for problem in state.problems:
            out.print(Text(problem, style="bold red"), soft_wrap=True)


@verbs.command()
def sentinel(
    store: Annotated[str, typer.Argument(metavar="STORE", help="A folder, or a store's URL.")] = "runs",
    nights: Annotated[int, typer.Option(help="Clean nights in a row that end a quarantine.")] = CLEAN_NIGHTS,
    release_host: Annotated[
        str, typer.Option("--release", metavar="HOST", help="End this host's quarantine; its runs judge again.")
    ] = "",
    why: Annotated[str, typer.Option(help="With --release: what was found.")] = "",
) -> None:
    """Are the hosts as steady as they were? Judges new A/A runs, and marks the runs of hosts that drift.

    A marked run stays in the store and judges nothing. Exit codes: 0 no host is in quarantine, 1 one is.
    """
    if bool(release_host) != bool(why):
        raise MtpbenchError("--release and --why go together", 'mtpbench ci sentinel STORE --release HOST --why "…"')
    root = local(store)
    archive = read_archive(root)
    marks, written = judge(archive)
    found = periods(marks, nights)
    if release_host:
        written |= release(archive, marks, found, release_host, why)
    else:
        written |= quarantined(archive, found)
    _write_marks(root, store, written)
    if release_host:
        marks, _ = judge(read_archive(root))
        found = periods(marks, nights)
    _show_hosts(marks, found, sum(name.endswith(QUARANTINE_FILE) for name in written))
    if any(not period.until for period in found):
        raise typer.Exit(1)


def _write_marks(root: Path, store: str, written: Written) -> None:
    files = {name: (json.dumps(value, indent=1) + "\n").encode() for name, value in written.items()}
    for name, content in files.items():
        write_atomically(root / name, content)
    if files and is_url(store):
        Remote(store).put(files)


def _show_hosts(marks: Sequence[Mark], found: Sequence[Period], marked: int) -> None:
    if not marks:
        out.print(Text("no A/A run in the store: `mtpbench aa SCENARIO` is what a host is judged by"), soft_wrap=True)
    for host in dict.fromkeys(mark.host for mark in marks):
        last = [mark for mark in marks if mark.host == host][-1]
        period = next((p for p in found if p.host == host and not p.until), None)
        if period is not None:
            out.print(
                Text(f"{host}: QUARANTINE since {period.since}: {period.reason}", style="bold red"), soft_wrap=True
            )
            out.print(Text(f"  clean nights since: {period.clean}"), soft_wrap=True)
        else:
            level = f"level against {last.baseline} nights" if last.baseline >= MIN_BASELINE else "level not yet known"
            state = "steady" if last.clean else "its last A/A run is no result"
            out.print(Text(f"{host}: {state} ({last.scenario}, {last.day}; {level})"), soft_wrap=True)
    if marked:
        out.print(Text(f"{marked} runs marked"), soft_wrap=True)


@verbs.command()
def confirm(
    store: Annotated[str, typer.Argument(metavar="STORE", help="A folder, or a store's URL.")] = "runs",
    at_most: Annotated[int, typer.Option(help="So many A/Bs; the rest waits for another night.")] = 2,
    gpus: Gpus = "",
    image: Image = "",
    today: Today = "",
    renamed: Renamed = None,
    ledger: LedgerFile = Path(FILE),
) -> None:
    """Run the paired A/B of each unconfirmed alert of the trend, so that a person sees only what is confirmed."""
    commands = trends.commands(judged_of(read_archive(local(store)), ledger, renamed=renamed, today=today).told)
    for number, command in enumerate(commands):
        words = shlex.split(command)[1:]
        if "env:OLD_ENVIRONMENT" in words:
            err.print(Text(f"by hand, with the environments' folders: {command}", style="yellow"), soft_wrap=True)
        elif number >= at_most:
            err.print(Text(f"left for another night: {command}", style="yellow"), soft_wrap=True)
        else:
            err.print(Text(f"confirming: {command}"), soft_wrap=True)
            more = [*(["--gpus", gpus] if gpus else []), *(["--image", image] if image else [])]
            code = subprocess.call([sys.executable, "-m", "harness", *words, "--store", store, *more])
            err.print(Text(f"it exited with {code}"), soft_wrap=True)
    if not commands:
        out.print(Text("no unconfirmed alert"))


@verbs.command(name="issues")
def write_issues(
    store: Annotated[str, typer.Argument(metavar="STORE", help="A folder, or a store's URL.")] = "runs",
    output: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where the texts go.")] = Path("issues"),
    site: Annotated[str, typer.Option(metavar="URL", help="Of the published pages, to link to.")] = "",
    today: Today = "",
    renamed: Renamed = None,
    ledger: LedgerFile = Path(FILE),
) -> None:
    """Write the text of an issue for each confirmed slowdown: FOLDER/NAME/{body.md,title,marker,owner}, issues.json.

    `ci/open_issues.sh FOLDER` opens or updates them: the marker, a body's first line, is how one is found again. In a
    place that FOLDER/measured names, what has no text any more is gone, and its issue is closed.
    """
    told = judged_of(read_archive(local(store)), ledger, renamed=renamed, today=today).told
    found = issues(told, load_ledger(ledger).owner, site)
    try:
        output.mkdir(parents=True, exist_ok=True)
        for issue in found:
            (output / issue.name).mkdir(exist_ok=True)
    except OSError as error:
        raise MtpbenchError(f"can't write {output}: {error.strerror}", "Choose another folder.") from error
    for issue in found:
        texts = {"body.md": issue.body, "title": issue.title, "marker": issue.marker, "owner": issue.owner}
        for name, text in texts.items():
            write_atomically(output / issue.name / name, text.encode())
        out.print(Text(f"{output / issue.name}: {issue.title}"), soft_wrap=True)
    write_atomically(output / "issues.json", issues_json(found).encode())
    measured = measured_places(told, day_of(today))
    write_atomically(output / "measured", "".join(f"{mark}\n" for mark in measured).encode())
    if not found:
        out.print(Text("no confirmed slowdown"))
