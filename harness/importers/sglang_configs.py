"""SGLang's nightly benchmark configuration (`scripts/ci/amd/benchmark-configs.yaml`) → scenarios.

An entry becomes a scenario, its variants `base` and `mtp` arms. Every key, flag, variable and client option is either
carried over or refused by name; nothing is dropped in silence. What the launcher there always passes
(`--context-length isl+osl+256`, `--max-running-requests max(conc)`), and how its client asks (lengths drawn between 0.8
of the asked and the asked, ten prompts a slot, two warm-ups a slot), is carried over too.

Read in sgl-project/sglang: generate_benchmark_matrix.py, run_benchmark.sh; InferenceX's benchmark_serving.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.errors import Problem, ScenarioError
from harness.scenario.format import Scenario
from harness.scenario.yaml_file import parse, read_yaml, to_yaml

RANGE_RATIO = 0.8  # run_benchmark.sh's default for the client's --random-range-ratio
PROMPTS_PER_SLOT, WARMUPS_PER_SLOT = 10, 2
CONTEXT_MARGIN = 256  # run_benchmark.sh: MAX_MODEL_LEN = ISL + OSL + 256
VARIANTS = ("base", "mtp")

# Keys that only name things there; kept as labels, from which result files take their names.
_LABELS = ("model-prefix", "precision", "runner", "framework", "runs-on", "rocm-version", "bench-backend", "ep", "isl",
           "osl", "dp-attn")  # fmt: skip
_KNOWN = {
    *("name", "model", "variants", "tp", "conc-list", "env", "mtp-env", "server-args", "mtp-server-args"),
    *("chat-template", "client-args", "mtp-client-args", *_LABELS),
}
_DEFAULTS: dict[str, Any] = {
    "variants": ["base"], "tp": 8, "ep": 1, "isl": 1024, "osl": 1024, "conc-list": "32", "dp-attn": False,
    "rocm-version": "rocm720", "bench-backend": "vllm",
}  # fmt: skip
_SPECULATIVE = {
    "speculative-algorithm": "algorithm",
    "speculative-algo": "algorithm",
    "speculative-num-steps": "steps",
    "speculative-eagle-topk": "topk",
    "speculative-num-draft-tokens": "draft_tokens",
}
# Client options that our client does anyway.
_ALWAYS = {
    "ignore-eos": "always so",
    "trust-remote-code": "of the client's tokeniser, which ours does not load",
    "save-result": "always so",
    "disable-tqdm": "of its display",
}
_BACKENDS = {"vllm": False, "sglang": False, "openai": False, "openai-chat": True}  # → does it send chats?


@dataclass(frozen=True)
class Carried:
    """One scenario made of an entry. `notes`: what means something slightly different here."""

    name: str
    text: str
    scenario: Scenario
    notes: tuple[str, ...] = ()


@dataclass
class _Entry:
    """An entry while it is read."""

    file: str
    line: int
    name: str
    values: Mapping[str, Any]
    leave_out: frozenset[str]
    refused: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def refuse(self, what: str, why: str) -> None:
        if what.lstrip("-") in self.leave_out:
            self.notes.append(f"left out as asked: {what}")
        else:
            self.refused.append(Problem(self.file, self.line, f"{self.name}: {what}", why))

    def get(self, key: str) -> Any:
        return self.values.get(key, _DEFAULTS.get(key))


def read_configs(
    text: str,
    file: str,
    *,
    recipes: Path | None = None,
    leave_out: Sequence[str] = (),
    only: Sequence[str] = (),
    version: str = "",
) -> list[Carried]:
    """All entries of a file as scenarios. Raises ScenarioError naming everything that has no place here.

    Args:
        recipes: the checkout that relative chat templates lie in (InferenceX there).
        leave_out: names of flags, options, variables or keys that may be dropped knowingly.
        only: names of entries; all if empty.
        version: SGLang's, against whose flags the scenarios are checked.
    """
    value, lines = read_yaml(text, file, aliases=True)
    entries = value.get("configs") if isinstance(value, dict) else None
    if not isinstance(entries, list) or not all(isinstance(one, dict) for one in entries):
        raise ScenarioError([Problem(file, 1, "configs", "a list of entries is expected")])
    found, problems, seen = [], [], set()
    for number, values in enumerate(entries):
        line = lines.get(("configs", number), 1)
        name = str(values.get("name", f"entry {number}"))
        if name in seen:
            problems.append(Problem(file, line, name, "this name stands there twice"))
        seen.add(name)
        if only and name not in only:
            continue
        entry = _Entry(file, line, name, values, frozenset(one.lstrip("-") for one in leave_out))
        document = _scenario(entry, recipes, version)
        problems += entry.refused
        if entry.refused:
            continue
        made = to_yaml(document)
        try:
            found.append(Carried(name, made, parse(made, f"{file} ({name})"), tuple(entry.notes)))
        except ScenarioError as error:
            problems += error.problems
    if unknown := [name for name in only if name not in seen]:
        problems.append(Problem(file, 1, "configs", f"no entry is called {', '.join(unknown)}"))
    if problems:
        refused = ScenarioError(problems)
        refused.hint = "What is refused by name may be left out knowingly: --leave-out NAME."
        raise refused
    return found


def _scenario(entry: _Entry, recipes: Path | None, version: str) -> dict[str, Any]:
    for key in entry.values:
        if key not in _KNOWN:
            entry.refuse(str(key), "an unknown key")
    for key in ("name", "model-prefix", "precision", "runner", "framework", "model"):
        if not entry.values.get(key):
            entry.refuse(key, "is required")
    if entry.get("framework") not in (None, "sglang"):
        entry.refuse("framework", f"{entry.get('framework')!r}: only sglang is served here")
    numbers = {key: _number(entry, key) for key in ("tp", "ep", "isl", "osl")}
    concurrency = _concurrency(entry)
    server: dict[str, Any] = {
        "engine": "sglang",
        "gpu_vendor": "amd",
        "model": str(entry.get("model")),
        **({"version": version} if version else {}),
        "ready_timeout": "40min",
        "stall_timeout": "3min",
        "request_timeout": "30min",
    }
    env, base = _variables(entry, "env"), _flags(entry, "server-args")
    flags: dict[str, Any] = {
        "context-length": numbers["isl"] + numbers["osl"] + CONTEXT_MARGIN,
        "max-running-requests": max(concurrency, default=1),
    }
    if str(entry.get("dp-attn")).lower() == "true":
        flags |= {"dp": numbers["tp"], "enable-dp-attention": True, "enable-prefill-delayer": True}
    if numbers["ep"] > 1:
        flags["ep-size"] = numbers["ep"]
    if template := _template(entry, recipes):
        flags["chat-template"] = template
    own, speculation = _split(entry, base)
    server |= {"env": env, "flags": flags | own}
    if speculation:
        server["speculation"] = speculation
    arms = {variant: _arm(entry, variant) for variant in _variants(entry)}
    workload, arrival = _load(entry, numbers["isl"], numbers["osl"], concurrency)
    return {
        "version": 1,
        "name": entry.name,
        "question": f"What does SGLang's nightly configuration {entry.name} reach?",
        "labels": {
            key: str(value).lower() if key == "dp-attn" else str(value)
            for key in _LABELS
            if (value := entry.get(key)) is not None
        },
        "server": server,
        "arms": arms,
        "tp": [numbers["tp"]],
        "workload": workload,
        "arrival": arrival,
    }


def _number(entry: _Entry, key: str) -> int:
    value = entry.get(key)
    try:
        number = int(str(value))
    except ValueError:
        number = 0
    if number < 1:
        entry.refuse(key, f"{value!r} is no number of 1 or more")
        return 1
    return number


def _concurrency(entry: _Entry) -> list[int]:
    words = str(entry.get("conc-list")).replace(",", " ").split()
    if not words or not all(word.isdecimal() and int(word) > 0 for word in words):
        entry.refuse("conc-list", f"{entry.get('conc-list')!r} is no list of numbers")
        return []
    return list(dict.fromkeys(map(int, words)))


def _variants(entry: _Entry) -> list[str]:
    found = entry.get("variants")
    names = [str(one) for one in found] if isinstance(found, list) else []
    if not names:
        entry.refuse("variants", "a list of base and mtp is expected")
    for name in names:
        if name not in VARIANTS:
            entry.refuse("variants", f"{name!r} is unknown: base, mtp")
    return [name for name in dict.fromkeys(names) if name in VARIANTS]


def _arm(entry: _Entry, variant: str) -> dict[str, Any]:
    """What the variant adds to the server."""
    if variant == "base":
        return {}
    flags, speculation = _split(entry, _flags(entry, "mtp-server-args"))
    changes: dict[str, Any] = {"env": _variables(entry, "mtp-env"), "flags": flags, "speculation": speculation}
    return {key: value for key, value in changes.items() if value}


def _variables(entry: _Entry, key: str) -> dict[str, str]:
    found = entry.get(key) or {}
    if not isinstance(found, dict):
        entry.refuse(key, "a mapping of variables is expected")
        return {}
    left = [str(name) for name in found if str(name) in entry.leave_out]
    entry.notes += [f"left out as asked: {name}" for name in left]
    kept = {str(name): value for name, value in found.items() if str(name) not in left}
    for name, value in kept.items():
        if value is None or isinstance(value, (list, dict)):
            entry.refuse(name, f"in {key}: {value!r} is no value of a variable")
    return {name: str(value) for name, value in kept.items()}


def _words(entry: _Entry, key: str) -> Iterator[tuple[str, str | bool | list[str]]]:
    """(flag without its dashes, value) of a string of flags, as the shell would cut it (`read -ra`)."""
    words = str(entry.get(key) or "").split()
    place = 0
    while place < len(words):
        word = words[place]
        place += 1
        if not word.startswith("--"):
            entry.refuse(word, f"in {key}: no flag stands before it")
            continue
        name, equals, value = word[2:].partition("=")
        values = [value] if equals else []
        while not equals and place < len(words) and not words[place].startswith("--"):
            values.append(words[place])
            place += 1
        yield name, True if not values else values[0] if len(values) == 1 else values


def _flags(entry: _Entry, key: str) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, value in _words(entry, key):
        if name in entry.leave_out:
            entry.notes.append(f"left out as asked: --{name}")
        elif name in out and out[name] != value:
            entry.refuse(f"--{name}", f"stands twice in {key}, with different values")
        else:
            out[name] = value
    return out


def _split(entry: _Entry, flags: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Flags as a scenario has them, and the speculation that they describe."""
    plain: dict[str, Any] = {}
    speculation: dict[str, Any] = {}
    for name, value in flags.items():
        if target := _SPECULATIVE.get(name):
            speculation[target] = str(value) if target == "algorithm" else _typed(value)
        else:
            plain[name] = _typed(value)
    if speculation and speculation.get("algorithm", "EAGLE") not in ("EAGLE", "NEXTN"):
        entry.refuse("--speculative-algorithm", f"{speculation['algorithm']}: EAGLE and NEXTN are known here")
    return plain, speculation


def _typed(value: Any) -> Any:
    """A number where the text is exactly that number's, so that the command line comes out as it was."""
    if isinstance(value, list):
        return [_typed(one) for one in value]
    if isinstance(value, str) and value.isdecimal() and str(int(value)) == value:
        return int(value)
    return value


def _template(entry: _Entry, recipes: Path | None) -> str:
    path = str(entry.get("chat-template") or "")
    if not path or Path(path).is_absolute():
        return path
    if recipes is None:
        entry.refuse("chat-template", f"{path} lies in the benchmark's own repository: --recipes FOLDER says where")
        return ""
    return str(recipes.absolute() / path)


def _load(entry: _Entry, isl: int, osl: int, concurrency: Sequence[int]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The client's side: how it asks, of both variants alike, because one scenario has one workload."""
    ratio, warmups, seed = RANGE_RATIO, WARMUPS_PER_SLOT, 1
    backend = str(entry.get("bench-backend"))
    if backend not in _BACKENDS:
        entry.refuse("bench-backend", f"{backend!r}: known are {', '.join(_BACKENDS)}")
    chat = _BACKENDS.get(backend, False)
    for key in ("client-args", "mtp-client-args"):
        for name, value in _words(entry, key):
            if name in entry.leave_out:
                entry.notes.append(f"left out as asked: --{name}")
                continue
            if name in _ALWAYS:
                continue
            if name in ("use-chat-template", "dsv4"):
                chat = True
                whose = "both variants, so that both are asked the same" if key.startswith("mtp") else "all variants"
                how = "; framed by the server's chat template, not by the client" if name == "dsv4" else ""
                entry.notes.append(f"--{name} became `chat: true` of {whose}{how}")
            elif name == "random-range-ratio" and _fraction(value) is not None:
                ratio = float(str(value))
            elif name == "seed" and str(value).isdecimal():
                seed = int(str(value))
            elif name == "request-rate" and value == "inf":
                continue
            else:
                shown = "" if value is True else f" {value}"
                entry.refuse(f"--{name}", f"in {key} ({shown.strip() or 'set'}): this client has no such option")
    arrival = {
        "concurrency": list(concurrency),
        "requests_per_slot": PROMPTS_PER_SLOT,
        "min_requests": PROMPTS_PER_SLOT * min(concurrency, default=1),
        "warmup_per_slot": warmups,
    }
    workload = {
        "prompts": "random",
        "input_tokens": _range(isl, ratio),
        "output_tokens": _range(osl, ratio),
        "seed": seed,
        **({"chat": True} if chat else {}),
    }
    return workload, arrival


def _fraction(value: object) -> float | None:
    try:
        number = float(str(value))
    except ValueError:
        return None
    return number if 0 < number <= 1 else None


def _range(length: int, ratio: float) -> int | dict[str, int]:
    """Lengths as the client draws them: int(length × ratio) to length, both ends included."""
    shortest = max(1, int(length * ratio))
    return length if shortest == length else {"min": shortest, "max": length}
