"""A store read by its rows says the same as its raw records, and what can't be read is named."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
from commands import mtpbench
from launches import launch, run

from harness.errors import StoreError
from harness.model import Finding
from harness.nightly.rulings import Judges
from harness.nightly.series import build as series_of
from harness.results.lines import summarise
from harness.results.report import build
from harness.selftest.year import EFFECTS, LAST_NIGHT, NAME, SLOWER, write_year
from harness.store.ab_record import Side, load_session
from harness.store.archive import Archive, Kept, read_archive, read_run
from harness.store.rows import parquet, read_rows, with_rows
from harness.store.runs import AB_FILE, QUARANTINE_FILE, StoredRun, load_run, rows_path
from harness.verdict.compare import Verdict, compare
from harness.verdict.facts import facts
from harness.verdict.pairs import DEFAULT_METRICS, measure

RESULTS = Path(__file__).parents[3] / "docs" / "results"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The committed results with rows beside them."""
    root = tmp_path_factory.mktemp("store")
    for path in RESULTS.glob("*-h200-smoke*"):
        shutil.copytree(path, root / path.name)
        target = rows_path(root / path.name)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(parquet(load_run(path)))
    return root


def both(store: Path) -> list[tuple[StoredRun, StoredRun]]:
    return [(load_run(file.parent), read_run(file.parent)) for file in sorted(store.glob("*/run.json"))]


def test_rows_say_what_raw_records_say(store: Path) -> None:
    for raw, rows in both(store):
        assert all(one.derived is not None and one.requests == () for one in rows.passes)
        assert {(line.arm, line.level): line for line in summarise(rows)} == {
            (line.arm, line.level): line for line in summarise(raw)
        }
        assert build(rows) == build(raw)
        arms = {arm: arm for arm in raw.scenario.arms}
        of_rows, of_raw = (measure(Side("", (one,), arms), DEFAULT_METRICS) for one in (rows, raw))
        assert of_rows == of_raw
        assert [(s.key, s.nights[0].value) for s in series_of([rows], DEFAULT_METRICS)] == [
            (s.key, s.nights[0].value) for s in series_of([raw], DEFAULT_METRICS)
        ]


def test_failed_passes_and_findings_survive_rows(tmp_path: Path) -> None:
    odd = Finding("cached_tokens", "found in a <cache>, really", invalid=True)
    made = run([launch(0, 0.01, findings=(odd,)), launch(1, 0.02)])
    failed = replace(launch(2, 0.03).record, status="server died")
    (tmp_path / "x.parquet").write_bytes(parquet(run(made.passes, failed=[failed])))
    table = read_rows(tmp_path / "x.parquet")
    assert table is not None
    back = with_rows(made, table)
    assert [one.record.findings for one in back.passes] == [(odd,), ()]
    assert [(record.key.launch, record.status) for record in back.failed] == [(2, "server died")]


def test_rows_of_another_version_are_made_again(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = next(store.glob("rows/*/*.parquet"))
    monkeypatch.setattr("harness.store.rows.ROWS_VERSION", 99)
    assert read_rows(path) is None
    assert read_run(next(store.glob("*/run.json")).parent).passes[0].requests


def test_what_cant_be_read_is_named_and_passed_over(store: Path, tmp_path: Path) -> None:
    for source in store.iterdir():
        shutil.copytree(source, tmp_path / source.name)
    head = json.loads((next(tmp_path.glob("*tp2*/run.json"))).read_text())
    for name, content in (("a-cut", "{"), ("b-old", json.dumps({**head, "store_version": 0})),
                          ("c-odd", json.dumps({**head, "scenario": {}}))):  # fmt: skip
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text(content)
    rows = next(tmp_path.glob("rows/*/*tp2*.parquet"))
    rows.write_bytes(b"PAR1 cut")
    archive = read_archive(tmp_path)
    assert [one.run.scenario.name for one in archive.kept] == ["h200-smoke"]
    assert len(archive.left_out) == 4
    for said in ("a-cut", "b-old has store version 0", "c-odd/run.json is damaged", f"{rows.name} is damaged"):
        assert any(said in text for text in archive.left_out), said
    with pytest.raises(StoreError) as error:
        read_rows(rows)
    assert error.value.hint == "`mtpbench store rows RUN` makes it anew."


def judged(archive: Archive) -> set[str]:
    """Scenarios whose nights have a value."""
    series = series_of(archive.nightly(), ["tpot_p50"])
    return {one.key.scenario for one in series if any(night.value is not None for night in one.nights)}


def test_quarantined_and_simulated_runs_judge_nothing(store: Path, tmp_path: Path) -> None:
    for source in store.iterdir():
        shutil.copytree(source, tmp_path / source.name)
    [folder] = [file.parent for file in tmp_path.glob("*tp2*/run.json")]
    (folder / QUARANTINE_FILE).write_text(json.dumps({"reason": "an unsteady host"}))
    archive = read_archive(tmp_path)
    assert [one.run.quarantine for one in archive.kept] == ["", "an unsteady host"]
    assert judged(archive) == {"h200-smoke"}
    (folder / QUARANTINE_FILE).write_text(json.dumps({"reason": "an unsteady host", "released": "2026-12-01"}))
    assert judged(read_archive(tmp_path)) == {"h200-smoke", "h200-smoke-tp2"}

    measured, drawn = run([0.01]), run([0.01], environment={"simulated": {"seed": 1}})
    assert Archive(tmp_path, (Kept(measured), Kept(drawn))).nightly() == [measured]
    assert Archive(tmp_path, (Kept(drawn),)).nightly() == [drawn]


def test_a_simulated_year_holds_what_was_injected_and_nothing_else_twice(tmp_path: Path) -> None:
    nights = 14
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        write_year(tmp_path / name, seed=seed, nights=nights)
    tables = [{p.name: p.read_bytes() for p in sorted((tmp_path / name).rglob("*.parquet"))} for name in "abc"]
    assert tables[0] == tables[1]
    assert set(tables[0].values()).isdisjoint(tables[2].values())
    with pytest.raises(StoreError, match="is not empty"):
        write_year(tmp_path / "a")

    archive = read_archive(tmp_path / "a")
    runs = archive.nightly()
    assert len(runs) == nights
    values = {}
    for one in series_of(runs, ["tpot_p50"]):
        values[one.key.row.arm, one.key.row.level.concurrency] = [night.value for night in one.nights]
    before, after = np.split(np.log(values["mtp-in-tree", 16]), [nights - 1 - SLOWER])
    factor = next(effect.factor for effect in EFFECTS if effect.before_end == SLOWER)
    assert np.mean(after) - np.mean(before) == pytest.approx(np.log(factor), abs=0.012)
    assert ("mtp-generic", 16) not in values  # it vanished earlier

    ab, aa = [one for one in archive.kept if one.session is not None][::-1]
    assert (load_session(aa.run.path).kind, ab.session.verdict) == ("aa", "FAIL")  # type: ignore[union-attr]
    [series] = [
        one
        for one in series_of(runs, ["tpot_p50"])
        if (one.key.row.arm, one.key.row.level.concurrency) == ("mtp-in-tree", 16)
    ]
    ruling = Judges(archive)(series)(0, nights - 1 - SLOWER, True)
    assert ruling is not None
    assert (ruling.closes, ruling.why) == (False, f"the A/B {ab.run.id} says FAIL")
    assert list(archive.aa_runs("simulated-b", NAME)) == [(aa.run, aa.session)]
    assert (aa.run.path / AB_FILE).is_file()
    assert runs[-1].created_at.startswith(str(LAST_NIGHT))
    assert LAST_NIGHT - timedelta(nights - 1) == min(s.nights[0].day for s in series_of(runs, ["tpot_p50"]))


SIMULATED = {"seed": 1, "mtpbench": "1", "injected": {}, "hardware": {"name": "none"}}


def test_a_simulated_run_is_never_compared_with_a_measured_one() -> None:
    drawn, measured = run([0.01] * 3, environment={"simulated": SIMULATED}), run([0.01] * 3)
    assert any(fact.startswith("simulated") for fact in facts(drawn, "mtp"))
    sides = (Side(name, (one,), {"mtp": "mtp"}) for name, one in (("base", measured), ("head", drawn)))
    assert compare(*sides).verdict is Verdict.INCOMPARABLE


def test_publish_from_the_command_line(tmp_path: Path) -> None:
    made = mtpbench("selftest", "year", "store", "--nights", 2, "--last", "2026-03-02", cwd=tmp_path, check=0)
    assert "next: mtpbench publish store site --today 2026-03-03 --ledger store/known-regressions.yaml" in made.stdout
    done = mtpbench("publish", "store", "site", "--today", "2026-03-03", cwd=tmp_path, check=0)
    assert done.stdout.startswith("site/index.html: 3 runs, ")
    assert "series of 12 metrics over 2 nightly runs" in done.stderr  # progress, where there is no terminal
    assert "NO_BASELINE" in (tmp_path / "site" / "index.html").read_text()
    (tmp_path / "empty").mkdir()
    for arguments, said in (
        (("empty", "other"), "empty holds no run that can be read"),
        (("store", "store"), "store is there and no site of mtpbench"),
        (("store", "other", "--metric", "tpot"), "'tpot' is no metric"),
        (("store", "other", "--renamed", "x"), "OLD=NEW is needed"),
    ):
        refused = mtpbench("publish", *arguments, cwd=tmp_path, check=2)
        assert said in refused.stderr
        assert "next:" in refused.stderr
    assert not (tmp_path / "other").exists()
