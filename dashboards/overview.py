"""The first page: is anything wrong tonight? Worst first, in words. And the list of all runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date

from dashboards.frame import page, word
from dashboards.markup import details, grid, items, line, text
from dashboards.site import ScenarioView, Site, long_label, shown_number, state_of
from dashboards.tables import Column, table
from harness.nightly.expected import STALE_DAYS
from harness.nightly.report import history
from harness.nightly.series import Series, night_of
from harness.nightly.told import ENDED, WRONG, Status, Told, headline, percent
from harness.results.report import Report
from harness.store.runs import StoredRun
from harness.verdict.compare import Verdict
from harness.verdict.pairs import Metric

_SPARK_NIGHTS = 45


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong: a card. `told`: the rows that it is seen in, the most telling first."""

    word: str
    sentence: str
    rows: tuple[Told, ...] = ()
    link: str = ""
    details: tuple[str, ...] = ()  # sentences for who wants to know all


def findings(site: Site) -> list[Finding]:
    """All that is wrong, worst first: rows that changed on one night for one arm are one finding."""
    out = [Finding(one.word.value, one.sentence, details=one.details) for one in site.troubles] + _of_rows(site)
    for view in site.scenarios:
        for run in _last_nights(view):
            report = site.reports[run.id]
            if not report.valid and (site.today - night_of(run)[0]).days <= STALE_DAYS:
                kind, why = state_of(report)
                sentence = f"The last night of {view.name} on {_host(run)} is no full result: {why}"
                out.append(Finding(kind, f"{sentence}{_lost_arms(report)}.", link=site.page_of(run)))
    order = ["INVALID", *(verdict.value for verdict in Verdict)]
    return sorted(out, key=lambda one: order.index(one.word) if one.word in order else order.index("MISSING"))


def _of_rows(site: Site) -> list[Finding]:
    primaries = {view.name: view.primary for view in site.scenarios}

    def telling(one: Told) -> tuple[bool, int]:
        row = one.series.key.row
        return (row.metric, row.level) != primaries.get(one.series.key.scenario), site.judged.index(row.metric)

    groups: dict[tuple[object, ...], list[Told]] = {}
    for one in site.told:
        if one.status in WRONG:
            key = one.series.key
            level = key.row.level if one.status in (Status.REGRESSED, Status.ALERT, Status.UNSTABLE) else None
            arm = key.row.arm if one.status is not Status.STALE else None  # a host that is silent is so in all arms
            groups.setdefault((one.status, key.scenario, key.host, arm, level, one.since), []).append(one)
    out = []
    for rows in groups.values():
        rows.sort(key=telling)
        first = rows[0]
        sentence = first.sentence
        key = first.series.key
        if first.status is Status.MISSING and len(rows) > 1:
            place = f"{len(rows)} rows of {key.scenario} on {key.host}"
            sentence = f"{key.row.arm} is missing since {first.since} in {place}: its scenario still runs."
        elif first.status is Status.STALE and len(rows) > 1 and first.since is not None:
            days = (site.today - first.since).days
            sentence = (
                f"{key.scenario} on {key.host} is stale since {first.since}: nothing was measured for {days} days."
            )
        out.append(Finding(first.verdict.value, sentence, tuple(rows), _scenario_page(site, first)))
    return out


def _scenario_page(site: Site, told: Told) -> str:
    view = next(view for view in site.scenarios if view.name == told.series.key.scenario)
    return f"scenario/{view.file}.html#{told.series.key.row.metric}"


def _host(run: StoredRun) -> str:
    return str(run.environment.get("host", "unknown host"))


def _last_nights(view: ScenarioView) -> list[StoredRun]:
    """The last nightly run of each host."""
    last = {_host(run): run for run in view.nightly}
    return sorted(last.values(), key=lambda run: run.created_at, reverse=True)


def _lost_arms(report: Report) -> str:
    by_arm: dict[str, list[bool]] = {}
    for of in report.lines:
        by_arm.setdefault(of.arm, []).append(bool(of.values))
    lost = [arm for arm, present in by_arm.items() if not any(present)]
    return f"; no value at all of {', '.join(lost)}" if lost else ""


def overview(site: Site) -> str:
    """index.html"""
    found = findings(site)
    rest = "".join(f"<li>{_card(one)}</li>" for one in found[:8])
    more = "".join(f"<li>{_card(one)}</li>" for one in found[8:])
    body = _answer(site, found)
    if found:
        body += f'<h2 id="wrong">What is wrong</h2><ol class="cards">{rest}</ol>'
        body += details(f"{len(found) - 8} more", f'<ol class="cards">{more}</ol>') if more else ""
    body += f'<h2 id="nights">Last nights</h2>{_nights(site)}{_set_aside(site)}{_accepted(site)}{_sessions(site)}'
    body += f'<h2 id="series">Every row that is judged</h2>{_series(site)}'
    return page(site, "Overview", body, here="index.html")


def _answer(site: Site, found: Sequence[Finding]) -> str:
    if found:
        first = found[0]
        verdict, sentence = first.word, first.sentence
    else:
        judged, sentence = headline([one for one in site.told if one.status not in ENDED])
        verdict, sentence = judged.value, sentence.partition(": ")[2]
    nights = [night_of(run)[0] for view in site.scenarios for run in view.nightly]
    facts = [_count(len(found), "finding") if found else "Nothing is wrong"]
    judged_rows = sum(one.status not in (*ENDED, Status.YOUNG) for one in site.told)
    young = sum(one.status is Status.YOUNG for one in site.told)
    facts.append(_count(judged_rows, "row") + " judged" + (f", {young} too young to be judged" if young else ""))
    facts.append(f"last night {_age(max(nights), site.today)}" if nights else "no nightly run is stored")
    return (
        f'<div class="answer {text(verdict)}"><p class="word">{text(verdict)}</p><h1>{text(sentence)}</h1>'
        f'<p class="soft">{text(" · ".join(facts))}</p></div>'
    )


def _count(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


def _age(day: date, today: date) -> str:
    days = (today - day).days
    return f"{day} ({'today' if days == 0 else 'yesterday' if days == 1 else f'{days} days ago'})"


def _card(one: Finding) -> str:
    rows = [row.sentence for row in one.rows]
    out = f'<p>{word(one.word)}</p><p class="what">{text(one.sentence)}</p>'
    more = details(f"{len(rows)} rows", items(rows)) if len(rows) > 1 else ""
    more += details(f"{len(one.details)} rows", items(list(one.details))) if len(one.details) > 1 else ""
    changes = [f"{row.series.key.row}: {told}" for row in one.rows[:1] for told in history(row)]
    more += details("Its history", items(changes)) if changes else ""
    out += f'<div class="folded">{more}</div>' if more else ""
    command = next((row.command for row in one.rows if row.command), "")
    out += f'<p class="small">Confirm with <code>{text(command)}</code></p>' if command else ""
    where = "Charts" if one.rows else "The run"
    return out + (f'<p class="small"><a href="{text(one.link)}">{where}</a></p>' if one.link else "")


def _nights(site: Site) -> str:
    rows = []
    for view in site.scenarios:
        for run in _last_nights(view):
            report, (day, _) = site.reports[run.id], night_of(run)
            days = (site.today - day).days
            moved = run is not _last_nights(view)[0]
            age = text(_age(day, site.today))
            if days > STALE_DAYS and not moved:
                age = f'<strong class="STALE">STALE: {age}</strong>'
            elif days > 1 and not moved:
                age = f'<strong class="ALERT">{age}</strong>'
            rows.append({
                "scenario": f'<a href="scenario/{text(view.file)}.html">{text(view.name)}</a>',
                "host": text(_host(run)) + (" (moved on)" if moved else ""),
                "night": age,
                "run": _headline(report),
                "rows": "moved on" if moved else word(_worst(view, _host(run))),
                "primary": _primary(view, run),
                "link": f'<a href="{text(site.page_of(run))}" aria-label="Run {text(run.id)}">run</a>',
            })  # fmt: skip
    columns = [
        Column("scenario", "scenario"), Column("host", "host"), Column("night", "last night"),
        Column("run", "that run"), Column("rows", "worst row"), Column("primary", "primary endpoint"),
        Column("link", ""),
    ]  # fmt: skip
    return table("last-nights", "The last run of each scenario on each host", columns, rows)


def _headline(report: Report) -> str:
    kind, why = state_of(report)
    return f"{word(kind)} {text(why)}"


def _worst(view: ScenarioView, host: str) -> str:
    return next((one.verdict.value for one in view.told if one.series.key.host == host), Verdict.NO_BASELINE.value)


def _primary(view: ScenarioView, run: StoredRun) -> str:
    """Each arm's value of the scenario's one number in its last night; one that has none is named."""
    if view.primary is None:
        return "none declared"
    metric, level = view.primary
    of_arms = {
        one.key.row.arm: one for one in view.current(metric) if (one.key.row.level, one.key.host) == (level, _host(run))
    }
    shown = []
    for arm in (arm for arm in view.arms if arm in of_arms):
        last = of_arms[arm].nights[-1]
        value = shown_number(last.value, of_arms[arm].metric)
        shown.append(f"{arm} {value}" if last.day == night_of(run)[0] else f"{arm} nothing since {last.day}")
    return text(f"{long_label(Metric.of(metric))} at {level.label}: {', '.join(shown) or '–'}")


def _set_aside(site: Site) -> str:
    """Runs that judge nothing, and what could not be read."""
    aside = [one.run for one in site.archive.kept if one.run.quarantine]
    out = ""
    if aside:
        entries = "".join(
            f'<li><a href="{text(site.page_of(run))}">{text(run.id)}</a>, {text(_host(run))}: '
            f"{text(run.quarantine)}</li>"
            for run in reversed(aside)
        )
        out += f"<h2>In quarantine: {_count(len(aside), 'run')}, judging nothing</h2><ul>{entries}</ul>"
    if site.archive.left_out:
        out += f"<h2>Could not be read</h2>{items(list(site.archive.left_out))}"
    return out


def _accepted(site: Site) -> str:
    """The ledger: what is excused, until when, and what it excuses now."""
    if not site.ledger.regressions:
        return ""
    rows = []
    for entry in site.ledger.regressions:
        now = [t for t in site.told if t.excused and entry.fits(t.series.key.scenario, t.series.key.row)]
        lapsed = entry in site.ledger.lapsed(site.today)
        place = [entry.scenario, entry.metric, *([f"arm {entry.arm}"] if entry.arm else [])]
        place += [f"TP{entry.tp}"] if entry.tp else []
        place += [f"load {entry.level:g}"] if entry.level else []
        rows.append({
            "what": text(", ".join(place)), "bound": f"{100 * entry.bound:g} %", "owner": text(entry.owner),
            "until": f'<strong class="ALERT">LAPSED {entry.expires}</strong>' if lapsed else str(entry.expires),
            "reason": text(entry.reason), "now": text("; ".join(t.sentence.partition(":")[0] for t in now) or "no row"),
        })  # fmt: skip
    columns = [
        Column("what", "accepted"), Column("bound", "up to", True), Column("until", "until"), Column("owner", "owner"),
        Column("reason", "why"), Column("now", "excuses now"),
    ]  # fmt: skip
    return f"<h2>Accepted regressions</h2>{table('ledger', 'Entries of the ledger', columns, rows)}"


def _sessions(site: Site) -> str:
    """The last paired comparisons."""
    rows = [
        {
            "run": f'<a href="{text(site.page_of(one.run))}">{text(one.run.created_at[:10])}</a>',
            "kind": "A/A" if one.session.kind == "aa" else "A/B",
            "scenario": text(one.run.scenario.name),
            "sides": text(f"{one.session.base.label} → {one.session.head.label}"),
            "verdict": word(one.session.verdict or "open"),
        }
        for one in list(reversed(site.archive.kept))
        if one.session is not None
    ]
    if not rows:
        return ""
    columns = [Column("run", "night"), Column("kind", "kind"), Column("scenario", "scenario"), Column("sides", "sides"),
               Column("verdict", "verdict")]  # fmt: skip
    return f"<h2>Paired comparisons</h2>{table('sessions', 'The last ten', columns, rows[:10])}"


def _series(site: Site) -> str:
    keys = [one.series.key for one in site.told]
    form = _filters(
        "series-rows",
        "Search rows",
        {
            "status": ("status", ["!moved", *(one.status.value for one in site.told)]),
            "scenario": ("scenario", [key.scenario for key in keys]),
            "metric": ("metric", [key.row.metric for key in keys]),
            "arm": ("arm", [key.row.arm for key in keys]),
            "load": ("load", [key.row.level.label for key in keys]),
        },
    )
    head = ("row", "status", "value", "change", "last 45 nights", "last night", "nights", "host")
    caption = "Worst first. Change: against the level before, where one is told."
    body = "".join(_series_row(site, one) for one in site.told)
    return form + grid(caption, head, body, name="series-rows", wide=True)


def _series_row(site: Site, one: Told) -> str:
    key, last = one.series.key, one.series.nights[-1]
    row, metric = key.row, one.series.metric
    delta = f"{percent(one.series, one.delta)} since {one.since}" if one.delta is not None else ""
    status = f"{one.status.value}{', accepted' if one.excused else ''}"
    name = f"{metric.label} at {row.level.label}, {row.arm}, TP{row.tp}"
    asks = {"status": one.status.value, "scenario": key.scenario, "metric": row.metric, "arm": row.arm,
            "load": row.level.label}  # fmt: skip
    cells = (
        f'<a href="{text(_scenario_page(site, one))}">{text(name)}</a>',
        f'<span class="word {one.status.value.upper()}">{status}</span>',
        shown_number(last.value, metric),
        text(delta),
        _spark(one.series),
        str(last.day),
        str(len(one.series.nights)),
        text(key.host),
    )
    return line(cells, right=(2, 6), data=asks)


def _spark(series: Series) -> str:
    """The last nights as a line: only its shape, the numbers stand beside it."""
    nights = series.nights[-_SPARK_NIGHTS:]
    values, first = [night.value for night in nights], nights[0].day
    low, span, days = min(values), max(values) - min(values) or 1.0, max(1, (nights[-1].day - first).days)
    points = [
        f"{108 * (night.day - first).days / days + 1:.0f} {20 - 18 * (night.value - low) / span:.1f}"
        for night in nights
    ]
    x, y = points[-1].split()
    return (
        f'<svg class="spark" viewBox="0 0 110 22" aria-hidden="true"><path d="M{"L".join(points)}"/>'
        f'<circle cx="{x}" cy="{y}" r="2"/></svg>'
    )


def _filters(rows: str, label: str, choices: dict[str, tuple[str, Iterable[str]]]) -> str:
    selects = ""
    for name, (title, values) in choices.items():
        options = "".join(_option(value) for value in dict.fromkeys(values))
        selects += f'<label>{text(title)}<select name="{name}"><option value="">all</option>{options}</select></label>'
    return (
        f'<form class="filters" role="search" data-rows="{rows}" aria-label="{text(label)}"><label>{text(label)}'
        f'<input type="search" name="words" autocomplete="off"></label>{selects}<button type="reset">Clear</button>'
        '<span role="status" class="soft"></span></form>'
    )


def _option(value: str) -> str:
    """A value to choose; one that begins with `!` is left out, and chosen at first."""
    if value.startswith("!"):
        return f'<option value="{text(value)}" selected>all but {text(value[1:])}</option>'
    return f"<option>{text(value)}</option>"


def runs(site: Site) -> str:
    """runs.html: every run, to open or to compare."""
    kept = list(reversed(site.archive.kept))
    form = _filters(
        "run-rows",
        "Search runs",
        {
            "scenario": ("scenario", [one.run.scenario.name for one in kept]),
            "host": ("host", [_host(one.run) for one in kept]),
            "state": ("state", [_state(site, one.run) for one in kept]),
        },
    )
    body = ""
    for one in kept:
        run, file = one.run, site.page_of(one.run)
        name = file.removeprefix("run/").removesuffix(".html")
        asks = {"scenario": run.scenario.name, "host": _host(run), "state": _state(site, run)}
        kind = {"aa": "A/A", "ab": "A/B"}.get(one.session.kind, "") if one.session else ""
        said = f"{kind} {_headline(site.reports[run.id])}"
        said += ' <strong class="ALERT">quarantined</strong>' if run.quarantine else ""
        said += ' <strong class="ALERT">SIMULATED</strong>' if run.simulated else ""
        pick = [
            f'<input type="radio" name="{side}" value="{text(name)}" aria-label="{text(run.id)} as {side.upper()}">'
            for side in ("a", "b")
        ]
        shown = (f'<a href="{text(file)}">{text(run.id)}</a>', text(run.scenario.name), text(_host(run)),
                 text(run.created_at[:16]), said)  # fmt: skip
        body += line([*pick, *shown], head=2, data=asks)
    heads = ("A", "B", "run", "scenario", "host", "begun", "what it is")
    return page(
        site,
        "Runs",
        "<h1>Every stored run, newest first</h1>"
        "<p>Open one, or choose A and B and compare them. Two single runs tell less than a paired A/B.</p>"
        f'{form}<form action="compare.html"><button>Compare A and B</button>'
        f"{grid('Runs', heads, body, name='run-rows', wide=True)}</form>",
        here="runs.html",
    )


def _state(site: Site, run: StoredRun) -> str:
    return "quarantined" if run.quarantine else state_of(site.reports[run.id])[0]
