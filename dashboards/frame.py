"""What all pages of a site share: head, navigation, banners, and the parts that site.js brings to life."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dashboards.charts import colours
from dashboards.markup import text
from dashboards.site import Site

PROJECT = "mtpbench"


def page(site: Site, title: str, body: str, *, depth: int = 0, here: str = "", scripts: Sequence[str] = ()) -> str:
    """A whole page. `depth`: folders below the site's root; `here`: its own entry in the navigation."""
    root = "../" * depth
    links = [("index.html", "Overview"), ("runs.html", "Runs"), ("compare.html", "Compare two runs")]
    links += [("concurrency-16.html", "Concurrency 16")]
    links += [(f"scenario/{one.file}.html", one.name) for one in site.scenarios if one.series]
    entries = "".join(
        f'<li><a href="{root}{text(target)}"{" aria-current=page" if target == here else ""}>{text(name)}</a></li>'
        for target, name in links
    )
    loaded = "".join(f'<script src="{root}{text(script)}"></script>' for script in ("assets/site.js", *scripts))
    # A simulated store is old on purpose.
    watched = "" if site.only_simulated else " data-age"
    return (
        f'<!doctype html><html lang="en" data-root="{root}"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" '
        f'content="light dark"><link rel="icon" href="data:,"><title>{text(title)} – {PROJECT}</title>'
        f'<link rel="stylesheet" href="{root}assets/site.css">{loaded}</head><body>'
        '<a class="skip" href="#main">Skip to content</a>'
        f'<header><a class="name" href="{root}index.html">{PROJECT}</a>'
        f'<nav aria-label="Pages"><ul>{entries}</ul></nav></header>'
        f'<main id="main" tabindex="-1">{_simulated(site)}{body}</main>'
        f'<footer>Built <time datetime="{text(site.built)}"{watched}>{text(site.built)}</time> from '
        f"{len(site.archive.kept)} stored runs, for the day {site.today}. Nothing on these pages asks another server."
        "</footer></body></html>"
    )


def _simulated(site: Site) -> str:
    if not site.simulated:
        return ""
    if site.only_simulated:
        return '<p class="banner">SIMULATED: every number here comes from a simulation. Nothing was measured.</p>'
    return (
        f'<p class="banner">{len(site.simulated)} of {len(site.archive.kept)} runs are SIMULATED: nothing was '
        "measured. Each says so, and none judges.</p>"
    )


def word(verdict: str) -> str:
    """A verdict, never by its colour alone."""
    return f'<span class="word {text(verdict)}">{text(verdict)}</span>'


SPANS = (("30", "30 nights"), ("60", "60 nights"), ("180", "180 nights"), ("", "all nights"))


def controls(relative: bool) -> str:
    """How many nights charts show, and whether values or percent. site.js reads both."""
    spans = "".join(
        f'<option value="{value}"{" selected" if value == "60" else ""}>{title}</option>' for value, title in SPANS
    )
    scales = "".join(
        f'<option value="{value}"{" selected" if (value == "relative") == relative else ""}>{title}</option>'
        for value, title in (("relative", "in % off each row's median"), ("values", "as they are"))
    )
    return (
        f'<div class="filters"><label>Nights shown<select id="span">{spans}</select></label>'
        f'<label>Values<select id="scale">{scales}</select></label></div>'
    )


def legend(arms: Iterable[str]) -> str:
    """Which colour is which arm."""
    entries = "".join(
        f'<li><svg width="14" height="10" aria-hidden="true"><rect width="14" height="10" rx="2" '
        f'fill="{colour}"/></svg>{text(arm)}</li>'
        for arm, colour in colours(tuple(arms)).items()
    )
    return f'<ul class="legend" aria-label="Colours of the arms">{entries}</ul>'


def figure(caption: str, said: str, **asks: object) -> str:
    """A chart's place: caption, a sentence for who can't see it, the drawing, and its table. `asks`: for site.js."""
    data = "".join(f' data-{name}="{text(value)}"' for name, value in asks.items())
    return (
        f"<figure{data}><figcaption>{text(caption)}{f'<p>{text(said)}</p>' if said else ''}</figcaption>"
        '<div class="drawing"></div><details class="data"><summary>Table and download</summary></details></figure>'
    )
