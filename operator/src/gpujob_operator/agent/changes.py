"""Which differences between two readings are worth sending, and which are worth a write."""

from gpujob_api.gpunode import GPU, GPUNodeStatus

MEMORY_CHANGE_FRACTION = 0.01
MEMORY_CHANGE_BYTES = 32 * 1024**2
# For a status that is only read by people, because the operator has the readings.
SHOWN_MEMORY_CHANGE_FRACTION = 0.05
SHOWN_MEMORY_CHANGE_BYTES = 256 * 1024**2


def materially_different(before: GPUNodeStatus, now: GPUNodeStatus) -> bool:
    """Returns whether a decision may depend on the difference.

    It may depend on GPUs, processes, health, or memory beyond noise.
    """
    if len(before.gpus) != len(now.gpus):
        return True
    if _conditions(before) != _conditions(now):
        return True
    return any(_gpu_differs(one, other) for one, other in zip(before.gpus, now.gpus, strict=True))


def _gpu_differs(before: GPU, now: GPU) -> bool:
    if _identity(before) != _identity(now):
        return True
    limit = max(MEMORY_CHANGE_BYTES, MEMORY_CHANGE_FRACTION * now.memory_total_bytes)
    pairs = zip(before.processes, now.processes, strict=True)
    moved = [abs(one.memory_bytes - other.memory_bytes) for one, other in pairs]
    moved.append(abs(before.memory_used_bytes - now.memory_used_bytes))
    return max(moved) > limit


def _identity(gpu: GPU) -> object:
    processes = [(one.pid, one.pod_uid, one.memory_estimated) for one in gpu.processes]
    total, reserved = gpu.memory_total_bytes, gpu.memory_reserved_bytes
    return gpu.uuid, gpu.model, total, reserved, gpu.healthy, gpu.health_message, processes


def differs_for_good(before: GPUNodeStatus, now: GPUNodeStatus) -> bool:
    """Returns whether a GPU came or went, sickened or healed, or the agent's condition changed."""
    return _conditions(before) != _conditions(now) or [_state(gpu) for gpu in before.gpus] != [
        _state(gpu) for gpu in now.gpus
    ]


def differs_for_people(before: GPUNodeStatus, now: GPUNodeStatus) -> bool:
    """Returns whether other pods use the GPUs, or their memory changed by more than a step."""
    if len(before.gpus) != len(now.gpus):
        return True
    pairs = zip(before.gpus, now.gpus, strict=True)
    return any(_owners(one) != _owners(other) or _moved(one, other) for one, other in pairs)


def _moved(before: GPU, now: GPU) -> bool:
    limit = max(SHOWN_MEMORY_CHANGE_BYTES, SHOWN_MEMORY_CHANGE_FRACTION * now.memory_total_bytes)
    return abs(before.memory_used_bytes - now.memory_used_bytes) > limit


def _owners(gpu: GPU) -> set[str | None]:
    return {process.pod_uid for process in gpu.processes}


def _state(gpu: GPU) -> object:
    total, reserved = gpu.memory_total_bytes, gpu.memory_reserved_bytes
    xids = tuple(event.xid for event in gpu.xids)
    return gpu.uuid, gpu.model, total, reserved, gpu.healthy, gpu.health_message, xids


def _conditions(status: GPUNodeStatus) -> list[object]:
    return [(one.status, one.reason) for one in status.conditions]
