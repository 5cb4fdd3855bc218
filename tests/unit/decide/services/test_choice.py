"""Backends are measured once, after a replica answers, and the replicas take the result."""

from dataclasses import replace

import pytest

from gpujob_api.gpujob import GPURequest, Sharing, SharingMode, Spot
from gpujob_api.gpuservice import Replicas, ServiceOptimize
from gpujob_api.meta import Condition, ConditionStatus
from gpujob_api.quantities import Memory
from gpujob_api.serving import (
    Accuracy,
    BackendName,
    Candidate,
    Choice,
    Objective,
    Quantization,
    ServingReport,
    ServingSettings,
)
from gpujob_api.settings import Precision
from gpujob_operator.decide.model.service_plan import Role
from gpujob_operator.decide.services.revision import choice_key, settings_of
from tests.harness.builders import T0, make_template
from tests.harness.services import Live, ServiceWorld, make_service

CHOICE = Choice(
    BackendName.COMPILE,
    Precision.BFLOAT16,
    device="NVIDIA A10",
    seconds=41.0,
    reason="0.8 ms a request, Eager 2.1 ms",
    candidates=(
        Candidate("Compile", Precision.BFLOAT16, accepted=True),
        Candidate("Compile", Precision.FLOAT16, accepted=False, reason="relative error 9 %"),
    ),
)


def measurements(scene: ServiceWorld) -> list[Live]:
    return [one for one in scene.jobs.values() if one.role is Role.MEASUREMENT]


def settings_in(live: Live) -> ServingSettings:
    env = live.job.spec.worker_container()["env"]
    [text] = [one["value"] for one in env if one["name"] == "GPUJOB_SERVING"]
    return ServingSettings.from_text(text)


def measured(scene: ServiceWorld, choice: Choice = CHOICE) -> None:
    [one] = measurements(scene)
    scene.finish(one.job.metadata.name, ServingReport(choice=choice))


def test_nothing_is_measured_before_a_replica_answers() -> None:
    scene = ServiceWorld()
    scene.run(3)
    assert measurements(scene) == []
    scene.run(3)
    [one] = measurements(scene)
    assert settings_in(one).measure
    assert one.job.spec.sharing.mode.value == "Exclusive"
    assert "readinessProbe" not in one.job.spec.worker_container()
    assert scene.condition("BackendChosen")[:2] == ("Unknown", "Measuring")


def test_the_condition_has_the_job_that_measures_and_why_it_waits() -> None:
    scene = ServiceWorld().run(8)
    [one] = measurements(scene)
    name = one.job.metadata.name
    assert scene.condition("BackendChosen")[2].startswith(f"{name} measures backends; ")
    waiting = Condition(
        "Scheduled", ConditionStatus.FALSE, "InsufficientCapacity", "0 of 2 GPUs", T0
    )
    status = replace(one.job.status, conditions=(waiting,), placement=None)
    one.job = replace(one.job, status=status)
    scene.run(1)
    message = scene.condition("BackendChosen")[2]
    assert f"{name} waits to measure backends: InsufficientCapacity: 0 of 2 GPUs" in message


def test_a_choice_for_an_earlier_spec_is_not_shown_as_the_choice() -> None:
    scene = ServiceWorld(make_service(replicas=Replicas(1))).run(10)
    measured(scene)
    scene.run(20)
    assert scene.condition("BackendChosen")[1] == "Measured"
    scene.edit(objective=Objective(20.0))
    scene.run(2)
    assert scene.condition("BackendChosen")[:2] == ("Unknown", "Measuring")


def test_the_replicas_take_the_result_one_after_the_other() -> None:
    scene = ServiceWorld(make_service(replicas=Replicas(2))).run(10)
    assert {settings_in(one).backend for one in scene.ready()} == {BackendName.EAGER}
    measured(scene)
    answering = len(scene.answering)
    scene.run(30)
    assert {settings_in(one).backend for one in scene.ready()} == {BackendName.COMPILE}
    assert {settings_in(one).precision for one in scene.ready()} == {Precision.BFLOAT16}
    assert min(scene.answering[answering:]) >= 2
    assert scene.condition("BackendChosen")[1] == "Measured"
    assert measurements(scene) == [], "it has ended and is of no use any more"
    [note] = [
        note for step in scene.steps for note in step.events if note.reason == "BackendChosen"
    ]
    assert note.message == (
        "Compile in bfloat16 (2 candidates, 1 refused, 41 s): 0.8 ms a request, Eager 2.1 ms"
    )


def test_the_model_as_written_replaces_nothing() -> None:
    scene = ServiceWorld().run(10)
    created = list(scene.created)
    measured(scene, replace(CHOICE, backend=BackendName.EAGER, precision=Precision.FLOAT32))
    scene.run(20)
    assert scene.created == created
    assert scene.condition("BackendChosen")[1] == "Measured"


def test_a_failed_measurement_is_in_the_condition_and_not_repeated() -> None:
    scene = ServiceWorld().run(10)
    [one] = measurements(scene)
    scene.fail(one.job.metadata.name, "the examples have no sample")
    scene.run(100)
    assert sum("pick" in name for name in scene.created) == 1
    assert len(scene.ready()) == 1
    status, reason, message = scene.condition("BackendChosen")
    assert (status, reason) == ("False", "MeasurementFailed")
    assert "the examples have no sample" in message
    assert len(measurements(scene)) == 1, "its log has the reason"


def test_an_edit_measures_again_and_ends_what_is_under_way() -> None:
    scene = ServiceWorld().run(10)
    [before] = measurements(scene)
    scene.edit(optimize=ServiceOptimize(quantization=Quantization.AUTO))
    scene.run(10)
    [after] = measurements(scene)
    assert before.job.metadata.name != after.job.metadata.name
    assert settings_in(after).quantization is Quantization.AUTO


def test_a_measurement_without_a_result_is_a_failure() -> None:
    scene = ServiceWorld().run(10)
    [one] = measurements(scene)
    scene.finish(one.job.metadata.name)
    scene.run(2)
    assert scene.condition("BackendChosen")[1] == "MeasurementFailed"


def test_a_named_backend_is_not_measured() -> None:
    optimize = ServiceOptimize(BackendName.COMPILE, Precision.BFLOAT16)
    scene = ServiceWorld(make_service(optimize=optimize)).run(20)
    assert measurements(scene) == []
    assert settings_in(scene.ready()[0]).backend is BackendName.COMPILE
    assert scene.condition("BackendChosen")[1] == "Given"


@pytest.mark.parametrize(
    ("backend", "claim", "builds"),
    [
        (BackendName.AOT_INDUCTOR, None, True),
        (BackendName.ONNX_RUNTIME, None, True),
        (BackendName.AOT_INDUCTOR, "compiled", False),
        # Nothing of it can be kept, or nothing is built.
        (BackendName.COMPILE, None, False),
        (BackendName.EAGER, None, False),
    ],
)
def test_a_backend_that_each_replica_builds_anew_has_the_next_step(
    backend: BackendName, claim: str | None, builds: bool
) -> None:
    given = make_service(optimize=ServiceOptimize(backend), artifacts_claim_name=claim)
    scene = ServiceWorld(given).run(10)
    chosen = ServiceWorld(make_service(artifacts_claim_name=claim)).run(10)
    measured(chosen, replace(CHOICE, backend=backend))
    for one in (scene, chosen.run(20)):
        status, _, message = one.condition("BackendChosen")
        assert status == "True"
        assert ("spec.artifactsClaimName names a claim that keeps it" in message) is builds


def test_a_choice_for_another_spec_does_not_count() -> None:
    service = make_service()
    status = replace(service.status, choice=CHOICE, choice_key="0a1b2c")
    assert settings_of(replace(service, status=status)).backend is BackendName.EAGER
    status = replace(status, choice_key=choice_key(service))
    assert settings_of(replace(service, status=status)).backend is BackendName.COMPILE


def test_the_bounds_of_replicas_and_the_priority_do_not_change_the_key() -> None:
    one, other = make_service(), make_service(replicas=Replicas(2, 5), priority=7)
    assert choice_key(one) == choice_key(other)


def test_the_queue_and_the_priority_need_no_other_measurement() -> None:
    service = make_service()
    moved = make_service(queue="production", priority=7)
    assert choice_key(moved) == choice_key(service)


def test_an_edit_of_the_objective_keeps_the_choice_until_the_new_one_is_measured() -> None:
    """Otherwise a loaded service would lose its capacity for the minutes of a measurement."""
    scene = ServiceWorld(make_service(replicas=Replicas(2))).run(10)
    measured(scene)
    scene.run(30)
    scene.edit(objective=Objective(60.0))
    scene.run(30)
    assert {settings_in(one).backend for one in scene.ready()} == {BackendName.COMPILE}
    assert {settings_in(one).objective for one in scene.ready()} == {Objective(60.0)}
    assert "until then Compile stays" in scene.condition("BackendChosen")[2]
    measured(scene, replace(CHOICE, backend=BackendName.AOT_INDUCTOR))
    scene.run(30)
    assert {settings_in(one).backend for one in scene.ready()} == {BackendName.AOT_INDUCTOR}


def test_another_model_runs_as_written_until_it_is_measured() -> None:
    scene = ServiceWorld().run(10)
    measured(scene)
    scene.run(30)
    scene.edit(template=make_template(command=("serve", "another")))
    scene.run(30)
    assert {settings_in(one).backend for one in scene.ready()} == {BackendName.EAGER}


@pytest.mark.parametrize(
    "optimize",
    [
        ServiceOptimize(precision=Precision.FLOAT32),
        ServiceOptimize(accuracy=Accuracy(max_relative_error_percent=0.1)),
        ServiceOptimize(accuracy=Accuracy(min_agreement_percent=99.9)),
    ],
)
def test_a_choice_that_an_edit_forbids_ends_at_once(optimize: ServiceOptimize) -> None:
    first = replace(CHOICE.candidates[0], relative_error_percent=0.3, agreement_percent=99.8)
    service = make_service()
    status = replace(
        service.status,
        choice=replace(CHOICE, candidates=(first,)),
        choice_key=choice_key(service),
    )
    edited = replace(service, status=status, spec=replace(service.spec, optimize=optimize))
    assert settings_of(edited).backend is BackendName.EAGER


def test_memory_sharing_and_spot_need_no_new_measurement() -> None:
    one = make_service()
    other = make_service(
        gpu=GPURequest(Memory(1 << 30)), sharing=Sharing(SharingMode.SHARED), spot=Spot()
    )
    assert choice_key(one) == choice_key(other)


def test_the_workload_of_replicas_is_that_of_the_service_until_it_is_named_anew() -> None:
    """Another backend reserves what the replicas before it used. A new name measures it anew."""
    scene = ServiceWorld(make_service(replicas=Replicas(1))).run(10)
    measured(scene)
    scene.run(20)
    assert {one.job.spec.workload for one in scene.replicas()} == {"answers"}
    scene.edit(workload="answers-compiled")
    scene.run(20)
    assert {one.job.spec.workload for one in scene.replicas()} == {"answers-compiled"}
    assert {settings_in(one).backend for one in scene.ready()} == {BackendName.COMPILE}
