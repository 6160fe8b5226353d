"""The verbs that automation calls: `mtpbench ci …`. Wiring only, registered by `harness.cli`."""

from __future__ import annotations

import contextlib
import re
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from harness.cli_common import err
from harness.cli_verdict import THEMES, LedgerFile, PictureUrl, Store, WhyFile, stored_comparison, why_of
from harness.comment import Pictures, marker, to_comment
from harness.errors import MissingPackageError, MtpbenchError
from harness.github import BOT, GitHub
from harness.ledger import FILE
from harness.store import write_atomically
from harness.verdict import Comparison

ci_app = typer.Typer(no_args_is_help=True, help="What automation calls; each also works by hand: docs/ci.md.")


@ci_app.command()
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
    comparison = stored_comparison([run], None, None, store, ledger)
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
