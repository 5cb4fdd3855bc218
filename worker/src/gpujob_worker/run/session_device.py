"""The device of a session: measures its memory and enforces the memory limit."""

import torch

from gpujob_api.quantities import format_memory
from gpujob_worker.device.cuda_context import gpu_context, limit_allocator
from gpujob_worker.device.gpu import gpu_meter
from gpujob_worker.device.memory import CpuMemory, CudaMemory
from gpujob_worker.device.step_events import CudaEvents
from gpujob_worker.run.failure import MemoryLimitError
from gpujob_worker.run.session import Session


def use_device(session: Session, device: torch.device) -> None:
    """Measures the device from now on. Call it once the script has put something on a GPU, because
    an earlier call would initialize the GPU.
    """
    meter = session.meter
    if device.type == "cuda" and not isinstance(meter.memory, CudaMemory):
        session.state.runs_on(torch.cuda.get_device_name())
        current = torch.cuda.current_device()
        uuid = str(getattr(torch.cuda.get_device_properties(current), "uuid", ""))
        meter.memory = CudaMemory(torch.cuda, gpu_context(uuid))
        meter.gpu = gpu_meter(uuid)
        meter.use_events(CudaEvents(torch.cuda, device))
        hold_to_limit(session)


def hold_to_limit(session: Session) -> None:
    """Enforces the memory limit. Call it again whenever more libraries may have been loaded,
    because they count against the limit.
    """
    limit, memory = session.environment.memory_limit_bytes, session.meter.memory
    if not isinstance(memory, CudaMemory):
        return
    if limit is None or not session.optimizes:
        memory.measure_context()
        return
    limit_allocator(torch.cuda, limit, memory.measure_context)


def hold_to_card(session: Session) -> None:
    """Raises `MemoryLimitError` if the process took more memory than its CPU cards have.

    A GPU refuses the allocation itself. Call it after each step.
    """
    meter, card_bytes = session.meter, session.environment.cpu_card_bytes
    taken_bytes = meter.window.peak_memory_bytes
    if card_bytes is None or taken_bytes <= card_bytes or not isinstance(meter.memory, CpuMemory):
        return
    raise MemoryLimitError(
        f"CPU card out of memory: the process took {format_memory(taken_bytes)} of "
        f"{format_memory(card_bytes)}",
        taken_bytes,
    )
