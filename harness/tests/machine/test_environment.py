"""Fingerprint and GPU telemetry: parsers on answers of the vendors' libraries."""

from __future__ import annotations

import sys
import time
import types
from typing import Any

import pytest

from harness.machine.fingerprint import fingerprint, packages
from harness.machine.telemetry import Nvml, Recorder, amd_sample, open_source
from harness.model import GpuSample
from kernel.source import source_hash

# As documented for amdsmi 6.4 on MI300 and MI350: the average power is "N/A", the current one in watts.
AMD_CLOCK = {"clk": 2100, "min_clk": 500, "max_clk": 2400, "clk_locked": False, "clk_deep_sleep": "N/A"}
AMD_POWER = {"current_socket_power": 1012, "average_socket_power": "N/A", "power_limit": 1400, "gfx_voltage": "N/A"}
AMD_VRAM = {"vram_total": 294896, "vram_used": 251904}


def test_amd_sample() -> None:
    sample = amd_sample(1.0, 3, AMD_CLOCK, AMD_POWER, 71, AMD_VRAM)
    assert sample == GpuSample(1.0, 3, 2100.0, 1012.0, 71.0, 251904.0)


def test_amd_sample_of_older_parts_and_of_nothing() -> None:
    older = {"current_socket_power": "N/A", "average_socket_power": 240}
    assert amd_sample(0.0, 0, {"cur_clk": 1700}, older, "N/A", None) == GpuSample(0.0, 0, 1700.0, 240.0, None, None)
    assert amd_sample(0.0, 0, None, None, None, None) == GpuSample(0.0, 0)


class FakeNvml(types.ModuleType):
    """nvidia-ml-py's functions, with answers recorded from an H200 under load; the temperature sensor fails."""

    NVML_CLOCK_SM, NVML_TEMPERATURE_GPU = 1, 0

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.closed = False

    def nvmlInit(self) -> None: ...
    def nvmlShutdown(self) -> None:
        self.closed = True

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, gpu: int) -> int:
        return gpu

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:
        return 294516

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        return types.SimpleNamespace(used=5038 * 2**20)

    def nvmlDeviceGetClockInfo(self, handle: int, kind: int) -> int:
        return 1980

    def nvmlDeviceGetTemperature(self, handle: int, kind: int) -> int:
        raise RuntimeError("not supported")

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.159.04"

    def nvmlSystemGetCudaDriverVersion(self) -> int:
        return 13000

    def nvmlDeviceGetName(self, handle: int) -> str:
        return "NVIDIA H200"


def test_nvml_sample_and_inventory() -> None:
    source = Nvml(FakeNvml())
    sample = source.read(1)
    assert (sample.gpu, sample.clock_mhz, sample.power_w, sample.temperature_c) == (1, 1980.0, 294.516, None)
    assert sample.memory_used_mb == 5038.0
    assert source.inventory()[0] == {"name": "NVIDIA H200", "driver": "580.159.04", "cuda_driver": "13.0"}


def test_source_is_found_and_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "amdsmi", None)
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml())
    source = open_source()
    assert source is not None
    with Recorder(source, (0, 1)).recording() as samples:
        time.sleep(0.1)
    assert {sample.gpu for sample in samples} == {0, 1}
    assert fingerprint(source)["gpus"][0]["name"] == "NVIDIA H200"


def test_no_library_no_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "amdsmi", None)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert open_source() is None
    with Recorder(None, (0,)).recording() as samples:
        pass
    assert samples == []


def test_fingerprint(monkeypatch: pytest.MonkeyPatch) -> None:
    for key, value in {
        "SGLANG_USE_AITER": "1",
        "NCCL_AUTH_TOKEN": "x",
        "HIP_VISIBLE_DEVICES": "0",
        "HOME": "/h",
    }.items():
        monkeypatch.setenv(key, value)
    monkeypatch.setenv("MTPBENCH_HOST", "node-7")
    found = fingerprint(None)
    assert found["host"] == "node-7"
    assert found["variables"]["SGLANG_USE_AITER"] == "1"
    assert found["variables"]["HIP_VISIBLE_DEVICES"] == "0"
    assert not {"NCCL_AUTH_TOKEN", "HOME"} & set(found["variables"])
    assert found["kernel_hash"] == source_hash()
    assert "gpus" not in found


def test_packages_of_another_interpreter() -> None:
    found = packages((sys.executable,))
    assert found["python"].startswith("3.")
    assert found["numpy"]
    assert packages(("/no/such/python",)) == {}
    assert packages(()) == {}
