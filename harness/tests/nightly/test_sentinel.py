"""Hosts in quarantine: what makes an A/A run drift, what is marked, what judges, and how a host is released."""

from __future__ import annotations

import json
from datetime import date, timedelta
from pathlib import Path

import numpy as np
import pytest
from commands import mtpbench
from launches import launch, run, save, scenario, side

from harness.ab import looks as ab
from harness.machine.idle_check import Limits, look, worst_of
from harness.machine.telemetry import Source, open_source
from harness.model import GpuSample
from harness.nightly.quarantine import Mark, judge, periods, quarantined
from harness.nightly.series import build
from harness.stats.inference import wider_p
from harness.store.ab_record import Party, Session
from harness.store.archive import read_archive
from harness.store.runs import QUARANTINE_FILE, load_run
from harness.verdict.aa_floor import floors
from harness.verdict.compare import Verdict, compare

FIRST = date(2026, 1, 1)
PLAN = scenario(arms={"base.mtp": {}, "head.mtp": {}}, launches=3)
STEADY = 0.002


def aa(root: Path, night: int, level: float = 0.010, spread: float = STEADY, host: str = "a", ratio: float = 1.0,
       seed: int | None = None, packages: dict[str, str] | None = None) -> Path:  # fmt: skip
    """An A/A run of three pairs at 01:00 of a night."""
    draw = np.random.default_rng(night if seed is None else seed)
    passes = [
        launch(n, level * (ratio if arm.startswith("head") else 1.0) * float(np.exp(draw.normal(0, spread))), arm=arm)
        for n in range(3)
        for arm in PLAN.arms
    ]
    made = run(passes, of=PLAN, created_at=f"{FIRST + timedelta(night)}T01:00:00+00:00", environment={"host": host},
               packages=packages or {})  # fmt: skip
    folder = save(root, made)
    party = Party(".", "tree", "1" * 40)
    ab.save(folder, Session("aa", party, party, {"mtp": ("base.mtp", "head.mtp")}, 3, 3, ("tpot_p50",)))
    return folder


def sweep(root: Path, night: int, host: str = "a", tpot: float = 0.01) -> Path:
    """A nightly run at 02:00."""
    stamp = f"{FIRST + timedelta(night)}T02:00:00+00:00"
    return save(root, run([tpot] * 3, created_at=stamp, environment={"host": host}))


def judged(root: Path) -> list[Mark]:
    """Judges new nights, and writes down what is said of them, as the verb does."""
    archive = read_archive(root)
    marks, new = judge(archive)
    for name, value in (new | quarantined(archive, periods(marks))).items():
        (root / name).write_text(json.dumps(value))
    return marks


def test_a_steady_host_is_never_quarantined(tmp_path: Path) -> None:
    for night in range(14):
        aa(tmp_path, night)
    marks = judged(tmp_path)
    assert not any(mark.drift for mark in marks)
    assert marks[-1].baseline == 13
    assert periods(marks) == []
    assert judge(read_archive(tmp_path)) == (marks, {})  # said once


def test_a_host_that_got_slower_drifts_and_its_runs_judge_nothing(tmp_path: Path) -> None:
    for night in range(10):
        aa(tmp_path, night)
        sweep(tmp_path, night)
    assert not any(mark.drift for mark in judged(tmp_path))
    aa(tmp_path, 10, level=0.0106)
    bad = sweep(tmp_path, 10, tpot=0.0106)
    elsewhere = sweep(tmp_path, 10, host="b")
    mark = judged(tmp_path)[-1]
    assert mark.drift[0].startswith("TPOT at concurrency 1 (TP1, mtp) moved by +")
    assert mark.drift[0].endswith("against 10 nights before")
    marked = {path.parent.name for path in tmp_path.glob(f"*/{QUARANTINE_FILE}")}
    assert marked == {mark.run, bad.name}
    assert not (elsewhere / QUARANTINE_FILE).exists()

    stored = read_archive(tmp_path)
    [series] = [s for s in build(stored.nightly(), ("tpot_p50",)) if s.key.host == "a"]
    assert len(series.nights) == 10
    assert any("2026-01-11 left out: its host was in quarantine (TPOT" in note for note in series.notes)
    good = load_run(sorted(tmp_path.glob("2026010[1-9]*T02*"))[0])
    found = compare(side("base", good), side("head", load_run(bad)), metrics=("tpot_p50",))
    assert found.verdict is Verdict.INVALID
    assert "its host was in quarantine" in found.headline
    (tmp_path / mark.run / QUARANTINE_FILE).unlink()
    with_bad = floors(tmp_path, "a", "scripted")
    judged(tmp_path)
    assert floors(tmp_path, "a", "scripted") != with_bad


@pytest.mark.parametrize("odd", [0.51, 0.8, 1.3, 2.0])
def test_a_bad_night_does_not_blind_it(tmp_path: Path, odd: float) -> None:
    """It reads the same model as the trend: one odd night counts in no level and in no spread."""
    for night in range(12):
        aa(tmp_path, night, level=0.010 * (odd if night == 4 else 1.0))
    judged(tmp_path)
    for night in (12, 13, 14):
        aa(tmp_path, night, level=0.0106)
    assert any("moved by +" in line for mark in judged(tmp_path)[-3:] for line in mark.drift)


def test_equal_servers_that_differ_or_spread_are_a_drift(tmp_path: Path) -> None:
    for night in range(5):
        aa(tmp_path, night)
    aa(tmp_path, 5, spread=0.05, seed=1)
    aa(tmp_path, 6, ratio=1.2, spread=0.0001)
    *_, wide, unequal = judged(tmp_path)
    assert "equal servers spread by" in wide.drift[0]
    assert "% on steady nights (p" in wide.drift[0]
    assert unequal.drift[0].startswith("equal servers differ: FAIL: TPOT at concurrency 1")
    # F(2, 8) of a variance ratio of 9: 1 - 0.9910 (tables: F.99 = 8.65).
    assert wider_p(0.03, 2, 0.01, 8) == pytest.approx(0.009, abs=0.0005)
    assert wider_p(0.02, 2, 0.02, 0) == 1.0


def test_new_software_is_no_drift_of_the_host(tmp_path: Path) -> None:
    for night in range(10):
        aa(tmp_path, night, packages={"sglang": "0.5.16"})
    aa(tmp_path, 10, level=0.0106, packages={"sglang": "0.5.23"})
    mark = judged(tmp_path)[-1]
    assert mark.drift == ()
    assert mark.baseline == 0


def mark(night: int, drift: str = "", clean: bool = True, released: str = "") -> Mark:
    day = FIRST + timedelta(night)
    said = {"at": f"{day}T09:00:00+00:00", "why": released} if released else None
    drifts = (drift,) if drift else ()
    return Mark(f"r{night}", f"{day}T01:00:00+00:00", day, "a", "s", drifts, clean and not drift, 9, said)


def test_clean_nights_in_a_row_or_a_person_end_a_quarantine() -> None:
    nights = [mark(0), mark(1, "wide"), mark(2), mark(3), mark(4, "slow"), mark(5), mark(6, clean=False), mark(7)]
    [still] = periods(nights)
    assert (still.since, still.reason, still.until, still.clean) == ("2026-01-02T01:00:00+00:00", "wide", "", 2)
    [over] = periods([*nights, mark(8)])
    assert over.until == "2026-01-09T01:00:00+00:00"
    assert not over.holds("2026-01-09T02:00:00+00:00")
    assert over.holds("2026-01-09T00:00:00+00:00")
    assert not over.holds("2026-01-01T23:00:00+00:00")
    [by_hand, again] = periods([mark(0), mark(1, "wide", released="a cable"), mark(2), mark(3, "wide")])
    assert by_hand.until == "2026-01-02T09:00:00+00:00"
    assert again.since == "2026-01-04T01:00:00+00:00"
    assert Mark.from_json(json.loads(json.dumps(mark(1, "wide", released="x").to_json()))) == mark(
        1, "wide", released="x"
    )


def test_the_verb_marks_and_releases(tmp_path: Path) -> None:
    root = tmp_path / "runs"

    def sentinel(*more: object, check: int) -> str:
        done = mtpbench("ci", "sentinel", root, *more, cwd=tmp_path, check=check)
        return done.stdout + done.stderr

    for night in range(9):
        aa(root, night)
    assert "a: steady (scripted, 2026-01-09; level against 8 nights)" in sentinel(check=0)
    for night in (9, 10):
        aa(root, night, level=0.0106)
        sweep(root, night)
    said = sentinel(check=1)
    assert "a: QUARANTINE since 2026-01-10T01:00:00+00:00: TPOT" in said
    assert "4 runs marked" in said
    sentinel("--release", "a", "--why", "a new fan", check=0)
    for path in root.glob(f"*/{QUARANTINE_FILE}"):
        assert json.loads(path.read_text())["released"]["why"] == "a new fan"
        assert load_run(path.parent).quarantine == ""
    # From here on the level is judged anew: the next night at 10.6 ms is no drift.
    aa(root, 11, level=0.0106)
    assert "level not yet known" in sentinel(check=0)
    assert "a is not in quarantine" in sentinel("--release", "a", "--why", "x", check=2)
    assert "go together" in sentinel("--release", "a", check=2)


class Sensors:
    """A vendor's library that says what a test says: readings of each GPU, one after the other."""

    vendor = "amd"

    def __init__(self, readings: dict[int, list[GpuSample]]) -> None:
        self._readings = readings

    def read(self, gpu: int) -> GpuSample:
        queue = self._readings[gpu]
        return queue.pop(0) if len(queue) > 1 else queue[0]

    def inventory(self) -> list[dict[str, str]]:
        return [{"name": "MI355X"} for _ in self._readings]

    def close(self) -> None:
        pass


def sample(gpu: int, clock: float | None = 150, power: float | None = 240, heat: float | None = 40,
           memory: float | None = 300) -> GpuSample:  # fmt: skip
    return GpuSample(0.0, gpu, clock, power, heat, memory)


def test_the_worst_of_a_few_readings_decides() -> None:
    busy_now_and_then = [sample(1), sample(1, power=900, clock=2400), sample(1)]
    source: Source = Sensors({0: [sample(0)], 1: busy_now_and_then, 2: [sample(2, memory=9000, heat=80)],
                              3: [sample(3, None, None, None, None)]})  # fmt: skip
    free, busy, used, silent = look(source, (0, 1, 2, 3), Limits(), sleep=lambda _s: None)
    assert free.problems == ()
    assert busy.problems == ("GPU 1: power 900 W, at most 400 W when idle: something runs on it",)
    assert [text.partition(",")[0] for text in used.problems] == ["GPU 2: memory 9000 MB", "GPU 2: temperature 80 °C"]
    assert silent.unread == ("memory", "temperature", "power")
    assert worst_of([sample(0, clock=900), sample(0, clock=None), sample(0, clock=300)]).clock_mhz == 300
    [slow] = look(Sensors({0: [sample(0, clock=132)]}), (0,), Limits(min_clock_mhz=2000), sleep=lambda _s: None)
    [gone] = look(Sensors({0: [sample(0)]}), (1,), Limits(), sleep=lambda _s: None)
    assert gone.problems == ("GPU 1: it can't be read: KeyError: 1",)
    assert slow.problems == ("GPU 0: clock 132 MHz, at least 2000 MHz wanted: it is throttled",)


def test_without_a_gpu_the_check_is_skipped(tmp_path: Path) -> None:
    if open_source() is not None:
        pytest.skip("this machine has a GPU")
    assert mtpbench("ci", "precheck", cwd=tmp_path, check=0).stdout.startswith("skipped: no GPU")
    assert "--need-gpu" not in mtpbench("ci", "precheck", "--need-gpu", cwd=tmp_path, check=2).stdout


def test_a_gpu_of_which_nothing_can_be_read_is_not_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every sensor says N/A, as in a container without the devices: nobody knows."""

    def silent() -> Sensors:
        return Sensors({0: [sample(0, None, None, None, None)]})

    monkeypatch.setattr(Sensors, "close", lambda _self: None, raising=False)
    monkeypatch.setattr("harness.cli.ci.open_source", silent)
    monkeypatch.setattr("harness.machine.idle_check._APART_S", 0.0)
    needed = mtpbench("ci", "precheck", "--need-gpu", cwd=tmp_path, check=2)
    assert "GPU 0: memory, temperature and power can't be read" in " ".join(needed.stderr.split())
    assert "not known" in mtpbench("ci", "precheck", cwd=tmp_path, check=0).stdout
