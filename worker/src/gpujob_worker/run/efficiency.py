"""A step's efficiency on its GPU, from FLOP counted once and times measured continuously."""

from gpujob_api.report import Efficiency
from gpujob_api.settings import Precision
from gpujob_worker.device.gpu import peak_flop_per_second
from gpujob_worker.run.meter import Meter


def efficiency(
    meter: Meter, step_flop: float | None, device: str, precision: Precision
) -> Efficiency | None:
    """Returns the efficiency, or None if nothing is known. The peak is that of the applied
    `precision`.
    """
    timing = meter.window.timing(None)
    rate = None
    if step_flop is not None and timing is not None and timing.step_seconds > 0:
        rate = step_flop / timing.step_seconds
    steps, gpu = len(meter.window.seconds), meter.gpu
    joules = gpu.joules if gpu is not None else None
    found = Efficiency(
        step_flop=step_flop,
        flop_per_second=rate,
        gpu_flop_per_second=peak_flop_per_second(device, precision),
        gpu_utilization_percent=gpu.utilization_percent if gpu is not None else None,
        joules_per_step=joules / steps if joules is not None and steps else None,
    )
    return None if found == Efficiency() else found
