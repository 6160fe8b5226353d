"""GPU clock, power, temperature and memory during a pass, so that a throttled pass can be seen.

amdsmi in ROCm images, nvidia-ml-py on NVIDIA, nothing elsewhere. Reading never disturbs a run: a sensor that
fails yields None.
"""

from __future__ import annotations

import contextlib
import importlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from harness.model import GpuSample

INTERVAL_S = 0.5


class Source(Protocol):
    """One vendor's library, opened."""

    vendor: str

    def read(self, gpu: int) -> GpuSample: ...

    def inventory(self) -> list[dict[str, str]]:
        """Name, driver and identity of every GPU."""
        ...

    def close(self) -> None: ...


def _number(value: object) -> float | None:
    """A sensor's number; libraries write "N/A" or a negative one where there is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if value >= 0 else None


def _try(call: Callable[[], Any]) -> Any:
    """The result, or None: vendors' libraries raise their own errors for a sensor that a GPU lacks."""
    try:
        return call()
    except Exception:  # the libraries' error trees share no base class, and no reading is worth a run
        return None


class Nvml:
    """NVIDIA, through nvidia-ml-py."""

    vendor = "nvidia"

    def __init__(self, library: Any) -> None:
        self._lib = library
        library.nvmlInit()

    def read(self, gpu: int) -> GpuSample:
        lib, handle = self._lib, self._lib.nvmlDeviceGetHandleByIndex(gpu)
        power = _number(_try(lambda: lib.nvmlDeviceGetPowerUsage(handle)))
        memory = _number(_try(lambda: lib.nvmlDeviceGetMemoryInfo(handle).used))
        return GpuSample(
            time.monotonic(),
            gpu,
            clock_mhz=_number(_try(lambda: lib.nvmlDeviceGetClockInfo(handle, lib.NVML_CLOCK_SM))),
            power_w=power / 1000 if power is not None else None,  # milliwatts
            temperature_c=_number(_try(lambda: lib.nvmlDeviceGetTemperature(handle, lib.NVML_TEMPERATURE_GPU))),
            memory_used_mb=memory / 2**20 if memory is not None else None,
        )

    def inventory(self) -> list[dict[str, str]]:
        lib = self._lib
        driver, cuda = lib.nvmlSystemGetDriverVersion(), lib.nvmlSystemGetCudaDriverVersion()
        return [
            {
                "name": str(lib.nvmlDeviceGetName(lib.nvmlDeviceGetHandleByIndex(gpu))),
                "driver": str(driver),
                "cuda_driver": f"{cuda // 1000}.{cuda % 1000 // 10}",
            }
            for gpu in range(lib.nvmlDeviceGetCount())
        ]

    def close(self) -> None:
        self._lib.nvmlShutdown()


class Amd:
    """AMD, through amdsmi as ROCm images have it (6.2 to 7)."""

    vendor = "amd"

    def __init__(self, library: Any) -> None:
        self._lib = library
        library.amdsmi_init()
        self._handles = library.amdsmi_get_processor_handles()

    def read(self, gpu: int) -> GpuSample:
        lib, handle = self._lib, self._handles[gpu]
        clock = _try(lambda: lib.amdsmi_get_clock_info(handle, lib.AmdSmiClkType.GFX))
        power = _try(lambda: lib.amdsmi_get_power_info(handle))
        vram = _try(lambda: lib.amdsmi_get_gpu_vram_usage(handle))
        hot = _try(
            lambda: lib.amdsmi_get_temp_metric(
                handle, lib.AmdSmiTemperatureType.HOTSPOT, lib.AmdSmiTemperatureMetric.CURRENT
            )
        )
        return amd_sample(time.monotonic(), gpu, clock, power, hot, vram)

    def inventory(self) -> list[dict[str, str]]:
        lib = self._lib
        out = []
        for handle in self._handles:
            asic = _try(partial(lib.amdsmi_get_gpu_asic_info, handle)) or {}
            driver = _try(partial(lib.amdsmi_get_gpu_driver_info, handle)) or {}
            gfx = str(asic.get("target_graphics_version", ""))
            out.append(
                {
                    "name": str(asic.get("market_name", "unknown")),
                    "gfx": gfx,
                    "driver": str(driver.get("driver_version", "unknown")),
                }
            )
        return out

    def close(self) -> None:
        self._lib.amdsmi_shut_down()


def amd_sample(
    t: float,
    gpu: int,
    clock: Mapping[str, Any] | None,
    power: Mapping[str, Any] | None,
    hotspot_c: object,
    vram: Mapping[str, Any] | None,
) -> GpuSample:
    """amdsmi's answers (MHz, W, °C, MB) as a sample. On MI300 and MI350 the average power is "N/A" and the
    current one is given; on older parts it is the other way round."""
    clock, power, vram = clock or {}, power or {}, vram or {}
    watts = _number(power.get("current_socket_power"))
    return GpuSample(
        t,
        gpu,
        clock_mhz=_number(clock.get("clk", clock.get("cur_clk"))),
        power_w=watts if watts is not None else _number(power.get("average_socket_power")),
        temperature_c=_number(hotspot_c),
        memory_used_mb=_number(vram.get("vram_used")),
    )


def open_source() -> Source | None:
    """The library of the GPUs in this machine; None where there are none or no library is installed."""
    for module, make in (("amdsmi", Amd), ("pynvml", Nvml)):
        source = _try(partial(_open, module, make))
        if source is not None and _try(source.inventory):
            return source  # type: ignore[no-any-return]
    return None


def _open(module: str, make: Callable[[Any], Source]) -> Source:
    return make(importlib.import_module(module))


class Recorder:
    """Reads the chosen GPUs in a thread of the main process, away from the load processes."""

    def __init__(self, source: Source | None, gpus: Sequence[int]) -> None:
        self._source, self._gpus = source, gpus

    @contextlib.contextmanager
    def recording(self) -> Iterator[list[GpuSample]]:
        """Yields the list into which samples go until the block ends."""
        samples: list[GpuSample] = []
        source = self._source
        if source is None or not self._gpus:
            yield samples
            return
        ended = threading.Event()

        def read() -> None:
            while not ended.is_set():
                for gpu in self._gpus:
                    sample = _try(partial(source.read, gpu))
                    if sample is not None:
                        samples.append(sample)
                ended.wait(INTERVAL_S)

        thread = threading.Thread(target=read, name="gpu-telemetry", daemon=True)
        thread.start()
        try:
            yield samples
        finally:
            ended.set()
            thread.join()
