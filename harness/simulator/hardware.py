"""What a machine can do: the types below are the format of scenarios/hardware/*.yaml and its documentation.

Every number of such a file says in a comment where it comes from, or that it is assumed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, Field, ValidationError, model_validator

from harness.errors import Problem, ScenarioError
from harness.fields import FROM_FILE, Count, Duration, Name, Strict
from harness.scenario.yaml_file import MAX_BYTES, KeyPath, problems_of, read_yaml

Share = Annotated[float, Field(gt=0, le=1)]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]


class AttentionKernel(Strict):
    """A kernel that serves decode or verify attention of a paged FP8 KV cache."""

    query_tokens: Count
    """Query tokens of a sequence that one workgroup holds: it reads each KV byte once for all of them."""

    heads: Count = 16
    """Query heads that one workgroup holds."""

    segments: Literal["none", "triton", "aiter", "mtp", "even"]
    """How KV is cut: see harness/simulator/attention.py."""

    workgroups_per_cu: Count
    """Workgroups that a compute unit holds at once."""

    per_key: Duration
    """Time in which one workgroup gets through one KV token when nothing but its own latency limits it."""

    stream: Share
    """Share of the memory bandwidth at which issued KV bytes flow when every compute unit is busy."""

    launch: Duration
    """Fixed time of a call, its reduction kernel included."""

    ragged: Annotated[float, Field(ge=0, le=1)] = 0.0
    """How much of the longest sequence's excess over the mean a call waits for: 0 cuts work evenly."""


class Arms(Strict):
    """Which kernel serves which call."""

    unhooked: Name
    """Target-verify of SGLang as it is."""

    upstream: Name
    """Target-verify with `verify: upstream`."""

    assembly: Name | None = None
    """What `unhooked` and `upstream` are with SGLang 0.5.20 and newer on AMD, unless SGLANG_ASM_VERIFY_ATTN=0: its
    assembly kernel, draft-extend included. Absent: as in older versions."""

    generic: Name
    """Target-verify with `verify: generic`."""

    in_tree: Name
    """Target-verify with `verify: in-tree`."""

    decode: Name
    """Plain decode, and the draft model's decode passes."""

    draft_extend: Name
    """The draft model's pass over the verified tokens, unless the plug-in's arm takes it over too."""


class PrefillAttention(Strict):
    """Attention of a prefill on one backend."""

    products: Literal["bf16", "fp8"] = "bf16"
    """The type of its products, whose matrix rate the shares are of."""

    attention: Share
    """Share of the matrix rate that attention within the chunk reaches."""

    prefix: Share
    """Share of the matrix rate that attention to earlier chunks, read from the paged cache, reaches."""


class Prefill(Strict):
    """How a prefill chunk runs: max(device, host's launches) + gap. The result of a chunk is handled once the next one
    is launched (overlap scheduling)."""

    gemm: Share
    """Share of the matrix rate that its dense products reach, linear attention included."""

    experts: Share
    """Share of the matrix rate that its experts reach."""

    attention: dict[Name, PrefillAttention]
    """Attention by backend, as SGLang's flags name them. The first serves those that are not named here."""

    launch_layer: Duration
    """Host's time to launch the kernels of a dense layer."""

    launch_expert_layer: Duration
    """Host's time to launch the kernels of a layer with experts."""

    gap: Duration
    """Host's time between two chunks in which the device waits."""


class AllReduce(Strict):
    """Sum over the ranks of one host."""

    latency: Duration
    """Of a call on a few bytes."""

    gb_per_s: Positive
    """Rate a rank at which large ones go."""


class HostStep(Strict):
    """What the host does in a decode step. `step` runs beside the device, `gap` does not:
    the step takes max(step + request x batch, device + gap + gap_request x batch)."""

    step: Duration
    """Time that no step is shorter than."""

    request: Duration
    """What each running request adds to it."""

    gap: Duration
    """Time in which the device waits for the host whatever happens."""

    gap_request: Duration
    """What each running request adds to that."""


class Host(Strict):
    """What the scheduler and the client cost."""

    plain: HostStep
    """Without speculation."""

    speculative: HostStep
    """With drafts."""

    tensor_parallel: Duration
    """What a step takes longer with several ranks, which must agree on each batch."""

    eager_layer: Duration
    """Time a layer to launch its kernels one by one, where no graph fits the batch."""

    eager_draft_extend: Duration = 0.0
    """What a step takes longer where no graph holds the draft model's pass over the verified tokens."""

    arrival: Duration
    """From the client's send to the scheduler's queue."""

    arrival_token: Duration
    """What each token of the prompt adds to that: read, checked, handed over."""

    delivery: Duration
    """From a step's end to the client."""

    delivery_request: Duration
    """What each request before it in the batch adds to that: streams are written one after the other."""

    turnaround: Duration
    """From a client's last token to its next request."""


class Noise(Strict):
    """What differs between things that should be equal, as coefficients of variation."""

    launch: NotNegative
    """Between launches of one server."""

    step: NotNegative
    """Between steps of one launch."""

    texts: Annotated[float, Field(ge=0, le=1)]
    """Share of answers that rounding makes others from launch to launch, with acceptance of their own."""

    delivery: Duration
    """Not one: each event reaches the client up to so much later, evenly."""


class FittedOn(Strict):
    """Rows of a measured run on which constants were fitted: they are no test of the simulator."""

    scenario: Name
    """Its name."""

    tp: Count
    """Tensor-parallel size."""

    arms: list[Name]
    """Which arms."""

    concurrency: list[Count]
    """Which levels."""

    input_tokens: Count | None = None
    """At which prompt length, where the scenario sweeps them."""

    model: Name | None = None
    """Of which model, where the scenario has had several."""


class Hardware(Strict):
    """A machine file."""

    version: Literal[1]
    """Of the file format: 1."""

    name: Name
    """Names the machine in results."""

    gpu_vendor: Literal["amd", "nvidia"]
    """Must be the scenario's."""

    compute_units: Count
    """CUs or SMs of a GPU."""

    memory_gib: Positive | None = None
    """Memory of a GPU as its driver counts it, in GiB: what weights and caches must fit into."""

    memory_tb_per_s: Positive
    """Memory bandwidth that a read kernel reaches."""

    matrix_tflops: dict[Literal["bf16", "fp8", "fp4"], Positive]
    """Dense matrix rate, by the type of the weights."""

    weight_stream: Share
    """Share of the memory bandwidth at which a decode step's dense weights flow."""

    expert_stream: Share
    """Share of the memory bandwidth at which the weights of its experts flow, which one large kernel reads."""

    decode_gemm: Share
    """Share of the matrix rate that a decode step's products reach at best."""

    layer: Duration
    """Time of a layer's small kernels in a decode step (norms, rope, convolution, gating), inside a graph."""

    token: Duration
    """What each token of the batch adds to that."""

    draft_pass: Duration
    """What a pass of the draft model takes beyond a layer and the head: sampling, embedding, projection."""

    prefill: Prefill
    """Prefill."""

    all_reduce: AllReduce
    """Tensor parallelism."""

    host: Host
    """Scheduler and client."""

    noise: Noise
    """Spread."""

    kernels: dict[Name, AttentionKernel]
    """Attention kernels by name."""

    arms: Arms
    """Who serves what."""

    draft_backends: dict[Name, Name] = {}
    """Who serves the draft model's passes where `speculative-draft-attention-backend` names a backend."""

    fitted_on: list[FittedOn] = []
    """What was fitted, and hence is not predicted."""

    chunked_prefill: Count
    """SGLang's default for --chunked-prefill-size on this machine."""

    @model_validator(mode="after")
    def _known(self) -> Hardware:
        for call, kernel in self.arms:
            if kernel is not None and kernel not in self.kernels:
                raise ValueError(f"arms.{call} names the kernel {kernel!r}; there are: {', '.join(self.kernels)}")
        for backend, kernel in self.draft_backends.items():
            if kernel not in self.kernels:
                raise ValueError(f"draft_backends.{backend} names the kernel {kernel!r}, which is not in `kernels`")
        if "bf16" not in self.matrix_tflops:
            raise ValueError("`matrix_tflops` needs at least bf16")
        if not self.prefill.attention:
            raise ValueError("`prefill.attention` needs at least one backend")
        return self

    @property
    def bandwidth(self) -> float:
        """Bytes a second."""
        return self.memory_tb_per_s * 1e12

    def matrix_rate(self, weights: str) -> float:
        """FLOP a second for weights of a type; bf16's where the machine has no other."""
        rates = {str(kind): rate for kind, rate in self.matrix_tflops.items()}
        return rates.get(weights, rates["bf16"]) * 1e12


def load_hardware(path: Path) -> Hardware:
    """Reads a machine file. Raises ScenarioError with file, line and key of everything that is wrong."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise _wrong([Problem(str(path), 0, "", f"larger than {MAX_BYTES} bytes: not a machine file")])
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _wrong([Problem(str(path), 0, "", f"can't be read: {error}")]) from error
    value, lines = read_yaml(text, str(path))
    if not isinstance(value, dict):
        raise _wrong([Problem(str(path), 1, "", "a machine file is a mapping of keys")])
    try:
        return Hardware.model_validate(value, context=FROM_FILE)
    except ValidationError as error:
        raise _wrong(problems_of(error, str(path), lines, _fields_at)) from error


def _wrong(problems: list[Problem]) -> ScenarioError:
    error = ScenarioError(problems)
    error.hint = "Machine files lie in scenarios/hardware; --hardware FILE names one."
    return error


def _fields_at(path: KeyPath) -> list[str]:
    """Names of the keys allowed at `path`."""
    kinds: list[type[BaseModel]] = [Hardware]
    for part in path:
        fields = [kind.model_fields[str(part)].annotation for kind in kinds if part in kind.model_fields]
        if fields:
            kinds = [model for annotation in fields for model in _models_in(annotation)]
    return [name for kind in kinds for name in kind.model_fields]


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models_in(argument)
