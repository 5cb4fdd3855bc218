"""XIDs, the driver's error numbers: which of them mean that a GPU is broken, and what is
remembered.

NVIDIA's catalogue of XIDs names an action for each. If the action is to reset the GPU or to restart
the node, the GPU is broken and takes no work until then. If it is to restart the program, or none,
the GPU continues to work. 94 is in between: other programs continue, but a part of the memory is
lost until a reset. It counts as broken, like any uncorrectable memory error.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta

from gpujob_api.gpunode import GPU, XIDS_MAX, XIDEvent

# What broke, by XID.
HARDWARE_XIDS: Mapping[int, str] = {
    46: "the GPU stopped processing",
    48: "an uncorrectable memory error",
    62: "the GPU's microcontroller halted",
    64: "a memory row could not be remapped",
    74: "an NVLink error",
    79: "the GPU has fallen off the bus",
    94: "a contained memory error",
    95: "an uncontained memory error",
    110: "a security fault",
    119: "the GPU's system processor does not answer",
    120: "an error of the GPU's system processor",
    136: "an NVLink could not be trained",
    140: "an unrecovered memory error",
    143: "the GPU could not be initialized",
    **dict.fromkeys(range(144, 151), "an NVLink error"),
    155: "an NVLink went down",
    156: "a part of the GPU is to be retired",
    158: "a fatal timeout of the GPU",
    167: "a fatal PCIe timeout",
    169: "the GPU's microcontroller halted",
    171: "an uncorrectable memory error",
    172: "an uncorrectable memory error of a cache",
}
# NVIDIA documents that the GPU is well or repaired itself after these. 43 and 45 follow whenever a
# program faults or is killed. 63 and 92 report memory that was repaired in time. 154 summarizes
# others.
HARMLESS_XIDS = frozenset({14, 43, 45, 63, 92, 93, 106, 107, 121, 154, 157, 160, 161})
# All other XIDs are caused by programs (13 and 31, for example), or nothing is known about them.
# NVIDIA documents a reset of the GPU for 109, but its device plugin attributes it to a program,
# because kernels cause it.
PROGRAM_XID_SECONDS = 3600.0

# Maximum number of GPUs whose events are remembered, whether or not they still exist.
GPUS_REMEMBERED_MAX = 1024
# A GPU's energy counter restarts with its driver. Otherwise it never goes back.
ENERGY_NOISE_JOULES = 1.0


class XIDMemory:
    """What each GPU's driver reported.

    Hardware errors are dropped once the driver restarted, and errors of programs after an hour.
    `recalled` are GPUs as an earlier agent published them. Their errors count only if an energy
    counter can show whether the GPU was reset since.
    """

    def __init__(self, recalled: Iterable[GPU], clock: Callable[[], datetime]) -> None:
        self._clock = clock
        self._events: dict[str, tuple[XIDEvent, ...]] = {}
        self._energy_joules: dict[str, float] = {}
        for gpu in recalled:
            if gpu.xids and gpu.energy_joules is not None:
                self._events[gpu.uuid] = gpu.xids
                self._energy_joules[gpu.uuid] = gpu.energy_joules

    def note(self, uuid: str, xid: int, pod_uids: Iterable[str]) -> None:
        """Records an error.

        `pod_uids` belong to the processes on the GPU, "" for an unmanaged process. A pod that was
        alone on the GPU is the error's owner.
        """
        if xid in HARMLESS_XIDS:
            return
        pods = set(pod_uids)
        alone = len(pods) == 1 and xid not in HARDWARE_XIDS
        owner = (pods.pop() or None) if alone else None
        event = XIDEvent(xid, self._clock(), owner)
        self._events[uuid] = _most_telling((*self._events.get(uuid, ()), event))
        while len(self._events) > GPUS_REMEMBERED_MAX:
            del self._events[next(iter(self._events))]

    def see_energy(self, uuid: str, energy_joules: float | None) -> None:
        """Drops a GPU's errors if its energy counter has restarted."""
        if energy_joules is None:
            return
        before = self._energy_joules.get(uuid)
        if before is not None and energy_joules < before - ENERGY_NOISE_JOULES:
            self._events.pop(uuid, None)
        self._energy_joules[uuid] = energy_joules

    def of(self, uuid: str) -> tuple[XIDEvent, ...]:
        """Returns the errors that count, oldest first."""
        since = self._clock() - timedelta(seconds=PROGRAM_XID_SECONDS)
        events = self._events.get(uuid, ())
        return tuple(one for one in events if one.xid in HARDWARE_XIDS or one.at >= since)


def hardware_problem(events: Iterable[XIDEvent]) -> str:
    """Returns what broke, by the first hardware error, or ""."""
    for event in events:
        if event.xid in HARDWARE_XIDS:
            what = HARDWARE_XIDS[event.xid]
            return f"XID {event.xid}: {what}; until the GPU is reset or the node restarts"
    return ""


def _most_telling(events: tuple[XIDEvent, ...]) -> tuple[XIDEvent, ...]:
    """Returns the first hardware error, which shows what broke, and the newest of the others."""
    broken = tuple(one for one in events if one.xid in HARDWARE_XIDS)[:1]
    others = tuple(one for one in events if one.xid not in HARDWARE_XIDS)
    kept = others[-(XIDS_MAX - len(broken)) :]
    return tuple(one for one in events if one in broken or one in kept)
