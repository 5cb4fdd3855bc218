"""What goes wrong in a seed, and when it stops going wrong."""

from dataclasses import dataclass, field
from random import Random

from gpujob_operator.client.api_errors import Unavailable

FAULTS_END_SECONDS = 300.0


@dataclass(slots=True)
class Faults:
    """Probabilities and delays. All of them are 0 once `stop` was called."""

    watch_delay_max: float = 0.02
    watch_break: float = 0.0
    watch_break_seconds: float = 20.0
    repeat: float = 0.0
    write_error: float = 0.0
    lost_answer: float = 0.0
    slow_write: float = 0.0
    report_loss: float = 0.0
    forecast_error: float = 0.0
    # Crash after so many writes; then again after the next number.
    crashes: list[int] = field(default_factory=list[int])
    # Both operators believe that they lead: only to show that the checks notice it.
    split_brain: bool = False
    # The next creations of pods take so long to happen, each, whoever waits for them.
    late_pods: list[float] = field(default_factory=list[float])
    # How far ahead the wall clock is where operators start.
    operator_clock_error_seconds: float = 0.0
    writes: int = 0
    watches_refused_until: float = 0.0

    def stop(self) -> None:
        self.watch_delay_max = 0.02
        self.watch_break = self.repeat = self.write_error = self.lost_answer = 0.0
        self.slow_write = self.report_loss = self.forecast_error = 0.0
        self.crashes, self.late_pods = [], []

    def watch_delay(self, random: Random) -> float:
        return random.uniform(0.001, self.watch_delay_max)

    def breaks_watch(self, random: Random) -> bool:
        return random.random() < self.watch_break

    def refuse_watches(self, until: float) -> None:
        self.watches_refused_until = max(self.watches_refused_until, until)

    def refuses_watch(self, now: float) -> bool:
        return now < self.watches_refused_until

    def repeats_event(self, random: Random) -> bool:
        return random.random() < self.repeat

    def loses_answer(self, random: Random) -> bool:
        return random.random() < self.lost_answer

    def fails_forecast(self, random: Random) -> bool:
        return random.random() < self.forecast_error

    def write_delay(self, random: Random) -> float:
        if random.random() < self.slow_write:
            return random.uniform(0.5, 4.0)
        return random.uniform(0.001, 0.02)

    def before_write(self, random: Random) -> None:
        if random.random() < self.write_error:
            raise Unavailable(503, "ServiceUnavailable", "the server is overloaded")

    def counts_down_to_crash(self) -> bool:
        if self.crashes and self.writes >= self.crashes[0]:
            self.crashes.pop(0)
            return True
        return False


@dataclass(frozen=True, slots=True)
class Incident:
    """Something that happens to the cluster at a time. `what` names it in reports. `seconds` is how
    long it lasts; of a clock, how far ahead it is from then on."""

    at: float
    what: str
    node: str
    seconds: float


def make_faults(seed: int) -> Faults:
    """The weather of a seed: usually some of everything, sometimes calm."""
    random = Random(seed * 104_729 + 2)

    def sometimes(value: float) -> float:
        return value if random.random() < 0.4 else 0.0

    crashes: list[int] = []
    for _ in range(random.choice([0, 0, 1, 2, 4])):
        crashes.append((crashes[-1] if crashes else 0) + random.randint(1, 25))
    return Faults(
        watch_delay_max=random.choice([0.02, 1.0, 5.0, 15.0]),
        watch_break=sometimes(0.03),
        repeat=sometimes(0.2),
        write_error=sometimes(0.2),
        lost_answer=sometimes(0.2),
        slow_write=sometimes(0.1),
        report_loss=sometimes(0.5),
        crashes=crashes,
        forecast_error=sometimes(0.5),
    )


CHANGED_GPUS_SHARE = 0.15
INCIDENTS = (
    *("power", "power", "partition", "partition", "reclaim", "reclaim", "destroy", "agent"),
    *("missing", "absurd", "unhealthy", "unmanaged", "unmanaged"),
    "owner-lost",
    *("pod-deleted", "pod-deleted", "pause", "pause", "operator-killed", "operator-killed"),
)


def make_incidents(seed: int, nodes: list[str]) -> list[Incident]:
    random = Random(seed * 15_485_863 + 3)
    return _changed_gpus(seed, nodes) + [
        Incident(
            random.choice([random.uniform(1, 60), random.uniform(1, FAULTS_END_SECONDS - 100)]),
            random.choice(INCIDENTS),
            random.choice(nodes),
            random.uniform(5, 95),
        )
        for _ in range(random.choice([0, 2, 3, 5, 8]))
    ]


def _changed_gpus(seed: int, nodes: list[str]) -> list[Incident]:
    """Of some seeds, a node that gets other GPUs under the pods that run there."""
    random = Random(seed * 86_028_179 + 4)
    if random.random() >= CHANGED_GPUS_SHARE:
        return []
    at = random.uniform(10, FAULTS_END_SECONDS - 100)
    return [Incident(at, "gpus-changed", random.choice(nodes), 0.0)]
