"""What an engine is: how a server is started, asked and read. One file each, one entry in ENGINES.

An engine is stateless; everything that a launch needs is in its settings and the LaunchContext.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Generic, Protocol, TypeVar

from harness.access import Access
from harness.engines.command import Command
from harness.errors import InvalidLaunchError, ServerDiedError, WorkloadError
from harness.fields import ServerSettings
from harness.http import ControlClient
from harness.model import Output

S = TypeVar("S", bound=ServerSettings, contravariant=True)


@dataclass(frozen=True)
class LaunchContext:
    """What a command line depends on besides the settings.

    `identity` is a fresh name that the server must give back when asked for its models: proof that the
    answering process is the one that we started. `max_context` is the longest request in tokens, prompt
    and output together.
    """

    port: int
    identity: str
    tp: int
    gpus: tuple[int, ...]
    max_concurrency: int
    max_context: int
    cache_dir: Path
    host: str = "127.0.0.1"
    kernel_cache: Path | None = None  # of this arm alone: what one arm compiles can't reach another
    plugin_dir: Path | None = None  # the verify kernel and its entry point, for engines that take it
    evidence_dir: Path | None = None  # where the server's processes write which kernel served them
    trace_dir: Path | None = None  # where its profiler writes
    image_python_path: str = ""  # PYTHONPATH that a container image sets by itself


class Engine(Protocol, Generic[S]):
    """One kind of server."""

    name: str
    health_path: str
    multi_gpu: bool  # may tp be above 1?
    evaluates: bool  # does an evaluator come with it?
    profiles: bool  # can it trace its device?

    def problems(self, settings: S) -> list[tuple[str, str]]:
        """Impossible combinations, as (key, message); the key is relative to `server`."""
        ...

    def dialect(self, settings: S, chat: bool) -> str:
        """The name in DIALECTS by which requests are made."""
        ...

    def speculative(self, settings: S) -> bool | None:
        """Does this arm draft tokens? None where only the server knows."""
        ...

    def gpu_count(self, settings: S, tp: int) -> int:
        """How many GPUs the server uses; 0 on a CPU."""
        ...

    def meaningful_output(self, settings: S) -> bool:
        """Is the text worth checking for garbage? Not with dummy weights or simulated acceptance."""
        ...

    def set_accept_length(self, settings: S) -> float | None:
        """The accept length that the settings prescribe, whatever the model says; None where drafts are judged."""
        ...

    def verify_arm(self, settings: S) -> str | None:
        """Who is to serve target-verify, and must bring evidence of it; None: the engine as it is."""
        ...

    def prepare(self, settings: S, cache_dir: Path) -> None:
        """Makes what a launch needs (a model file) once, before the first launch."""
        ...

    def command(self, settings: S, context: LaunchContext) -> Command | None:
        """How to start the server; None where it runs already (`base_url` then says where)."""
        ...

    def base_url(self, settings: S, context: LaunchContext) -> str: ...

    def access(self, settings: S) -> Access:
        """What a request needs besides its question. Raises WorkloadError where the environment lacks it."""
        ...

    def interpreter(self, settings: S, context: LaunchContext) -> tuple[str, ...]:
        """The command of the Python in which the server runs, to ask for package versions; empty if none."""
        ...

    def gsm8k(
        self, settings: S, context: LaunchContext, questions: int, parallel: int, data: str | None
    ) -> tuple[str, ...]:
        """The command that evaluates the running server on GSM8K; empty where `evaluates` is False."""
        ...

    async def identity(self, http: ControlClient) -> str | None:
        """The name under which the answering server serves its model."""
        ...

    async def describe(self, settings: S, http: ControlClient) -> dict[str, Any]:
        """What the server says of itself, without secrets: version, arguments."""
        ...

    async def counters(self, settings: S, http: ControlClient) -> dict[str, float]:
        """Its monotone counters now: differences over a pass are kept."""
        ...

    async def accept_length(self, settings: S, http: ControlClient) -> float | None:
        """Its own average accept length, for servers that do not report it for each request."""
        ...

    async def tokenize(self, settings: S, http: ControlClient, text: str) -> list[int]: ...

    async def detokenize(self, settings: S, http: ControlClient, ids: Sequence[int]) -> str: ...

    async def answer(
        self, settings: S, http: ControlClient, prompts: Sequence[Sequence[int]], output_tokens: int
    ) -> tuple[Output, ...]:
        """Greedy answers to prompts sent at once; empty where the engine can't say which tokens it made."""
        ...

    async def start_profile(self, settings: S, http: ControlClient, folder: Path, steps: int) -> bool:
        """Traces the next `steps` decode steps into `folder`; False where it can't or doesn't."""
        ...

    def parse_log(self, lines: Sequence[str]) -> list[dict[str, float]]:
        """Decode steps that the server's log reports."""
        ...


async def first_model(http: ControlClient) -> str | None:
    """The first id that `/v1/models` lists: every engine here has that endpoint."""
    answer = (await http.get("/v1/models")).json()
    models = answer.get("data") if isinstance(answer, dict) else None
    found = models[0].get("id") if isinstance(models, list) and models and isinstance(models[0], dict) else None
    return found if isinstance(found, str) else None


async def ask_tokens(http: ControlClient, body: dict[str, Any]) -> list[int]:
    """`POST /tokenize`: SGLang and vLLM take `prompt`, llama.cpp `content`; all answer with `tokens`."""
    reply = await http.post("/tokenize", body)
    answer = reply.json()
    tokens = answer.get("tokens") if reply.ok and isinstance(answer, dict) else None
    if not reply.status:
        raise ServerDiedError(
            f"the server at {http.base_url} does not answer: {reply.text[:200]}", "Is it still running? Start it again."
        )
    if not isinstance(tokens, list) or not all(type(token) is int and token >= 0 for token in tokens):
        raise WorkloadError(
            f"the server at {http.base_url} can't tokenise: POST /tokenize answered {reply.status}: {reply.text[:200]}",
            "Exact prompt lengths need its tokeniser. Use an engine that offers /tokenize.",
        )
    return tokens


async def ask_text(http: ControlClient, ids: Sequence[int], key: str) -> str:
    """`POST /detokenize`; `key` names the text in the answer."""
    reply = await http.post("/detokenize", {"tokens": list(ids)})
    answer = reply.json()
    if not reply.status:
        raise ServerDiedError(
            f"the server at {http.base_url} does not answer: {reply.text[:200]}", "Is it still running? Start it again."
        )
    if not reply.ok or not isinstance(answer, dict) or not isinstance(answer.get(key), str):
        raise WorkloadError(
            f"the server at {http.base_url} can't turn tokens into text: {reply.status}: {reply.text[:200]}",
            "Chat workloads need POST /detokenize.",
        )
    return str(answer[key])


def prometheus_counters(text: str, names: Mapping[str, str], ranks: Collection[str] = ()) -> dict[str, float]:
    """Samples of a Prometheus page, summed over labels; `names` maps a sample's name to ours.

    `{label}` in ours keeps a label apart: `device_seconds_{category}` counts each category for itself. `ranks` are
    labels of processes that share one piece of work, such as ``tp_rank``: over those that report it, it is the mean.
    """
    seen: dict[tuple[str, frozenset[tuple[str, str]]], list[float]] = {}
    for name, labels, value in _samples(text):
        if name in names and math.isfinite(value):
            try:
                ours = names[name].format_map(labels)
            except KeyError:
                continue
            work = frozenset((label, of) for label, of in labels.items() if label not in ranks)
            seen.setdefault((ours, work), []).append(value)
    totals: dict[str, float] = {}
    for (ours, _), values in seen.items():
        totals[ours] = totals.get(ours, 0.0) + fmean(values)
    return totals


def _samples(text: str) -> Iterator[tuple[str, Mapping[str, str], float]]:
    """(name, labels, value) of every line that can be read; one that can't is none, and takes no other with it."""
    from prometheus_client.parser import text_string_to_metric_families

    for line in text.split("\n"):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            found = [one for family in text_string_to_metric_families(line) for one in family.samples]
        except Exception:  # the parser has no error of its own: ValueError, IndexError, KeyError, …
            continue
        yield from ((one.name, one.labels, float(one.value)) for one in found)


async def ask_outputs(
    http: ControlClient, prompts: Sequence[Sequence[int]], output_tokens: int, timeout_s: float
) -> tuple[Output, ...]:
    """SGLang's `/generate`: all prompts in one batch, so that every arm verifies the same batch size."""
    body = {
        "input_ids": [list(prompt) for prompt in prompts],
        "sampling_params": {"temperature": 0, "max_new_tokens": output_tokens, "ignore_eos": True},
        "return_logprob": True,
        "top_logprobs_num": 2,
    }
    reply = await http.post("/generate", body, timeout_s=timeout_s)
    answers = reply.json()
    if not reply.status:
        raise ServerDiedError(f"the server broke off while it answered the output check: {reply.text[:200]}")
    if not reply.ok or not isinstance(answers, list):
        raise InvalidLaunchError(
            f"INVALID: the server can't answer the output check: POST /generate said {reply.status}: {reply.text[:200]}"
        )
    try:
        return tuple(read_output(answer["meta_info"]) for answer in answers)
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        shown = reply.text[:80]
        raise InvalidLaunchError(
            f"INVALID: what POST /generate answered to the output check can't be read ({error!r}): {shown}"
        ) from None


def read_output(meta: dict[str, Any]) -> Output:
    """From `meta_info` of an answer with `return_logprob` and two top log-probabilities. Raises for other things."""
    chosen = meta.get("output_token_logprobs") or []
    runners_up = []
    for (_, token, *_rest), best in zip(chosen, meta.get("output_top_logprobs") or [], strict=False):
        other = next(((int(t), float(v)) for v, t, *_ in best or [] if t != token and v is not None), None)
        if other is None:
            break
        runners_up.append(other)
    values = [value if isinstance(value, int | float) and math.isfinite(value) else None for value, *_ in chosen]
    return Output(tuple(int(token) for _, token, *_ in chosen), tuple(values), tuple(runners_up))
