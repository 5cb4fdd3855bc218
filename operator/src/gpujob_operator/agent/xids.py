"""XIDs, the driver's error numbers: which of them say that a GPU is broken, and what is remembered.

NVIDIA's catalogue of XIDs names an action for each. Where that is to reset the GPU or to restart
the node, the GPU is broken and takes no work until then. Where it is to restart the program or
nothing at all, the GPU goes on working. 94 is between them: other programs go on, but a part of the
memory is lost until a reset. It counts as broken, as any uncorrectable error of memory does.
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
# Of these NVIDIA says that the GPU is well, or that it mended itself. 43 and 45 follow whenever a
# program faults or is killed; 63 and 92 tell of memory that was mended in time; 154 sums up others.
HARMLESS_XIDS = frozenset({14, 43, 45, 63, 92, 93, 106, 107, 121, 154, 157, 160, 161})
# All others come of what a program does (13 and 31, say), or nothing is known of them. Of 109
# NVIDIA says to reset the GPU, yet its device plugin takes it for a program's: kernels cause it.
PROGRAM_XID_SECONDS = 3600.0

# GPUs of which events are remembered, whether or not they are still there.
GPUS_REMEMBERED_MAX = 1024
# The counter of a GPU's energy begins anew when its driver does. It never goes back otherwise.
ENERGY_NOISE_JOULES = 1.0


class XIDMemory:
    """What each GPU's driver reported. Errors of hardware are forgotten once the driver began anew,
    those of programs after an hour.

    `recalled` are GPUs as an earlier agent published them. Their errors count only if a counter of
    energy can tell whether the GPU was reset since.
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
        """`pod_uids` are of the processes on the GPU, "" for an unmanaged one: a pod that was alone
        there is the error's owner."""
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
        """Forgets a GPU's errors if its counter of energy has begun anew."""
        if energy_joules is None:
            return
        before = self._energy_joules.get(uuid)
        if before is not None and energy_joules < before - ENERGY_NOISE_JOULES:
            self._events.pop(uuid, None)
        self._energy_joules[uuid] = energy_joules

    def of(self, uuid: str) -> tuple[XIDEvent, ...]:
        """Oldest first."""
        since = self._clock() - timedelta(seconds=PROGRAM_XID_SECONDS)
        events = self._events.get(uuid, ())
        return tuple(one for one in events if one.xid in HARDWARE_XIDS or one.at >= since)


def hardware_problem(events: Iterable[XIDEvent]) -> str:
    """What broke, of the first error that says so; "" if none does."""
    for event in events:
        if event.xid in HARDWARE_XIDS:
            what = HARDWARE_XIDS[event.xid]
            return f"XID {event.xid}: {what}; until the GPU is reset or the node restarts"
    return ""


def _most_telling(events: tuple[XIDEvent, ...]) -> tuple[XIDEvent, ...]:
    """The first of the hardware, which says what broke, and the newest of the others."""
    broken = tuple(one for one in events if one.xid in HARDWARE_XIDS)[:1]
    others = tuple(one for one in events if one.xid not in HARDWARE_XIDS)
    kept = others[-(XIDS_MAX - len(broken)) :]
    return tuple(one for one in events if one in broken or one in kept)
