"""What `ci/amd/everything.sh` found on a node, on one page: how each step ended, the kernel's times, the runs' answers.

Works from its folder alone. What is damaged or not there is said in its place: the page is needed most when things
failed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dashboards.markup import details, grid, items, line, text
from dashboards.run_page import sweep_table
from dashboards.standalone import plain
from harness.ab.looks import evaluate
from harness.errors import MtpbenchError
from harness.redact import masked
from harness.results.report import build
from harness.store.ab_record import load_session
from harness.store.runs import load_run

STEPS_FILE = "steps"
DONE, SKIPPED, NOT_BEGUN = "done", "skipped", "not begun"
_WORDS = {
    DONE: DONE,
    SKIPPED: SKIPPED,
    "failed": "FAILED",
    "too-long": "FAILED: took too long",
    "no-time": "not begun: no time was left",
}
_TAIL = 60  # lines of a log on the page; the archive has them all
_RESULTS = re.compile(r"^results: (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Step:
    """One step: `word` is one of those above. `found`: the one line that says what it brought."""

    name: str
    word: str
    code: int = 0
    seconds: int = 0
    found: str = ""

    @property
    def good(self) -> bool:
        return self.word in (DONE, SKIPPED)


def read_steps(folder: Path, names: Sequence[str]) -> list[Step]:
    """The steps in their order, as a folder's lines `NAME WORD CODE SECONDS` tell them; the last of a name counts."""
    known: dict[str, Step] = {}
    for row in _read(folder / STEPS_FILE).splitlines():
        parts = row.split(" ")
        if len(parts) == 4 and parts[1] in _WORDS and parts[2].isdecimal() and parts[3].isdecimal():
            found = _found(folder, parts[0]) if parts[1] != SKIPPED else ""
            known[parts[0]] = Step(parts[0], _WORDS[parts[1]], int(parts[2]), int(parts[3]), found)
    return [known.get(name, Step(name, NOT_BEGUN)) for name in names]


def headline(steps: Sequence[Step]) -> str:
    """One sentence on all of them."""
    bad = [step for step in steps if not step.good]
    if not bad:
        left_out = [step.name for step in steps if step.word == SKIPPED]
        return "Every step did its work" + (f", but {', '.join(left_out)}: skipped." if left_out else ".")
    return f"{len(bad)} of {len(steps)} steps did not do their work: " + ", ".join(
        f"{step.name} ({step.word})" for step in bad
    )


def render(folder: Path, steps: Sequence[Step]) -> str:
    """The page as HTML."""
    said = headline(steps)
    kind = "verdict ok" if all(step.good for step in steps) else "verdict"
    machine = _json(folder / "environment.json")
    rows = "".join(
        line(
            [text(step.name), text(step.word), str(step.code), f"{step.seconds / 60:.1f}", text(step.found)],
            right={2, 3},
        )
        for step in steps
    )
    body = (
        f'<p class="{kind}">{text(said)}</p><h1>mtpbench on {text(_machine(machine))}</h1>'
        + grid("Steps", ("step", "how it ended", "exit code", "minutes", "what it found"), rows)
        + f"<h2>The kernel's times</h2>{_bench(folder)}"
        + f"<h2>Smoke run</h2>{_smoke(folder)}"
        + f"<h2>Concurrency 16</h2>{_c16(folder)}"
        + "<h2>Logs</h2>"
        + "".join(details(step.name, f"<pre>{text(_tail(folder, step.name))}</pre>") for step in steps)
        + details("environment", f"<pre>{text(masked(json.dumps(machine, indent=1)))}</pre>")
    )
    return plain("mtpbench on a node", body)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(_read(path) or "{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _tail(folder: Path, name: str) -> str:
    lines = masked(_read(folder / f"{name}.log")).splitlines()
    cut = [f"… {len(lines) - _TAIL} lines before"] if len(lines) > _TAIL else []
    return "\n".join(cut + lines[-_TAIL:]) or "nothing"


def _machine(environment: Mapping[str, Any]) -> str:
    gpus = environment.get("gpus")
    models = [str(gpu.get("name", "")) for gpu in gpus if isinstance(gpu, dict)] if isinstance(gpus, list) else []
    known = ", ".join(f"{models.count(one)} × {one}" for one in dict.fromkeys(models) if one)
    return f"{environment.get('host', 'an unknown host')}" + (f" ({known})" if known else "")


def _found(folder: Path, name: str) -> str:
    """What a step's reader wants to know first."""
    if name == "bench":
        rows = _rows(_json(folder / "bench.json"))
        words = [str(row.get("status")) for row in rows]
        return ", ".join(f"{words.count(word)} {word}" for word in dict.fromkeys(words))
    if name == "smoke":
        return _of_run(folder, name, lambda run: build(load_run(run)).headline)
    if name == "c16":
        return _of_run(folder, name, lambda run: evaluate(run, load_session(run)).headline)
    lines = [row for row in masked(_read(folder / f"{name}.log")).splitlines() if row.strip()]
    return lines[{"explain": 0}.get(name, -1)].strip()[:300] if lines else ""


def _of_run(folder: Path, name: str, tell: Any) -> str:
    run = _run(folder, name)
    if run is None:
        return "no run was begun"
    try:
        return str(tell(run))
    except MtpbenchError as error:
        return str(error)


def _run(folder: Path, name: str) -> Path | None:
    """The run that a step's log names; found again where the folder was moved since."""
    named = _RESULTS.search(_read(folder / f"{name}.log"))
    if named is None:
        return None
    path = Path(named[1])
    path = path if path.is_dir() else folder / "runs" / path.name
    return path if path.is_dir() else None


def _rows(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    rows = report.get("rows")
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _bench(folder: Path) -> str:
    """Microseconds a call, a row a shape, a column an arm; what was not timed with its reason below."""
    rows = _rows(_json(folder / "bench.json"))
    if not rows:
        return "<p>No times.</p>"
    arms = list(dict.fromkeys(str(row.get("arm")) for row in rows))
    cells: dict[str, dict[str, str]] = {}
    why: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        arm, shape, status = str(row.get("arm")), str(row.get("shape")), str(row.get("status"))
        try:
            cells.setdefault(shape, {})[arm] = f"{1e6 * float(row['seconds']['median']):.1f}"
        except (KeyError, TypeError, ValueError):
            cells.setdefault(shape, {})[arm] = status
            why.setdefault((arm, f"{status}: {row.get('reason', '')}"), []).append(shape)
    body = "".join(
        line([text(shape), *(text(of.get(arm, "–")) for arm in arms)], right=set(range(1, len(arms) + 1)))
        for shape, of in cells.items()
    )
    reasons = [f"{arm}, {len(shapes)} shapes, {reason}" for (arm, reason), shapes in why.items()]
    return grid("µs a call: sequences × tokens", ("shape", *arms), body) + items(reasons, "soft")


def _smoke(folder: Path) -> str:
    run = _run(folder, "smoke")
    if run is None:
        return "<p>No run.</p>"
    try:
        report = build(load_run(run))
    except MtpbenchError as error:
        return f"<p>{text(error)}</p>"
    return f"<p>{text(report.headline)}</p>{items(list(report.conclusions))}{sweep_table(report)}"


def _c16(folder: Path) -> str:
    """The A/B's sentence, and what `explain` said, as it stands in its log."""
    why = masked(_read(folder / "explain.log")).strip()
    explained = f"<pre>{text(why)}</pre>" if why else "<p>Nothing was explained.</p>"
    return f"<p>{text(_found(folder, 'c16'))}</p>{explained}"
