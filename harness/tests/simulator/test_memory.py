"""What fits a GPU: values worked out by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.errors import MtpbenchError
from harness.scenario import yaml_file
from harness.simulator.memory import Memory, estimate, memory_notes

GIB = 2**30
SCENARIO = Path(__file__).parents[3] / "scenarios" / "mi355x-qwen35-fp8-tp2.yaml"


def test_what_is_left_is_kv() -> None:
    memory = Memory(tp=2, budget=100 * GIB, weights=60 * GIB, state=8 * GIB, kv_per_token=32 * 1024)
    assert memory.tokens == 32 * GIB // (32 * 1024)
    assert memory.fits(2**16) == 16
    assert "all 16 requests of 65536 tokens fit" in memory.sentence(16, 2**16)
    assert "concurrency 17 QUEUES, 16 requests of 65536 tokens fit at once" in memory.sentence(17, 2**16)


def test_a_server_that_can_not_start_is_told() -> None:
    memory = Memory(tp=1, budget=50 * GIB, weights=60 * GIB, state=0, kv_per_token=1024)
    assert "it will not start" in memory.sentence(1, 1)


def test_kv_of_a_token_on_two_gpus() -> None:
    """397B at TP2: 15 of 60 layers are full attention and one more drafts; one KV head of 256 a GPU, K and V, FP8."""
    loaded = yaml_file.load(SCENARIO)
    server = loaded.arm("mtp-in-tree").server
    memory = estimate(server, 2, 64, 288)  # type: ignore[arg-type]
    assert memory.kv_per_token == (15 + 1) * 2 * 1 * 256
    assert memory.budget == pytest.approx(0.8 * 288 * GIB)
    plain = estimate(loaded.arm("no-mtp").server, 2, 64, 288)  # type: ignore[arg-type]
    assert plain.kv_per_token == 15 * 2 * 1 * 256
    assert memory.state == pytest.approx(5 * plain.state)  # its own, and one for each of four drafted tokens


def test_notes_name_the_arm_with_the_least_room() -> None:
    [note] = memory_notes(yaml_file.load(SCENARIO), 288)
    assert note.startswith("memory of mtp-")
    assert note.endswith("all 64 requests of 9216 tokens fit")
    [tight] = memory_notes(yaml_file.load(SCENARIO), 277)
    assert "concurrency 64 QUEUES" in tight
    [none] = memory_notes(yaml_file.load(SCENARIO), 240)
    assert "it will not start" in none


def test_an_unknown_model_says_nothing() -> None:
    loaded = yaml_file.load(SCENARIO)
    unknown = loaded.server.model_copy(update={"model": "nobody/knows"})
    with pytest.raises(MtpbenchError):
        estimate(unknown, 2, 64, 288)  # type: ignore[arg-type]
