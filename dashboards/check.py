"""How long a year takes to publish, and how heavy and quick its overview is: `mtpbench selftest dashboard`."""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from dashboards.publish import write_site
from dashboards.site import Say, gather
from harness.selftest.year import write_year
from harness.store.archive import read_archive
from harness.verdict.accepted import load as load_ledger

BUILD_S, OVERVIEW_MB, DRAWN_S = 60.0, 1.5, 2.0
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
# What index.html brings with it.
_OVERVIEW = ("index.html", "assets/site.css", "assets/site.js")


@dataclass(frozen=True)
class Measured:
    """One line: what, its value with unit, its limit, and whether it holds; None where there is no limit."""

    what: str
    value: str
    limit: str = ""
    met: bool | None = None


def check_dashboard(folder: Path, nights: int, cache_dir: Path, say: Say) -> Iterator[Measured]:
    """Simulates a store below `folder`, publishes it there, and measures both."""
    store, out = folder / "store", folder / "site"
    started = time.perf_counter()
    made = write_year(store, nights=nights)
    yield Measured(f"simulate {made.runs} runs", f"{time.perf_counter() - started:.1f} s")

    started, used = time.perf_counter(), time.process_time()
    archive = read_archive(store)
    read = time.perf_counter() - started
    site = gather(archive, made.last + timedelta(1), f"{made.last}T06:00:00+00:00", load_ledger(made.ledger), say=say)
    judged = time.perf_counter() - started - read
    size = write_site(site, out, cache_dir, lambda what, done, _of: say(what) if not done else None)
    took, cpu = time.perf_counter() - started, time.process_time() - used
    yield Measured("read its rows", f"{read:.1f} s")
    yield Measured(f"judge {len(site.told)} rows and sum up", f"{judged:.1f} s")
    yield Measured(f"write {size / 1e6:.0f} MB of pages and data", f"{took - read - judged:.1f} s")
    yield Measured("publish, all in all", f"{took:.1f} s ({cpu:.1f} s of CPU)", f"{BUILD_S:g} s", took < BUILD_S)

    heavy = sum((out / name).stat().st_size for name in _OVERVIEW) / 1e6
    yield Measured("the overview with what it loads", f"{heavy:.2f} MB", f"{OVERVIEW_MB:g} MB", heavy < OVERVIEW_MB)
    drawn = drawn_after(out / "index.html")
    if drawn is None:
        yield Measured("the overview drawn", "no Chromium here")
    else:
        yield Measured("the overview drawn in headless Chromium", f"{drawn:.2f} s", f"{DRAWN_S:g} s", drawn < DRAWN_S)


def drawn_after(page: Path, tries: int = 3) -> float | None:
    """Seconds from the navigation to the first frame after all scripts ran, by the browser's clock: the best of some
    tries, since a busy machine only ever adds. None without a browser."""
    browser = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if browser is None:
        return None
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", "--timeout=10000"]
    times = []
    for _ in range(tries):
        with contextlib.suppress(subprocess.TimeoutExpired):
            done = subprocess.run(
                [*command, page.resolve().as_uri()], capture_output=True, text=True, timeout=60, check=False
            )
            found = re.search(r'data-ready="(\d+)"', done.stdout)
            times += [int(found[1]) / 1e3] if found else []
    return min(times, default=None)
