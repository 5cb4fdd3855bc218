"""The effect of an edit on the existing jobs: a timeline with the edit compared to one without."""

from dataclasses import dataclass

from gpujob_operator.decide.simulation.timeline import JobTimeline, Timeline

# Cycles are simulated at intervals that grow with the elapsed time. Smaller differences do not
# count.
SECONDS_MIN = 2.0
FRACTION_MIN = 0.02


@dataclass(frozen=True, slots=True)
class Difference:
    """One job, without the edits and with them."""

    before: JobTimeline
    after: JobTimeline

    @property
    def starts_otherwise(self) -> bool:
        return not _same(self.before.starts_seconds, self.after.starts_seconds)

    @property
    def stops_otherwise(self) -> bool:
        return [s.reason for s in self.before.stopped] != [s.reason for s in self.after.stopped]


def differences(before: Timeline, after: Timeline) -> tuple[Difference, ...]:
    """Returns the jobs that start at another time or are interrupted differently, by name."""
    both = (
        Difference(before.jobs[uid], timeline)
        for uid, timeline in after.jobs.items()
        if uid in before.jobs
    )
    found = [one for one in both if one.starts_otherwise or one.stops_otherwise]
    return tuple(sorted(found, key=lambda one: one.after.name))


def _same(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    return abs(one - other) <= max(SECONDS_MIN, FRACTION_MIN * max(one, other))
