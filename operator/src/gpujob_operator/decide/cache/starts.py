"""What the operator knows of jobs that start, besides their objects and pods."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpujob_operator.decide.lifecycle.inputs import RefusedPods, refused_by_job
from gpujob_operator.decide.model.snapshot import PerhapsCreated, RefusedPod, Snapshot


@dataclass(slots=True)
class Starts:
    """Refusals and creations of pods, by the job's UID, as of the last snapshot."""

    _refused: RefusedPods = field(default_factory=lambda: refused_by_job(()))
    _perhaps_created: Mapping[str, PerhapsCreated] = field(
        default_factory=dict[str, PerhapsCreated]
    )
    _recorded: frozenset[str] = frozenset()

    def take(self, snapshot: Snapshot) -> set[str]:
        """Returns the jobs of which anything changed."""
        refused = refused_by_job(snapshot.refused_pods)
        perhaps_created = {one.job_uid: one for one in snapshot.perhaps_created}
        recorded = frozenset(snapshot.recorded)
        changed = _changed(self._refused, refused) | set(recorded ^ self._recorded)
        changed |= _changed(self._perhaps_created, perhaps_created)
        self._refused, self._perhaps_created = refused, perhaps_created
        self._recorded = recorded
        return changed

    def refused(self, uid: str) -> tuple[RefusedPod, ...]:
        return self._refused.get(uid, ())

    def perhaps_created(self, uid: str) -> PerhapsCreated | None:
        return self._perhaps_created.get(uid)


def _changed(before: Mapping[str, object], after: Mapping[str, object]) -> set[str]:
    return {uid for uid in before.keys() | after.keys() if before.get(uid) != after.get(uid)}
