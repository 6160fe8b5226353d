"""A store → a static site: pages, data scripts, assets. Works from a file and from any web server; asks none."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
from collections.abc import Callable
from importlib import resources
from pathlib import Path

from dashboards import account_part, compare_page, data, overview, sixteen_page
from dashboards.charts import site_specs, vega_lite_version
from dashboards.markup import slug
from dashboards.scenario_page import scenario_page
from dashboards.site import Site
from dashboards.site_run import site_run
from dashboards.standalone import vega_bundle
from harness.errors import StoreError
from harness.explain.answer import Explanation
from harness.results.lines import TIE
from harness.store.archive import Kept
from harness.store.runs import rows_path

MARK = ".mtpbench-site"  # in every site: only such a folder is replaced
Watch = Callable[[str, int, int], None]  # what, done, of


def check_target(out: Path) -> None:
    """Raises StoreError where something else than a site of mtpbench is in the way."""
    if out.exists() and not (out / MARK).is_file() and (not out.is_dir() or any(out.iterdir())):
        raise StoreError(f"{out} is there and no site of mtpbench", "Name a new folder, or an older site.")


def write_site(site: Site, out: Path, cache_dir: Path, watch: Watch = lambda _what, _done, _of: None) -> int:
    """Writes the site, whole or not at all, in place of an older one. Returns its size in bytes.

    Raises StoreError where something else is in the way or the place can't be written.
    """
    _recover(out)
    check_target(out)
    name = f".{out.name}.{os.getpid()}.{secrets.token_hex(4)}"
    partial, aside = out.with_name(f"{name}.partial"), out.with_name(f"{name}.aside")
    try:
        partial.mkdir(parents=True)
        _assets(site, partial, cache_dir)
        _pages(site, partial, watch)
        _swap(partial, out, aside)
    except OSError as error:
        raise StoreError(f"can't write {error.filename or out}: {error.strerror}", "Choose another place.") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return sum(os.path.getsize(Path(folder) / name) for folder, _, names in os.walk(out) for name in names)


def _swap(partial: Path, out: Path, aside: Path) -> None:
    """The new site in place of the old one, which is removed last: killed at any point, one of the two is whole."""
    if not out.exists():
        partial.replace(out)
        return
    out.replace(aside)
    try:
        partial.replace(out)
    except OSError:
        aside.replace(out)
        raise
    shutil.rmtree(aside, ignore_errors=True)


def _recover(out: Path) -> None:
    """After a publish that was killed: its halves go, and the older site, if it had just been put aside, comes back."""
    if not out.parent.is_dir():
        return
    left = re.compile(rf"\.{re.escape(out.name)}\.(\d+)\.[0-9a-f]+\.(partial|aside)")
    for path in sorted(out.parent.iterdir()):
        match = left.fullmatch(path.name)
        if match is None or _alive(int(match[1])):
            continue
        if match[2] == "aside" and not out.exists():
            path.replace(out)
        else:
            shutil.rmtree(path, ignore_errors=True)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return pid != os.getpid()


def _assets(site: Site, root: Path, cache_dir: Path) -> None:
    specs = site_specs()
    bundle = vega_bundle(vega_lite_version(specs["nights"]["$schema"]), cache_dir)
    for name in ("site.css", "site.js"):
        _write(root / "assets" / name, (resources.files("dashboards") / "assets" / name).read_text(encoding="utf-8"))
    _write(root / "assets" / "vega.js", bundle)
    content = data.put("metrics", data.metrics_meta(site)) + data.put("tie", TIE) + data.put("specs", specs)
    _write(root / "assets" / "specs.js", content)
    _write(root / ".nojekyll", "")  # GitHub Pages serves the files as they are
    _write(root / MARK, json.dumps({"built": site.built}) + "\n")


def _pages(site: Site, root: Path, watch: Watch) -> None:
    watch("overview", 0, 1)
    _write(root / "index.html", overview.overview(site))
    _write(root / "runs.html", overview.runs(site))
    _write(root / compare_page.FILE, compare_page.compare_page(site))
    _write(root / sixteen_page.FILE, sixteen_page.sixteen_page(site))
    _write(root / "data" / "runs.js", data.runs_index(site))
    for number, view in enumerate(site.scenarios):
        watch("scenarios", number, len(site.scenarios))
        _write(root / "scenario" / f"{view.file}.html", scenario_page(site, view))
        folder = root / "data" / "scenario" / view.file
        _write(folder / "nights.js", data.scenario_nights(view))
        _write(folder / "nights.csv", data.nights_csv(view))
        _write(folder / "recent.js", data.put(f"recent:{view.file}", data.recent_points(site, view)))
        for at, one in enumerate(site.explained.get(view.name, [])):
            if isinstance(one.answer, Explanation):
                target = account_part.file_of(view, at)
                _write(root / target, account_part.account_data(one.answer, target))
        for name in site.shown:
            if any(one.key.row.metric == name for one in view.series):
                _write(folder / f"{name}.js", data.scenario_metric(site, view, name))
    for number, kept in enumerate(site.archive.kept):
        watch("runs", number, len(site.archive.kept))
        _run(site, kept, root)


def _run(site: Site, kept: Kept, root: Path) -> None:
    run, name = kept.run, slug(kept.run.path.name)
    lines, folder = site.reports[run.id].lines, root / "data" / "run"
    _write(folder / f"{name}.js", data.put(f"run:{name}", data.run_data(site, run, lines)))
    _write(folder / name / "lines.csv", data.lines_csv(lines))
    files = [f"../data/run/{name}/lines.csv"]
    for source in (run.path / "run.json", run.path / "scenario.yaml", rows_path(run.path)):
        if source.is_file():
            target = folder / name / ("rows.parquet" if source.suffix == ".parquet" else source.name)
            shutil.copyfile(source, target)
            files.append(f"../data/run/{name}/{target.name}")
    _write(root / "run" / f"{name}.html", site_run(site, kept, files))


def _write(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, encoding="utf-8")
