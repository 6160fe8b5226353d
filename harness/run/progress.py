"""Progress on the terminal: a live display where there is one, plain lines elsewhere (CI logs)."""

from __future__ import annotations

import time

from rich.console import Console
from rich.live import Live
from rich.text import Text

from harness.errors import ServerError
from harness.load.workers import Progress
from harness.metrics.definitions import PassView, distribution
from harness.model import PassKey
from harness.scenario.launch_plan import LaunchPlan
from harness.units import format_duration


class TerminalUi:
    """Prints one line for each finished thing; on a terminal, also one that changes while it runs."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, refresh_per_second=4, transient=True) if console.is_terminal else None
        self._requests = 0
        self._what = ""
        self._started = 0.0

    def __enter__(self) -> TerminalUi:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def say(self, text: str, style: str = "") -> None:
        """A line that stays."""
        self._line(text, style)

    def _line(self, text: str, style: str = "") -> None:
        self._console.print(Text(text, style=style), soft_wrap=True)

    def _status(self, text: str) -> None:
        if self._live:
            self._live.update(Text(text[: self._console.width - 1], style="cyan"))

    def launch_starting(self, plan: LaunchPlan, number: int, total: int) -> None:
        self._line(
            f"[{number}/{total}] {plan.arm.name}, TP{plan.tp}: starting {plan.arm.server.engine}",
            "bold",
        )

    def launch_waiting(self, seconds: float, last_line: str) -> None:
        self._status(f"  {seconds:.0f} s  {last_line}")

    def launch_ready(self, seconds: float) -> None:
        self._line(f"  ready after {format_duration(seconds)}" if seconds else "  attached")

    def preparing(self, what: str) -> None:
        self._status(f"  preparing {what}")

    def pass_starting(self, key: PassKey, requests: int, warmup: bool) -> None:
        self._requests, self._started = requests, time.monotonic()
        self._what = f"{'warm-up' if warmup else 'measuring'} at {key.level.label}"

    def pass_progress(self, progress: Progress) -> None:
        done = progress.finished + progress.failed
        elapsed = time.monotonic() - self._started
        left = f", {format_duration(elapsed / done * (self._requests - done))} left" if done else ""
        failed = f", {progress.failed} FAILED" if progress.failed else ""
        self._status(
            f"  {self._what}: {done}/{self._requests} requests, {progress.in_flight} in flight{failed}, "
            f"{elapsed:.0f} s{left}"
        )

    def pass_done(self, view: PassView) -> None:
        key = view.source.record.key
        parts = [f"  {key.level.label:>5}"]
        for name, label, scale, unit in (("ttft", "TTFT", 1e3, "ms"), ("tpot", "TPOT", 1e3, "ms")):
            value = distribution(name, view).percentiles[50]
            parts.append(f"{label} {value * scale:8.2f} {unit}" if value is not None else f"{label} –")
        accepted = distribution("accept_length", view).mean
        if accepted is not None:
            parts.append(f"accept length {accepted:.2f}")
        parts.append(f"n {len(view.counted)}")
        self._line("  ".join(parts))
        for finding in view.source.record.findings:
            self._line(f"         {finding.message}", "red" if finding.invalid else "yellow")

    def no_profile(self, key: PassKey, why: str) -> None:
        self._line(f"  {key.level.label:>5}  no profile of the device: {why}", "yellow")

    def launch_left_out(self, plan: LaunchPlan, failures: int) -> None:
        self._line(f"  {plan.arm.name}, TP{plan.tp}: left out, its first {failures} launches failed", "bold red")

    def launch_failed(self, plan: LaunchPlan, error: ServerError) -> None:
        self._line(f"  FAILED: {error}", "bold red")
        for line in error.log_tail:
            self._line(f"    | {line}", "dim")
