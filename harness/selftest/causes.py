"""Causes put into simulated servers on purpose, and what `explain` says of them: how often is it right?

Every configuration is drawn at random: machine, verify kernel, loads, prompt lengths, accept length, and the size of
the effect. Both sides are simulated (harness/simulator), and explained from what a client and a server's log would
show; what was injected, and what the simulator knows of its own steps, is not handed over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from rich import box
from rich.table import Table

from harness.explain.answer import Explanation, explain
from harness.explain.change import Subject
from harness.metrics.definitions import PassView
from harness.metrics.tpot_account import account
from harness.model import LoadLevel, Pass
from harness.scenario.format import Scenario
from harness.scenario.launch_plan import plan_launches
from harness.simulator.causes import Injection
from harness.simulator.hardware import Hardware
from harness.simulator.simulate import AcceptLength, serving_of, simulate_run
from harness.simulator.writer import environment, launch_record
from harness.store.ab_record import Side
from harness.store.runs import StoredRun
from harness.text import markdown_table
from harness.verdict.pairs import one_label

BASE, HEAD, NOISE = "base", "head", "noise"
PAIRS = 6  # what an A/B takes on average (docs/statistics.md)
RIGHT, FALSE_ALARMS = 0.95, 0.02
# Effects on TPOT. A cause that makes less than the smallest is not asked for: six pairs whose launches differ by 1 %
# can't be sure of it (docs/statistics.md).
SMALLEST, LARGEST = 0.05, 0.15

_FLAGS = {
    "nvidia": {"attention-backend": "triton", "cuda-graph-max-bs-decode": 64},
    "amd": {"attention-backend": "aiter", "cuda-graph-max-bs": 64},
}
_COMMON = {"kv-cache-dtype": "fp8_e4m3", "page-size": 16, "disable-radix-cache": True, "chunked-prefill-size": 8192}
_MODELS = {"nvidia": ("tiny-qwen3.5-dense-16-1", 1), "amd": ("Qwen/Qwen3.5-397B-A17B-FP8", 2)}


@dataclass(frozen=True)
class Configuration:
    """One simulated experiment: a cause of some size in the head arm, and the level that is asked about."""

    cause: str
    size: float
    scenario: Scenario
    hardware: Hardware
    level: LoadLevel
    accept_length: AcceptLength
    effect: float  # on TPOT, without noise
    timer: bool  # does the server record device times (SGLANG_ENABLE_METRICS_DEVICE_TIMER)?
    seed: int

    def __str__(self) -> str:
        verify = getattr(self.scenario.server, "verify", None)
        lengths = f"{self.scenario.workload.max_input} in, {self.scenario.workload.max_output} out"
        timer = "" if self.timer else "no device times, "
        return (
            f"{self.hardware.name}, {verify}, {self.level.label}, {lengths}, {timer}"
            f"{self.cause} = {self.size:.3g}: TPOT {100 * self.effect:+.1f} %"
        )


@dataclass(frozen=True)
class Trial:
    """What was put in, and what was named; None is "the data do not tell"."""

    configuration: Configuration
    named: str | None
    sentence: str

    @property
    def right(self) -> bool:
        if self.configuration.cause == NOISE:
            return self.named in (None, NOISE)
        return self.named == self.configuration.cause


# Sizes are tried at the first of these, and scaled to the effect that is wanted; fixed ones are what they are.
_TRIED = {
    "prefill_interference": 0.3,
    "acceptance_drift": 0.2,
    "slower_kernel": 1.0,
    "segment_overhead": 3.0,
    "host_stall": 1e-3,
    "ragged_lengths": 0.9,
}
# Beyond these, a size is no longer one that a server could have.
_LARGEST_SIZE = {
    "prefill_interference": 1.0,
    "acceptance_drift": 0.8,
    "slower_kernel": 4.0,
    "segment_overhead": 32.0,
    "host_stall": 20e-3,
    "ragged_lengths": 0.95,
}
CAUSES = (*_TRIED, "missing_graph_bucket", NOISE)


def configuration(cause: str, machines: Sequence[Hardware], seed: int, other_texts: bool = False) -> Configuration:
    """The configuration of a seed; one in which the cause can't have an effect worth asking for is drawn again.

    With `other_texts`, launches generate other texts to the same prompts, as far as the machine file says. Then other
    requests end together, and what prefills cost differs by several percent from launch to launch.
    """
    draw = Random(f"{cause}/{seed}")
    while True:
        found = _drawn(cause, machines, draw, seed, other_texts)
        if found is not None:
            return found


def _drawn(
    cause: str, machines: Sequence[Hardware], draw: Random, seed: int, other_texts: bool
) -> Configuration | None:
    hardware = draw.choice(machines)
    if not other_texts:
        noise = hardware.noise.model_copy(update={"texts": 0.0})
        hardware = hardware.model_copy(update={"noise": noise})
    concurrency = draw.choice((8, 12, 16))
    short, long = draw.choice(((4096, 16384), (8192, 32768)))
    scenario = _scenario(
        hardware,
        verify=draw.choice(("generic", "in-tree", "upstream")),
        concurrency=concurrency,
        short=short,
        long=long,
        output=draw.choice((192, 256)),
    )
    [level] = scenario.own_levels()
    accept = AcceptLength(draw.uniform(2.2, 3.3), draw.uniform(0.05, 0.15))
    wanted = draw.uniform(SMALLEST, LARGEST)
    blank = Configuration(cause, 0.0, scenario, hardware, level, accept, 0.0, seed % 2 == 0, seed)
    if cause == NOISE:
        return replace(blank, size=draw.uniform(0.0, 0.03))
    if cause == "missing_graph_bucket":
        found = replace(blank, size=float(concurrency))
        found = replace(found, effect=effect(found))
    else:
        tried = replace(blank, size=_TRIED[cause])
        size = tried.size * wanted / max(1e-3, effect(tried))
        found = replace(blank, size=min(size, _LARGEST_SIZE[cause]))
        found = replace(found, effect=effect(found))
    return found if SMALLEST <= found.effect <= 2 * LARGEST else None


def _scenario(hardware: Hardware, verify: str, concurrency: int, short: int, long: int, output: int) -> Scenario:
    """The level that is asked about, one with shorter prompts, and one with a quarter of the load."""
    model, tp = _MODELS[hardware.gpu_vendor]
    return Scenario.model_validate(
        {
            "version": 1,
            "name": "explain-check",
            "question": "What is the cause that was put in?",
            "server": {
                "engine": "sglang",
                "model": model,
                "gpu_vendor": hardware.gpu_vendor,
                "speculation": {"steps": 3, "topk": 1, "draft_tokens": 4},
                "verify": verify,
                "flags": {**_COMMON, **_FLAGS[hardware.gpu_vendor]},
            },
            "arms": {BASE: {}, HEAD: {}},
            "tp": [tp],
            "workload": {"prompts": "prose", "input_tokens": long, "output_tokens": output},
            "arrival": {"concurrency": [concurrency], "requests_per_slot": 4, "warmup_per_slot": 0},
            "factors": {"short": {"input_tokens": short}, "small": {"concurrency": [concurrency // 4]}},
            "launches": PAIRS,
            "primary": {"metric": "tpot", "level": concurrency},
        }
    )


def effect(one: Configuration) -> float:
    """Relative effect on TPOT of a launch without any noise, at the level that is asked about, with its prompts."""
    quiet = one.hardware.noise.model_copy(update={"launch": 0.0, "step": 0.0, "delivery": 0.0})
    tpot = {}
    for done in simulate_run(
        one.scenario.model_copy(update={"factors": {}}),
        one.hardware.model_copy(update={"noise": quiet}),
        seed=one.seed,
        injected={one.cause: Injection(one.size, (HEAD,))},
        launches=[0],
        accept_length=one.accept_length,
    ):
        pooled = account(PassView.of(done))
        assert pooled is not None, "every pass has a steady state"
        tpot[done.record.key.arm] = pooled.tpot
    return tpot[HEAD] / tpot[BASE] - 1


def explained(one: Configuration) -> Explanation:
    """What `explain` says of a configuration, told no more than a measured run holds."""
    arms = (BASE, HEAD) if one.cause == NOISE else (HEAD,)
    injected = {one.cause: Injection(one.size, arms)}
    passes = simulate_run(one.scenario, one.hardware, seed=one.seed, injected=injected, accept_length=one.accept_length)
    plans = plan_launches(one.scenario)
    run = StoredRun(
        path=Path("runs/simulated"),
        id="simulated",
        created_at="",
        scenario=one.scenario,
        environment=environment(one.hardware, one.seed, {}, one.accept_length),
        launches=tuple(
            launch_record(plan, one.hardware, serving_of(one.scenario, plan, one.hardware, injected).graphs)
            for plan in plans
        ),
        passes=tuple(_shown(done, one.timer) for done in passes),
        failed=(),
    )
    base, head = one_label(Side(BASE, (run,), {BASE: BASE}), Side(HEAD, (run,), {HEAD: HEAD}))
    [label] = base.arms
    tp = one.scenario.tp[0]
    return explain(Subject(base, label, tp, one.level), Subject(head, label, tp, one.level))


def _shown(source: Pass, timer: bool) -> Pass:
    """A pass as a server shows it: no step is traced, and without the timer it has no device times."""
    counters = {
        name: value for name, value in source.record.counters.items() if timer or not name.startswith("device_")
    }
    return replace(source, record=replace(source.record, counters=counters, step_profile={}))


def trial(cause: str, machines: Sequence[Hardware], seed: int, other_texts: bool = False) -> Trial:
    one = configuration(cause, machines, seed, other_texts)
    found = explained(one)
    return Trial(one, found.cause, found.sentence)


def trials(
    machines: Sequence[Hardware],
    repetitions: Mapping[str, int],
    seed: int = 1,
    progress: Callable[[Trial], None] = lambda _: None,
    other_texts: bool = False,
) -> list[Trial]:
    """So many configurations of each cause."""
    out = []
    for cause, count in repetitions.items():
        for number in range(count):
            out.append(trial(cause, machines, 1000 * seed + number, other_texts))
            progress(out[-1])
    return out


@dataclass(frozen=True)
class Tally:
    """One cause: of the configurations whose servers time their device and of the others, how often it was named."""

    cause: str
    timed: int
    timed_right: int
    untimed: int
    untimed_right: int
    not_told: int  # of both kinds: a cause was put in, and none was named
    wrong: Mapping[str, int]  # another was

    @property
    def n(self) -> int:
        return self.timed + self.untimed

    @property
    def share(self) -> float:
        return (self.timed_right + self.untimed_right) / self.n

    @property
    def met(self) -> bool:
        return self.share >= (1 - FALSE_ALARMS if self.cause == NOISE else RIGHT)


def lines(done: Sequence[Trial]) -> list[Tally]:
    """A line for each cause, and one for all of them but noise."""
    causes = dict.fromkeys(one.configuration.cause for one in done)
    out = [_line(cause, [one for one in done if one.configuration.cause == cause]) for cause in causes]
    put_in = [one for one in done if one.configuration.cause != NOISE]
    return [*out, _line(ALL, put_in)] if len(out) > 1 and put_in else out


ALL = "all causes"


def _line(cause: str, done: Sequence[Trial]) -> Tally:
    timed = [one for one in done if one.configuration.timer]
    untimed = [one for one in done if not one.configuration.timer]
    missed = [one for one in done if not one.right]
    return Tally(
        cause,
        len(timed),
        sum(one.right for one in timed),
        len(untimed),
        sum(one.right for one in untimed),
        sum(one.named is None for one in missed),
        Counter(one.named for one in missed if one.named is not None),
    )


HEADERS = ("cause put in", "named, with device times", "named, without", "share", "target", "not told", "another named")


def cells(line: Tally) -> tuple[str, ...]:
    quiet = line.cause == NOISE
    return (
        "none: launches differ, nothing else (named: not called a cause)" if quiet else line.cause,
        f"{line.timed_right} of {line.timed}",
        f"{line.untimed_right} of {line.untimed}",
        f"{100 * line.share:.0f} %",
        f"≥ {100 * (1 - FALSE_ALARMS if quiet else RIGHT):.0f} %",
        str(line.not_told),
        ", ".join(f"{name} {count}" for name, count in line.wrong.items()) or "0",
    )


def to_rich(done: Sequence[Trial]) -> Table:
    """For the terminal."""
    table = Table(title="causes put into simulated servers, and what explain names", box=box.SIMPLE_HEAD)
    for title in HEADERS:
        table.add_column(title, justify="left" if title in (HEADERS[0], HEADERS[-1]) else "right")
    for line in lines(done):
        table.add_row(*cells(line), style=None if line.met else "bold red")
    return table


def to_markdown(done: Sequence[Trial]) -> str:
    """For docs/c16.md."""
    return "\n".join(markdown_table(HEADERS, map(cells, lines(done)), (HEADERS[0], HEADERS[-1]))) + "\n"
