"""The device that the training is on: what measures its memory, and what holds it to the limit."""

import torch

from gpujob_worker.device.cuda_context import gpu_context, limit_allocator
from gpujob_worker.device.gpu import gpu_meter
from gpujob_worker.device.memory import CudaMemory
from gpujob_worker.device.step_events import CudaEvents
from gpujob_worker.run.session import Session


def use_device(session: Session, device: torch.device) -> None:
    """Once the script has put something on a GPU; asking earlier would set the GPU up."""
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
    """Again whenever more libraries may have been loaded: they take of the same limit."""
    limit, memory = session.environment.memory_limit_bytes, session.meter.memory
    if not isinstance(memory, CudaMemory):
        return
    if limit is None or not session.optimizes:
        memory.measure_context()
        return
    limit_allocator(torch.cuda, limit, memory.measure_context)
