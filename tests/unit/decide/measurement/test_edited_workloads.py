"""What an attempt measures belongs to the workload with which it was started.

`spec.optimize` is part of what a workload is, and may be edited while an attempt runs with what the
spec said before.
"""

from dataclasses import replace
from datetime import datetime

import pytest

from gpujob_api.gpujob import GPUJobStatus, JobPhase, ReservationSource
from gpujob_api.gpuprofile import GPUProfile
from gpujob_api.optimize import BatchSize, Optimize, PerStep
from gpujob_api.quantities import GIB
from gpujob_api.report import Timing
from gpujob_api.settings import OptimizeMode, Precision, Toggle, TunedSettings
from gpujob_operator.decide.measurement.profile import profile_name
from gpujob_operator.decide.model.plan import CreatePod, Plan, SaveProfile
from gpujob_operator.decide.planner import Planner
from tests.harness.builders import make_job, make_report, received, used
from tests.harness.world import World

OLD_BYTES, NEW_BYTES = 12 * GIB, 7 * GIB
EDITS = [
    Optimize(precision=Precision.BFLOAT16),
    Optimize(mode=OptimizeMode.OFF),
    Optimize(batch_size=BatchSize(per_step=PerStep(4))),
    Optimize(activation_checkpointing=Toggle.ON),
    Optimize(compile=Toggle.ON),
]


class Saving(World):
    """Profiles that are saved stay, and each cycle remembers the one before."""

    def __init__(self) -> None:
        super().__init__(make_job())
        self.planner = Planner()
        self.saved: list[GPUProfile] = []

    def decide(self, snapshot: object, now: datetime) -> Plan:
        decided = self.planner(self.snapshot, now)
        for item in decided.items:
            if isinstance(item, SaveProfile):
                self.saved.append(item.profile)
        return decided

    def edit(self, optimize: Optimize) -> None:
        old = self.job("job")
        metadata = replace(old.metadata, generation=old.metadata.generation + 1)
        edited = replace(old, metadata=metadata, spec=replace(old.spec, optimize=optimize))
        self.snapshot = replace(self.snapshot, jobs=(edited,))

    def measure(self, memory_bytes: int, step_seconds: float) -> None:
        """The agent and the worker have seen enough of the attempt."""
        job = self.job("job")
        attempt, uid = job.status.attempt, job.metadata.uid
        timing = Timing(step_seconds, memory_bytes)
        report = make_report(attempt, step=20, current=timing, tuned=TunedSettings())
        self.snapshot = replace(
            self.snapshot,
            reports=(received(job, report, self.seconds),),
            usage={(uid, attempt): used(memory_bytes, samples=100)},
        )
        self.tick(60.0)

    def leave(self) -> None:
        """Its worker is interrupted, and its next attempt starts at once."""
        self.end("job", exit_code=143)
        self.tick(60.0)
        assert self.phase("job") is JobPhase.RUNNING

    @property
    def figures(self) -> dict[str, set[int]]:
        """Bytes of each saved profile's entries, by the profile's name."""
        found: dict[str, set[int]] = {}
        for profile in self.saved:
            entries = {entry.memory_bytes for entry in profile.status.entries}
            found.setdefault(profile.metadata.name, set()).update(entries)
        return found


@pytest.mark.parametrize("optimize", EDITS, ids=str)
def test_an_edit_does_not_move_what_the_running_attempt_measures(optimize: Optimize) -> None:
    world = Saving()
    world.tick()
    started = profile_name(world.job("job"))
    world.edit(optimize)
    assert profile_name(world.job("job")) != started
    world.tick()
    world.measure(OLD_BYTES, 0.2)
    assert world.figures == {started: {OLD_BYTES}}
    (profile,) = world.saved
    assert f"workload-{profile.spec.fingerprint}" == started


@pytest.mark.parametrize("when", ["while it runs", "while it waits"])
def test_the_next_attempt_measures_the_edited_workload_from_the_beginning(when: str) -> None:
    world = Saving()
    world.tick()
    started = profile_name(world.job("job"))
    world.measure(OLD_BYTES, 0.2)
    if when == "while it runs":
        world.edit(EDITS[0])
        world.leave()
    else:
        world.end("job", exit_code=143)
        world.edit(EDITS[0])
        world.tick(60.0)
    status = world.status("job")
    assert (status.attempt, status.profile) == (2, profile_name(world.job("job")))
    assert status.reservation is not None
    assert status.reservation.source is ReservationSource.WHOLE_GPU, "nothing is known of it yet"
    assert status.measurement is None
    world.measure(NEW_BYTES, 0.1)
    assert world.figures == {started: {OLD_BYTES}, profile_name(world.job("job")): {NEW_BYTES}}


def test_without_an_edit_the_next_attempt_knows_what_the_one_before_measured() -> None:
    world = Saving()
    world.tick()
    world.measure(OLD_BYTES, 0.2)
    world.leave()
    status = world.status("job")
    assert (status.attempt, status.profile) == (2, profile_name(world.job("job")))
    assert status.measurement is not None
    assert status.measurement.memory_bytes == OLD_BYTES
    assert status.reservation is not None
    assert status.reservation.source is not ReservationSource.WHOLE_GPU


def test_an_edit_between_the_placement_and_the_pod_counts() -> None:
    """The pod is created with the spec as it is by then."""
    world = Saving()
    world.step()
    before = world.status("job")
    assert before.phase is JobPhase.STARTING
    world.edit(EDITS[0])
    decided = world.step()
    (pod,) = [item for item in decided.items if isinstance(item, CreatePod)]
    assert pod.settings.precision is Precision.BFLOAT16
    assert world.status("job").profile == profile_name(world.job("job")) != before.profile


def test_a_job_of_an_earlier_version_says_no_profile_and_keeps_its_measurement() -> None:
    world = Saving()
    world.tick()
    world.measure(OLD_BYTES, 0.2)
    world.change("job", profile=None)
    world.leave()
    assert world.status("job").measurement is not None
    assert world.figures.keys() == {profile_name(world.job("job"))}


def test_the_status_of_a_job_names_its_profile_from_the_placement_on() -> None:
    world = Saving()
    assert world.status("job") == GPUJobStatus()
    world.tick()
    assert world.status("job").profile == profile_name(world.job("job"))


def test_a_name_that_somebody_wrote_into_the_status_is_a_workload_of_its_own() -> None:
    """No other workload's profile is written for it but the one it names, in its namespace."""
    world = Saving()
    world.tick()
    world.change("job", profile="workload-0123456789abcdef")
    world.measure(OLD_BYTES, 0.2)
    assert world.figures == {"workload-0123456789abcdef": {OLD_BYTES}}
    assert {profile.metadata.namespace for profile in world.saved} == {"team"}
