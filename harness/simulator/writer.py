"""A simulated run on disk: an ordinary run, marked so that no reader can mistake it for a measured one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from harness import __version__
from harness.checks.passes import SIMULATED
from harness.model import LaunchRecord, Pass
from harness.scenario.format import Scenario
from harness.scenario.launch_plan import LaunchPlan, plan_launches
from harness.simulator.causes import Injection
from harness.simulator.hardware import Hardware
from harness.simulator.simulate import AcceptLength, serving_of, simulate_passes
from harness.store.runs import RunStore, utc_now


def environment(
    hardware: Hardware, seed: int, injected: Mapping[str, Injection], accept_length: AcceptLength | None
) -> dict[str, Any]:
    """The fingerprint of a simulated run: the machine file whole, so that two of them compare only if it is one."""
    return {
        "host": "simulated",
        "simulated": {
            "mtpbench": __version__,
            "seed": seed,
            "injected": {
                name: {"size": one.size, **({"arms": list(one.arms)} if one.arms else {})}
                for name, one in sorted(injected.items())
            },
            "accept_length": asdict(accept_length) if accept_length else None,
            "hardware": hardware.model_dump(mode="json"),
        },
    }


def write_run(
    store: RunStore,
    scenario: Scenario,
    hardware: Hardware,
    *,
    seed: int,
    injected: Mapping[str, Injection],
    accept_length: AcceptLength | None = None,
    progress: Callable[[Pass], None] = lambda _: None,
) -> None:
    """Simulates a scenario and saves each launch and pass as it is done."""
    plans = {plan.slug: plan for plan in plan_launches(scenario)}
    written = set()
    for done in simulate_passes(scenario, hardware, seed, injected, accept_length=accept_length):
        slug = done.record.key.launch_slug
        if slug not in written:
            graphs = serving_of(scenario, plans[slug], hardware, injected).graphs
            store.save_launch(launch_record(plans[slug], hardware, graphs))
            written.add(slug)
        store.save_pass(done.record, done.requests)
        progress(done)


def launch_record(plan: LaunchPlan, hardware: Hardware, graphs: tuple[int, ...] = ()) -> LaunchRecord:
    """The launch of a server that is not there; `graphs`: batch sizes of its decode graphs, as a server says them."""
    return LaunchRecord(
        slug=plan.slug,
        launch=plan.launch,
        arm=plan.arm.name,
        tp=plan.tp,
        server_start=0,
        started_at=utc_now(),
        command=(),
        environment={},
        status="ready",
        gpus=tuple(range(plan.tp)),
        described={"simulated": hardware.name, **({"decode_cuda_graph_bs": list(graphs)} if graphs else {})},
        verify=getattr(plan.arm.server, "verify", None) or "",
        findings=(SIMULATED,),
    )
