"""The site: of the committed H200 results, of a small simulated store, and of names that try to break out."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from datetime import date, timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from dashboards.check import BROWSERS
from dashboards.data import to_csv
from dashboards.markup import slug
from dashboards.overview import findings
from dashboards.publish import MARK, write_site
from dashboards.site import Site, gather, recent
from harness.errors import MtpbenchError, StoreError
from harness.model import Finding
from harness.nightly.issues import issues
from harness.nightly.report import to_json
from harness.nightly.told import Status, percent
from harness.selftest.year import LAST_NIGHT, write_year
from harness.store.archive import Archive, Kept, read_archive
from harness.store.runs import QUARANTINE_FILE
from harness.verdict.accepted import Ledger
from harness.verdict.accepted import load as load_ledger

RESULTS = Path(__file__).parents[2] / "docs" / "results"
BUILT = "2026-11-30T06:00:00+00:00"
TODAY = LAST_NIGHT + timedelta(1)
HOSTILE = "</script><img src=x onerror=alert(1)>\"'&"
NO_LEDGER = Ledger(version=1)


def site_of(store: Path, today: date = TODAY, ledger: Ledger = NO_LEDGER) -> Site:
    return gather(read_archive(store), today, BUILT, ledger)


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> tuple[Site, Path]:
    """Six weeks, one night of them in quarantine, one run damaged; and its site."""
    root = tmp_path_factory.mktemp("simulated")
    write_year(root / "store", nights=42)
    runs = sorted((root / "store").glob("*/run.json"))
    (runs[14].parent / QUARANTINE_FILE).write_text(json.dumps({"reason": "its control was 40 % off"}))
    runs[15].write_text("{")
    site = site_of(root / "store", ledger=load_ledger(root / "store" / "known-regressions.yaml"))
    write_site(site, root / "site", cache)
    return site, root / "site"


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> tuple[Site, Path]:
    """Committed results, read from raw records: a sweep of each TP, and an A/B that device time cut short."""
    root = tmp_path_factory.mktemp("measured")
    site = site_of(store_of(root, "h200-smoke-4f5617", "h200-smoke-tp2-01ec78", "h200-ab-verify-d23e7b"))
    write_site(site, root / "site", cache)
    return site, root / "site"


def store_of(root: Path, *names: str) -> Path:
    """A store of some of the committed results."""
    store = root / "store"
    store.mkdir()
    for name in names:
        [run] = RESULTS.glob(f"*{name}")
        (store / run.name).symlink_to(run)
    return store


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Path:
    """A run all of whose names, paths and messages are markup."""
    archive = read_archive(store_of(tmp_path_factory.mktemp("one"), "h200-smoke-4f5617"))
    run = archive.kept[0].run
    arms = {arm: arm + HOSTILE for arm in run.scenario.arms}
    scenario = run.scenario.model_copy(
        update={"name": HOSTILE, "question": HOSTILE, "arms": {arms[a]: v for a, v in run.scenario.arms.items()}}
    )
    finding = Finding("evil", HOSTILE, invalid=True)
    passes = tuple(
        replace(p, record=replace(p.record, key=replace(p.record.key, arm=arms[p.record.key.arm]))) for p in run.passes
    )
    entry = {"rank": 0, "served": {HOSTILE: 1}, "error": HOSTILE}
    launches = tuple(
        replace(one, arm=arms[one.arm], verify="in-tree", evidence=(entry,), status=HOSTILE,
                packages={HOSTILE: HOSTILE}, findings=(finding,))
        for one in run.launches
    )  # fmt: skip
    evil = replace(
        run, path=run.path.parent / "<b>.." / f"{slug(HOSTILE)}", id=HOSTILE, scenario=scenario, passes=passes,
        launches=launches, environment={**run.environment, "host": HOSTILE, "commit": HOSTILE}, quarantine=HOSTILE,
    )  # fmt: skip
    judged = replace(evil, quarantine="", launches=tuple(replace(one, findings=()) for one in launches))
    judged = replace(judged, path=run.path.parent / HOSTILE.replace("/", "|"), id=f"{HOSTILE} judged")
    site = gather(Archive(Path(HOSTILE), (Kept(judged), Kept(evil)), (HOSTILE,)), TODAY, BUILT, NO_LEDGER)
    out = tmp_path_factory.mktemp("hostile") / "site"
    write_site(site, out, cache)
    return out


class Checked(HTMLParser):
    """What a page must have for who can't see it, and must not have at all."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words += data

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def read(page: Path) -> Checked:
    parser = Checked()
    parser.feed(page.read_text(encoding="utf-8"))
    return parser


def pages(site: Path) -> list[Path]:
    return sorted(site.rglob("*.html"))


def test_every_page_is_self_contained_and_its_links_lead_somewhere(
    simulated: tuple[Site, Path], measured: tuple[Site, Path], hostile: Path
) -> None:
    for site in (simulated[1], measured[1], hostile):
        assert len(pages(site)) >= 6
        for page in pages(site):
            found = read(page)
            links = [a.get("href") or a.get("src") or "" for tag, a in found.tags if tag in ("a", "link", "script")]
            for link in links:
                target, _, _ = link.partition("#")
                target, _, _ = target.partition("?")
                if link.startswith("data:") or not target:
                    continue
                assert not re.match(r"[a-z]+:|//", link), link
                assert (page.parent / target).is_file(), f"{page}: {link}"


def test_every_page_can_be_read_without_eyes_and_mouse(
    simulated: tuple[Site, Path], measured: tuple[Site, Path]
) -> None:
    for page in (*pages(simulated[1]), *pages(measured[1])):
        found = read(page)
        assert found.of("html")[0]["lang"] == "en"
        assert found.of("a")[0] == {"class": "skip", "href": "#main"}
        assert len(found.of("h1")) == 1
        assert all(th.get("scope") in ("col", "row", "colgroup") for th in found.of("th"))
        assert len(found.of("caption")) + (page.parent.name == "run") >= len(found.of("table"))
        assert sum(d.get("class") == "data" for d in found.of("details")) == len(found.of("figure"))
        ids = [a["id"] for _, a in found.tags if "id" in a]
        assert len(ids) == len(set(ids)), page


def test_simulated_is_said_on_every_page(simulated: tuple[Site, Path], measured: tuple[Site, Path]) -> None:
    assert all("SIMULATED" in read(page).words for page in pages(simulated[1]))
    assert not any("SIMULATED" in read(page).words for page in pages(measured[1]))


def test_the_overview_names_what_was_injected_worst_first(simulated: tuple[Site, Path]) -> None:
    site, out = simulated
    first, *others = findings(site)
    assert first.word == "FAIL"
    assert first.sentence.startswith(
        "TPOT at concurrency 16 (TP1, mtp-in-tree), simulated-year on simulated-b changed by +5."
    )
    assert {row.series.key.row.level.concurrency for row in first.rows} == {16}
    assert "since 2026-11-20" in first.sentence
    lost = next(one for one in others if one.word == "MISSING")
    assert lost.sentence == (
        "mtp-generic is missing since 2026-11-08 in 40 rows of simulated-year on simulated-b: its scenario still runs."
    )
    assert any(one.word == "INCOMPLETE" and "no value at all of mtp-generic" in one.sentence for one in others)
    words = read(out / "index.html").words
    for said in (
        "TTFT at concurrency 64 (TP1, mtp-upstream)", "its control was 40 % off", "can't be read", "simulated-person",
        "FAIL", "last night 2026-11-29 (yesterday)", "mtp-generic nothing since 2026-11-08",
    ):  # fmt: skip
        assert said in words, said
    [accepted] = [one for one in site.told if one.excused]
    assert accepted.series.key.row.metric == "ttft_p50"


def test_a_slowdown_has_one_number_on_every_page_in_the_trend_and_in_its_issue(simulated: tuple[Site, Path]) -> None:
    """As seen in use: overview and scenario page of one site gave +2.1 and +5.7 % for one row."""
    site, out = simulated
    slow = [one for one in site.told if one.status is Status.REGRESSED]
    assert slow
    texts = "".join(issue.body for issue in issues(site.told)).replace("\\", "")
    document = {one["sentence"]: one for one in json.loads(to_json(site.told))["series"]}
    [view] = site.scenarios
    overview_words, page_words = (read(out / name).words for name in ("index.html", f"scenario/{view.file}.html"))
    for one in slow:
        number, row = percent(one.series, one.delta or 0.0), str(one.series.key.row)
        assert f"{100 * document[one.sentence]['change']:+.1f} %" == number
        assert f"{number} since {one.since}" in overview_words
        assert f"{one.series.key.row.arm} {number} since {one.since}" in page_words
        assert number in next(line for line in texts.splitlines() if line.startswith(f"| {row} |"))
        [change] = [c for c in one.changes if one.series.nights[c.start].day == one.since]
        assert percent(one.series, change.delta) == number


def test_a_store_that_nobody_feeds_is_shouted(simulated: tuple[Site, Path]) -> None:
    site = gather(simulated[0].archive, TODAY + timedelta(9), BUILT, NO_LEDGER)
    stale = next(one for one in findings(site) if "stale" in one.sentence)
    assert stale.word == "MISSING"
    assert "stale since 2026-11-29: nothing was measured for 10 days" in stale.sentence


def test_quarantined_runs_are_drawn_and_do_not_judge(simulated: tuple[Site, Path]) -> None:
    site, out = simulated
    [view] = site.scenarios
    [aside] = [one.run for one in view.runs if one.run.quarantine]
    assert all(night.run.path != aside.path for one in view.series for night in one.nights)
    registered = (out / "data/scenario/simulated-year/tpot_p50.js").read_text()
    assert registered.count("its control was 40 % off") == 32  # 4 arms at 8 loads
    assert "judges nothing: its control" in read(out / site.page_of(aside)).words


def test_a_run_page_proves_which_kernel_served(simulated: tuple[Site, Path]) -> None:
    site, out = simulated
    last = site.scenarios[0].nightly[-1]
    words = read(out / site.page_of(last)).words
    for said in ("INCOMPLETE", "captured 24", "upstream 24", "never ready", "AMD Instinct MI355X (simulated)", "rocm"):
        assert said in words, said


def test_recent_is_the_mean_since_the_last_change_with_its_interval(simulated: tuple[Site, Path]) -> None:
    """Three nights at 1, 1 and 2: geometric mean 2^(1/3); t(.95, 2) = 2.92, sd of the logs = ln 2 / sqrt 3."""
    series = simulated[0].told[0].series
    nights = tuple(replace(night, value=value) for night, value in zip(series.nights[:3], (1.0, 1.0, 2.0), strict=True))
    found = recent(replace(series, nights=nights))
    assert found.value == pytest.approx(2 ** (1 / 3))
    assert found.high / found.value == pytest.approx(2 ** (2.919986 / 3), rel=1e-5)
    assert found.low * found.high == pytest.approx(found.value**2)


def test_measured_runs_keep_their_numbers(measured: tuple[Site, Path]) -> None:
    """As `mtpbench report` prints them: TPOT of MTP at 16 on one H200 is 5.63 ms."""
    _, out = measured
    name = "20261130T005138Z-h200-smoke-4f5617"
    text = (out / f"data/run/{name}.js").read_text()
    data = json.loads(text.removeprefix(f'mtpbench.put("run:{name}",').rstrip().removesuffix(");"))
    [line] = [one for one in data["lines"] if (one["arm"], one["load"]) == ("mtp", 16)]
    assert line["values"][data["metrics"].index("tpot_p50")][0] == pytest.approx(5.63, abs=0.005)
    words = read(out / "concurrency-16.html").words
    assert "5.63" in words
    assert "no nightly run" not in read(out / "index.html").words


def test_hostile_names_are_inert(hostile: Path) -> None:
    for page in pages(hostile):
        content = page.read_text(encoding="utf-8")
        assert "<img" not in content
        assert "<script>" not in content
        assert re.fullmatch(r"[A-Za-z0-9._-]+", page.name)
    for script in hostile.rglob("data/**/*.js"):
        assert "</script" not in script.read_text(encoding="utf-8")
    assert HOSTILE in read(hostile / "index.html").words


def test_names_of_files_and_cells_of_spreadsheets() -> None:
    assert slug("h200-smoke") == "h200-smoke"
    assert slug("a/../b") != slug("a-..-b")
    assert "/" not in slug("../../etc")
    assert not slug("..").startswith(".")
    assert to_csv([("=1+1", "a,b", -1.5)]) == '\'=1+1,"a,b",-1.5\n'


def test_what_is_no_site_is_never_replaced(tmp_path: Path, measured: tuple[Site, Path], cache: Path) -> None:
    (tmp_path / "keep.txt").write_text("x")
    with pytest.raises(StoreError, match="no site of mtpbench"):
        write_site(measured[0], tmp_path, cache)
    assert [path.name for path in tmp_path.iterdir()] == ["keep.txt"]
    (tmp_path / MARK).write_text("")
    write_site(measured[0], tmp_path, cache)
    assert not (tmp_path / "keep.txt").exists()


def test_an_empty_store_says_what_is_expected(tmp_path: Path) -> None:
    with pytest.raises(MtpbenchError, match="holds no run that can be read"):
        site_of(tmp_path)


# ---- in a browser


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    path = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if path is None:
        pytest.skip("no Chromium on this machine: pages are not opened")
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pages are not opened")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def opened(chromium: Any) -> Iterator[Any]:
    """Opens pages; at the end nothing may have gone wrong in any, and nothing have been asked of another host."""
    wrong: list[str] = []
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.on("console", lambda said: wrong.append(said.text) if said.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("dialog", lambda dialog: (wrong.append(f"dialog {dialog.message}"), dialog.dismiss()))
    page.on(
        "request", lambda asked: None if asked.url.startswith(("file:", "data:", "blob:")) else wrong.append(asked.url)
    )
    yield page
    context.close()
    assert wrong == []


def test_all_kinds_of_pages_draw(opened: Any, simulated: tuple[Site, Path], measured: tuple[Site, Path]) -> None:
    site, out = simulated
    last = site.page_of(site.scenarios[0].nightly[-1])
    own = measured[0].page_of(measured[0].archive.kept[0].run)
    for root, name, charts in (
        (out, "index.html", 0), (out, "runs.html", 0), (out, last, 6), (out, "concurrency-16.html", 3),
        (out, "scenario/simulated-year.html", 8), (measured[1], own, 6),
    ):  # fmt: skip
        opened.goto((root / name).as_uri())
        for figure in opened.locator("figure[data-spec]").all()[:charts]:
            figure.scroll_into_view_if_needed()
            figure.locator("svg.marks").wait_for()


def test_narrow_screens_and_dark_ones(opened: Any, simulated: tuple[Site, Path]) -> None:
    opened.emulate_media(color_scheme="dark")
    opened.set_viewport_size({"width": 390, "height": 800})
    for name in ("index.html", "runs.html", "concurrency-16.html", "compare.html", "scenario/simulated-year.html"):
        opened.goto((simulated[1] / name).as_uri())
        assert opened.evaluate("document.documentElement.scrollWidth") <= 390, name
    opened.locator("figure svg.marks").first.wait_for()
    label = opened.locator("figure svg.marks .role-axis-label text").first
    assert label.get_attribute("fill") == "#e6edf3"  # the ink of the dark scheme


def test_search_and_filters_by_keyboard(opened: Any, simulated: tuple[Site, Path]) -> None:
    opened.goto((simulated[1] / "index.html").as_uri())
    opened.keyboard.press("Tab")
    assert opened.evaluate("document.activeElement.className") == "skip"
    opened.keyboard.press("Enter")
    assert opened.evaluate("document.activeElement.id") == "main"
    rows, status = opened.locator("#series-rows > tr:visible"), opened.locator("form[data-rows] [role=status]")
    total = rows.count()
    opened.locator("input[name=words]").focus()
    opened.keyboard.type("tpot in-tree")
    assert rows.count() == 8
    assert status.inner_text() == f"8 of {opened.locator('#series-rows > tr').count()} shown"
    opened.locator("select[name=load]").select_option("16")
    assert rows.count() == 1
    assert "regressed" in rows.first.inner_text()
    opened.reload()
    assert rows.count() == 1  # the address keeps what was asked
    opened.get_by_role("button", name="Clear").press("Enter")
    opened.wait_for_function(f"document.querySelectorAll('#series-rows > tr:not([hidden])').length == {total}")


def test_a_chart_has_its_table_and_download(opened: Any, simulated: tuple[Site, Path]) -> None:
    opened.goto((simulated[1] / "scenario" / "simulated-year.html").as_uri())
    figure = opened.locator("figure", has_text="TPOT at concurrency 16, TP1").first
    figure.locator("summary").focus()
    opened.keyboard.press("Enter")
    figure.locator("table").wait_for()
    assert figure.locator("thead th").all_inner_texts()[0] == "night"
    assert figure.locator("tbody th").first.inner_text() == "2026-11-29"
    with opened.expect_download() as download:
        figure.get_by_role("button", name="Download CSV").press("Enter")
    saved = Path(download.value.path()).read_text()
    assert saved.splitlines()[0].startswith('night,"no-mtp, ms"')
    before = figure.locator("svg.marks").inner_html()
    opened.locator("#scale").select_option("values")
    opened.wait_for_function("b => document.querySelectorAll('figure svg.marks')[4].innerHTML !== b", arg=before)


def test_a_link_to_a_folded_metric_unfolds_it(opened: Any, simulated: tuple[Site, Path]) -> None:
    opened.goto((simulated[1] / "scenario" / "simulated-year.html").as_uri() + "#ttft_p50")
    figure = opened.locator("#ttft_p50 figure", has_text="TTFT at concurrency 64").first
    figure.scroll_into_view_if_needed()
    figure.locator("svg.marks").wait_for()
    assert "mtp-upstream +" in figure.locator("figcaption").inner_text()
    assert "accepted" in figure.locator("figcaption").inner_text()


def test_two_runs_are_compared_by_address(opened: Any, simulated: tuple[Site, Path]) -> None:
    site, out = simulated
    before, after = (site.scenarios[0].nightly[n].path.name for n in (-15, -1))
    opened.goto(f"{(out / 'compare.html').as_uri()}?a={before}&b={after}")
    opened.get_by_role("heading", name="Side by side", exact=True).wait_for()
    words = opened.locator("main").inner_text()
    assert "This is no verdict" in words
    assert "kernel_hash" in words
    line = opened.locator("#result tbody tr", has_text="mtp-in-tree").filter(has_text="TP1, 16").first.inner_text()
    assert line.endswith("B is worse")
    opened.locator("#metric").select_option("output_throughput")
    assert "tokens/s" in opened.locator("#result table").last.inner_text()
    opened.goto(f"{(out / 'compare.html').as_uri()}?a=%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E&b={after}")
    opened.get_by_text("There is no run <img").wait_for()
    # From the list of runs, without a mouse.
    opened.goto((out / "runs.html").as_uri())
    opened.locator("input[name=a]").nth(3).press("Space")
    opened.locator("input[name=b]").nth(0).press("Space")
    opened.get_by_role("button", name="Compare A and B").press("Enter")
    opened.get_by_role("heading", name="Side by side", exact=True).wait_for()


def test_hostile_names_do_nothing_in_a_browser(opened: Any, hostile: Path) -> None:
    for page in pages(hostile):
        opened.goto(page.as_uri())
        for figure in opened.locator("figure[data-spec]").all()[:2]:
            figure.scroll_into_view_if_needed()
            figure.locator("svg.marks, .drawing p").first.wait_for()
    assert opened.locator("img").count() == 0
