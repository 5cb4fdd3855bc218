"""A process's GPU: its peak rates, its energy counter and its utilization.

Energy and utilization are those of the whole GPU, from NVML if that is installed. On a shared GPU
they include co-tenants.
"""

import contextlib
from typing import Any

from gpujob_api.settings import Precision
from gpujob_worker.device.nvml import nvml_device

_TERA = 10**12
# Dense rates in TFLOP/s, from NVIDIA's data sheets (tensor cores with 32-bit accumulation). For
# newer products the sheets list sparse rates, which are twice as high. The first name contained in
# the device's name counts, so longer names come first.
_PEAKS: tuple[tuple[str, dict[Precision, float]], ...] = (
    ("B200", {Precision.FLOAT32: 75.0, Precision.TF32: 1125.0, Precision.BFLOAT16: 2250.0}),
    ("H200 NVL", {Precision.FLOAT32: 60.0, Precision.TF32: 417.5, Precision.BFLOAT16: 835.5}),
    ("H200", {Precision.FLOAT32: 67.0, Precision.TF32: 494.5, Precision.BFLOAT16: 989.5}),
    ("H100 PCIe", {Precision.FLOAT32: 51.0, Precision.TF32: 378.0, Precision.BFLOAT16: 756.5}),
    ("H100 NVL", {Precision.FLOAT32: 60.0, Precision.TF32: 417.5, Precision.BFLOAT16: 835.5}),
    ("H100", {Precision.FLOAT32: 67.0, Precision.TF32: 494.5, Precision.BFLOAT16: 989.5}),
    ("A100", {Precision.FLOAT32: 19.5, Precision.TF32: 156.0, Precision.BFLOAT16: 312.0}),
    ("L40S", {Precision.FLOAT32: 91.6, Precision.TF32: 183.0, Precision.BFLOAT16: 362.0}),
    ("L4", {Precision.FLOAT32: 30.3, Precision.TF32: 60.0, Precision.BFLOAT16: 121.0}),
    ("T4", {Precision.FLOAT32: 8.1, Precision.FLOAT16: 65.0}),
    ("V100", {Precision.FLOAT32: 15.7, Precision.FLOAT16: 125.0}),
)


def peak_flop_per_second(device: str, precision: Precision) -> float | None:
    """Returns the GPU's peak for matrix products in `precision`, or None if unknown."""
    words = f" {device.replace('-', ' ')} "
    rates = next((rates for name, rates in _PEAKS if f" {name} " in words), None)
    if rates is None:
        return None
    half = precision is Precision.FLOAT16
    rate = rates.get(precision, rates.get(Precision.BFLOAT16) if half else None)
    return rate * _TERA if rate is not None else None


class GPUMeter:
    """Energy and utilization since `restart`. None if the GPU does not report them."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml = nvml
        self._handle = handle
        self._energy_start: float | None = None
        self._samples = 0
        self._busy_percent = 0.0
        self.restart()

    def restart(self) -> None:
        self._samples, self._busy_percent = 0, 0.0
        self._energy_start = self._joules_since_driver_start()

    def sample(self) -> None:
        with contextlib.suppress(Exception):
            rates = self._nvml.nvmlDeviceGetUtilizationRates(self._handle)
            self._busy_percent += float(rates.gpu)
            self._samples += 1

    @property
    def utilization_percent(self) -> float | None:
        return self._busy_percent / self._samples if self._samples else None

    @property
    def joules(self) -> float | None:
        now = self._joules_since_driver_start()
        if now is None or self._energy_start is None or now < self._energy_start:
            return None
        return now - self._energy_start

    def _joules_since_driver_start(self) -> float | None:
        try:
            return float(self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)) / 1000
        except Exception:
            return None


def gpu_meter(uuid: str) -> GPUMeter | None:
    """Returns the meter of a GPU by its UUID from CUDA, or None without NVML."""
    try:
        return GPUMeter(*nvml_device(uuid))
    except Exception:
        return None
