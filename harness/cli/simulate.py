"""`mtpbench simulate`: a server that is not there."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from harness.cli.common import EXIT_INTERRUPTED, EXIT_INVALID, check_format, err, out, show
from harness.cli.group import verbs_of_a_file
from harness.cli.overrides import only_arms
from harness.errors import MtpbenchError
from harness.model import Pass
from harness.results.report import RENDERERS, build, to_rich
from harness.scenario import yaml_file
from harness.scenario.format import Scenario
from harness.simulator import against, against_kernel, breakdown
from harness.simulator.causes import CAUSES, Injection, check
from harness.simulator.hardware import Hardware, load_hardware
from harness.simulator.simulate import AcceptLength
from harness.simulator.writer import environment, write_run
from harness.store.runs import RunStore, StoredRun, load_run

_DEFAULT_MACHINE = {"amd": "mi355x.yaml", "nvidia": "h200.yaml"}
_MACHINES = Path("scenarios/hardware")
_BENCHED = "h200.yaml"  # the machine of kernel/results

HELP = """Run a scenario on a simulated machine: what would its table look like, and what if …?

No server, no GPU, seconds. The result is an ordinary run, marked SIMULATED wherever it is shown; `compare` refuses to
set it against a measured one. What is modelled, and how far off it is: docs/simulator.md.

What if the verify kernel took 10 % longer in one arm, and can `compare` see it over five launches?

    mtpbench simulate scenarios/h200-qwen35-tp1.yaml --launches 5 --seed 1

    mtpbench simulate scenarios/h200-qwen35-tp1.yaml --launches 5 --seed 2 --inject slower_kernel=0.1@mtp-in-tree

    mtpbench compare runs/FIRST runs/SECOND

Does a TPOT regression at concurrency 16 come from prefill or from the kernel? Inject each, and look at TTFT, step and
TPOT:

    mtpbench simulate scenarios/mi355x-qwen35-70k.yaml --inject prefill_interference=0.2

How far off is it for a run that was measured?

    mtpbench simulate --against docs/results/RUN

    mtpbench simulate --against kernel/results/h200-verify.json

"""
_CAUSES = "\n\n".join(f"`{cause.name}=SIZE` (SIZE: {cause.size}): {cause.meaning}." for cause in CAUSES.values())


verbs = verbs_of_a_file()


@verbs.command(help=f"{HELP}Causes that `--inject` knows:\n\n{_CAUSES}")
def simulate(
    scenario: Annotated[
        Path | None, typer.Argument(metavar="SCENARIO", help="A scenario file; not with --against.")
    ] = None,
    hardware: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The machine. Default: scenarios/hardware/mi355x.yaml or h200.yaml."),
    ] = None,
    inject: Annotated[
        list[str] | None,
        typer.Option(metavar="CAUSE=SIZE[@ARM]", help="Make something worse, in all arms or in one; may be repeated."),
    ] = None,
    arm: Annotated[list[str] | None, typer.Option("--arm", help="Only this arm; may be repeated.")] = None,
    launches: Annotated[int | None, typer.Option(min=1, help="Launches of each arm. Default: the scenario's.")] = None,
    accept_length: Annotated[
        float | None, typer.Option(min=1, help="Tokens a verify step yields in the mean. Default: the model's own.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of everything that is drawn.")] = 1,
    store: Annotated[Path, typer.Option(help="Folder for results.")] = Path("runs"),
    runs: Annotated[
        list[Path] | None,
        typer.Option(
            "--against",
            metavar="RUN",
            help="Print predicted beside measured: of a run, or a kernel bench; may be repeated.",
        ),
    ] = None,
    output: Annotated[str, typer.Option("--format", help="table, markdown or json.")] = "table",
) -> None:
    """See HELP."""
    check_format(output, RENDERERS)
    if (scenario is None) == (not runs):
        raise MtpbenchError(
            "give either a scenario file or --against RUN", "mtpbench simulate scenarios/h200-smoke.yaml"
        )
    if runs:
        _against(runs, hardware, seed, output)
        return
    assert scenario is not None, "checked above"
    loaded = _chosen(yaml_file.load(scenario), arm or [], launches)
    machine = _machine(hardware, loaded, scenario.parent / "hardware")
    injected = parse_injections(inject or [])
    check(injected, loaded.arms)
    accepted = AcceptLength(accept_length, 0.0) if accept_length is not None else None
    opened = RunStore.create(
        store, loaded, scenario.read_text(encoding="utf-8"), environment(machine, seed, injected, accepted)
    )
    total = loaded.launches * loaded.passes * len(loaded.arms) * len(loaded.tp) * len(loaded.levels())
    try:
        with err.status("") as status:
            done = 0

            def progress(_: Pass) -> None:
                nonlocal done
                done += 1
                status.update(f"simulating: {done} of {total} passes")

            write_run(opened, loaded, machine, seed=seed, injected=injected, accept_length=accepted, progress=progress)
    except KeyboardInterrupt:
        err.print(Text(f"interrupted: {opened.path} holds the passes that were finished", style="bold yellow"))
        err.print(
            Text("A simulated run is not resumed: simulate it again, with fewer launches or arms."), soft_wrap=True
        )
        raise typer.Exit(EXIT_INTERRUPTED) from None
    finally:
        opened.close()
    _show(load_run(opened.path), output)


def _against(runs: list[Path], hardware: Path | None, seed: int, output: str) -> None:
    """Predicted beside measured, of each run; of several all lines together at the end."""
    if len(runs) > 1 and output == "json":
        raise MtpbenchError("--format json shows one run", "Give one --against.")
    found = []
    for run in runs:
        if run.is_file():
            machine = load_hardware(hardware or _MACHINES / _BENCHED)
            show(against_kernel.against_kernel(run, machine), output, against_kernel.to_rich, against_kernel.RENDERERS)
            continue
        measured = load_run(run)
        found.append(against.against(measured, _machine(hardware, measured.scenario, _MACHINES), seed))
        show(found[-1], output, against.to_rich, against.RENDERERS)
    if len(found) > 1:
        out.print(Text(against.together(found), style="bold"), soft_wrap=True)


def _show(stored: StoredRun, output: str) -> None:
    report = build(stored)
    show(report, output, to_rich, RENDERERS)
    if output == "table":
        out.print(breakdown.to_rich(breakdown.breakdown(stored.passes)))
        out.print(Text(f"results: {stored.path}"), soft_wrap=True)
    elif output == "markdown":
        sys.stdout.write(breakdown.to_markdown(breakdown.breakdown(stored.passes)))
    if not report.valid:
        raise typer.Exit(EXIT_INVALID)


def _chosen(scenario: Scenario, only: list[str], launches: int | None) -> Scenario:
    """The scenario with some of its arms, and another number of launches."""
    chosen = only_arms(scenario, only)
    return chosen.model_copy(update={"launches": launches or scenario.launches})


def _machine(path: Path | None, scenario: Scenario, folder: Path) -> Hardware:
    vendor = getattr(scenario.server, "gpu_vendor", None)
    if path is None and vendor is None:
        raise MtpbenchError(
            f"{scenario.name} is for the engine {scenario.server.engine}", "The simulator knows SGLang only."
        )
    return load_hardware(path or folder / _DEFAULT_MACHINE[str(vendor)])


def parse_injections(texts: list[str]) -> dict[str, Injection]:
    """`CAUSE=SIZE` or `CAUSE=SIZE@ARM`. Raises MtpbenchError."""
    found: dict[str, Injection] = {}
    for text in texts:
        name, _, rest = text.partition("=")
        number, _, arm = rest.partition("@")
        try:
            size = float(number)
        except ValueError as error:
            raise MtpbenchError(
                f"--inject {text[:80]!r}: CAUSE=SIZE or CAUSE=SIZE@ARM", "Such as slower_kernel=0.1"
            ) from error
        before = found.get(name)
        if before and (before.size != size or not before.arms or not arm):
            raise MtpbenchError(f"--inject {name} is given twice", "Once, or once an arm with the same size.")
        arms = (*(before.arms if before else ()), *([arm] if arm else []))
        found[name] = Injection(size, arms)
    return found
