"""The command `mtpbench`: which verbs there are, in which file of this folder each stands, and what is listed of it.

A verb's file is imported when the verb is called. Nothing else is imported here: `mtpbench --help` is there at once.
"""

from __future__ import annotations

from harness.cli.group import group, verb
from harness.cli.last_words import last_words

_HELP = """Serving benchmark and regression suite for Qwen3.5 on SGLang with MTP speculative decoding.

Start with `mtpbench run scenarios/quickstart.yaml`: it needs no GPU.
Exit codes: 0 all good, 2 the result (or the input) is invalid, 70 a bug of mtpbench, 130 interrupted; those of each
verb are in docs/exit-codes.md."""

# fmt: off
_SELFTEST = group("selftest", "Checks of mtpbench itself, as tables.",
    verb("explain", "explain:selftests",
         "Put causes into simulated servers, and count how often `explain` names them. A hundred take "
         "about ten minutes."),
    verb("stats", "trend:selftests",
         "Simulate launches with known effects: false positives, power, and pairs until they are found."),
    verb("series", "trend:selftests",
         "How often is the model of a series of nights right? Simulated nights with the truth known; 4 minutes."),
    verb("year", "publish:selftests",
         "Simulate a year of nights with injected changes: a store to try `publish` and `trend` on, nothing measured."),
    verb("dashboard", "publish:selftests",
         "Publish a simulated year in a temporary folder and measure it: time, size, and how soon the "
         "overview is drawn."),
    verb("client", "client",
         "Compare the client's time stamps with what a server wrote down, on this machine (5 minutes on two cores)."),
    verb("arrivals", "client",
         "Check an open loop: are requests sent on schedule, and are arrivals Poisson as the server sees them?"),
)
_KERNEL = group("kernel", "The in-tree verify-attention kernel: needs the extra `kernel`.",
    verb("inspect", "kernel",
         "Compile every configuration without a GPU: registers, spills, LDS, what a loop costs a KB (--arch gfx950)."),
    verb("bench", "kernel",
         "Check, then time the kernel and what it is compared with, on this GPU (--shape targets --output FILE)."),
)
_STORE = group("store", "A store as a whole: copy runs to and from it, check its files.",
    verb("push", "whole_store",
         "Copy runs to a store behind a URL. The same run again changes nothing; an unfinished one is "
         "copied as it is."),
    verb("pull", "whole_store",
         "Copy every finished run, logs included, into a store in a folder; what is there stays."),
    verb("verify", "whole_store", "Find damaged files: each is compared with its run's manifest and read."),
    verb("rows", "whole_store", "Write a run's Parquet file anew from its records."),
    verb("retire", "series",
         "Nobody asks for these series any more: they are not missed from now on, and no slowdown of theirs is told."),
    verb("rename", "series",
         "A scenario or an arm has a new name: nights under both names are one series, for every verb and page."),
    verb("close", "series",
         "A slowdown is not of the software: it is told no more, and the level after it is the one to compare with."),
    verb("prune", "series",
         "Delete the runs of older nights; their levels and changes stay as events, so that no slowdown is forgotten."),
)
_SCENARIOS = group("scenarios", "Scenarios made of other tools' configurations.",
    verb("import", "scenarios",
         "Make a scenario of each entry: `base` and `mtp` become arms, every flag, variable and client "
         "option comes along."),
)
_CI = group("ci", "What automation calls; each also works by hand: docs/ci.md.",
    verb("begin", "night",
         "A night begins: note in the store what it is to measure, so that whatever is missing in the end is missed."),
    verb("night", "night",
         "How the night went: steps that failed, and rows that were expected and are not there. Prints Markdown."),
    verb("comment", "ci",
         "The verdict of an A/B as a comment on a pull request, updated in place, and as a check. Prints the comment."),
    verb("precheck", "ci",
         "Is the node free, cool and unthrottled? Reads GPU memory, temperature, power and clock."),
    verb("sentinel", "ci",
         "Are the hosts as steady as they were? Judges new A/A runs, and marks the runs of hosts that drift."),
    verb("confirm", "ci",
         "Run the paired A/B of each unconfirmed alert of the trend, so that a person sees only what is confirmed."),
    verb("issues", "ci",
         "Write the text of an issue for each confirmed slowdown: "
         "FOLDER/NAME/{body.md,title,marker,owner}, issues.json."),
    verb("plan", "plan", "Cut a night into jobs that each fit a time limit: a scenario with some of its arms."),
    verb("missing", "plan",
         "What of tonight's plan is not in the store: jobs that died, arms and levels that they did not finish."),
    verb("inside", "plan",
         "Can servers be measured right here, inside an image? What it holds, and everything that is in the way."),
    verb("notify", "plan",
         "Tell people through a webhook when the nights' state changes, or when a night did not run."),
    verb("image", "images",
         "Print the newest image of SGLang for this GPU, pinned by its digest: for --image, and for $MTPBENCH_IMAGE."),
    verb("answer", "answer",
         "Answer an `/ab` before its verdict: measuring, and for how long; refused; failed; cancelled. "
         "Prints the comment."),
    verb("outside", "outside",
         "Can servers be measured from here, in containers of an image? Asks one, in seconds: network, folders, GPUs."),
    verb("sheet", "sheet",
         "One page of all steps, FOLDER/index.html, and one archive to send back, FOLDER.tar.gz."),
)
mtpbench = group("mtpbench", _HELP,
    verb("ab", "ab", "Did it get slower? Launch both sides in turn until it is sure, or the pairs are spent."),
    verb("aa", "ab",
         "What do equal servers differ by here? Measures the floor that `ab` and `compare` show beside each change."),
    verb("compare", "compare",
         "The same for what is stored: two runs, several on each side of the word vs, or one A/B run."),
    verb("explain", "explain",
         "Why did TPOT change? The account of each side, what of it changed, and which hypotheses that bears out."),
    verb("trend", "trend",
         "When did it change? Series over the nightly runs of a store, with alerts and confirmed changes."),
    verb("publish", "publish",
         "Write the dashboard: a static site that says whether anything is wrong tonight, and shows why."),
    verb("simulate", "simulate",
         "Run a scenario on a simulated machine: what would its table look like, and what if …?"),
    verb("run", "run", "Measure: start the scenario's servers, drive the load, save, report."),
    verb("report", "report", "Print a run's table again, as Markdown, as JSON, or write its report.html anew."),
    verb("validate", "scenario_files", "Check scenario files: every error with its file, line and key."),
    verb("list", "listing", "List the scenarios in a folder with their questions, or the runs in a store."),
    verb("schema", "scenario_files",
         "Print the JSON Schema of scenario files, for editors: every key with its type and meaning."),
    verb("environment", "environment", "Print this machine's fingerprint, as each run records it."),
    verb("import", "imported",
         "Bring in results of other tools, under their own names and definitions: see docs/importing.md."),
    verb("doctor", "doctor",
         "Check that what mtpbench relies on in SGLang is there and means the same: hooks, flags, metrics, endpoints."),
    verb("version", "version", "Print the version."),
    _SELFTEST,
    _KERNEL,
    _STORE,
    _SCENARIOS,
    _CI,
)
# fmt: on


def main() -> None:
    """Entry point: whatever ends a verb becomes a sentence and an exit code, see docs/exit-codes.md."""
    with last_words():
        mtpbench()
