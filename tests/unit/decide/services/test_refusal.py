"""A spec that no replica would follow is refused with its field. Earlier replicas go on."""

from dataclasses import replace

import pytest

from gpujob_api.codec import FieldError
from gpujob_api.gpuservice import Replicas, ServiceOptimize
from gpujob_api.serving import BackendName, Batching, BatchingPolicy, Objective, Quantization
from gpujob_api.settings import Precision
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.grace import grace_seconds
from gpujob_operator.decide.services.grace import needed_grace_seconds
from tests.harness.builders import make_template
from tests.harness.services import ServiceWorld, make_service

EXTERNAL = BackendName.EXTERNAL
REFUSED = [
    (
        ServiceOptimize(EXTERNAL, quantization=Quantization.INT8),
        "quantization: must be Off",
        "int8",
    ),
    (
        ServiceOptimize(EXTERNAL, batching=Batching(BatchingPolicy.DEADLINE)),
        "batching.policy: must be Auto",
        "Deadline",
    ),
]


@pytest.mark.parametrize(("optimize", "field", "value"), REFUSED)
def test_an_engine_of_the_users_own_gets_no_settings(
    optimize: ServiceOptimize, field: str, value: str
) -> None:
    scene = ServiceWorld(make_service(optimize=optimize)).run(20)
    assert scene.created == []
    text = f"spec.optimize.{field} with backend External, which is left as it is; got {value}"
    assert scene.condition("Accepted") == ("False", "InvalidSpec", text)
    status, reason, message = scene.condition("Ready")
    assert (status, reason) == ("False", "ReplicaRejected")
    assert text in message
    assert scene.condition("Progressing")[2].endswith(f"; {text}")
    assert scene.status.summary.reason == text


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"precision": Precision.BFLOAT16}, r"precision: must be Auto with .*; got bfloat16"),
        ({"batching": Batching(max_size=8)}, r"batching.maxSize: must be absent with .*; got 8"),
    ],
)
def test_other_settings_of_such_an_engine_are_invalid(fields: dict[str, object], text: str) -> None:
    with pytest.raises(FieldError, match=text):
        ServiceOptimize(EXTERNAL, **fields)  # pyright: ignore[reportArgumentType]
    ServiceOptimize(BackendName.EAGER, **fields)  # pyright: ignore[reportArgumentType]


def test_the_replicas_of_an_earlier_spec_go_on_until_the_next_one_is_accepted() -> None:
    scene = ServiceWorld(make_service(replicas=Replicas(2))).run(10)
    before = {one.job.metadata.name for one in scene.ready()}
    scene.edit(optimize=REFUSED[0][0])
    scene.run(60)
    assert {one.job.metadata.name for one in scene.ready()} == before
    assert scene.condition("Accepted")[0] == "False"
    scene.edit(optimize=ServiceOptimize(EXTERNAL))
    scene.run(60)
    assert scene.condition("Accepted")[:2] == ("True", "Valid")
    assert len(scene.ready()) == 2
    assert not before & {one.job.metadata.name for one in scene.ready()}
    assert min(scene.answering[10:]) == 2


def test_a_refused_service_is_ready_while_an_earlier_replica_answers() -> None:
    scene = ServiceWorld(make_service(replicas=Replicas(2))).run(10)
    scene.edit(optimize=REFUSED[0][0], replicas=Replicas(3))
    scene.run(10)
    status, reason, message = scene.condition("Ready")
    assert (status, reason) == ("True", "ReplicaRejected")
    assert message.startswith("2 of 3 replicas answer requests; a replica was not created: ")


def test_a_refused_service_can_be_suspended() -> None:
    scene = ServiceWorld(make_service()).run(10)
    scene.edit(optimize=REFUSED[0][0], suspend=True)
    scene.run(10)
    assert scene.replicas() == []
    assert scene.condition("Accepted")[0] == "True"
    assert scene.condition("Ready")[1] == "Suspended"


@pytest.mark.parametrize(
    ("grace_seconds", "milliseconds", "needed"),
    [(1, 100, 7), (6, 100, 7), (7, 100, None), (36, 30_000, 37), (37, 30_000, None)],
)
def test_the_grace_must_suffice_for_the_drain(
    grace_seconds: int, milliseconds: float, needed: int | None
) -> None:
    template = make_template(terminationGracePeriodSeconds=grace_seconds)
    scene = ServiceWorld(make_service(template=template, objective=Objective(milliseconds))).run(10)
    if needed is None:
        assert scene.condition("Accepted")[0] == "True"
        return
    assert scene.created == []
    assert scene.condition("Accepted") == (
        "False",
        "InvalidSpec",
        f"spec.template.spec.terminationGracePeriodSeconds: must be at least {needed}, or absent: "
        f"3 s until no requests arrive, {milliseconds:g} ms (spec.objective) for the queue, "
        f"3.5 s for the end; got {grace_seconds}",
    )


@pytest.mark.parametrize(
    ("limits", "milliseconds", "text"),
    [
        (
            {"termination_grace_seconds_max": 36},
            30_000,
            "spec.objective.latencyMilliseconds: needs a grace of 37 s: 3 s until no requests "
            "arrive, 30000 ms (spec.objective) for the queue, 3.5 s for the end; the operator's "
            "terminationGraceSecondsMax is 36: lower the one or have the other raised",
        ),
        ({"termination_grace_seconds_max": 37}, 30_000, None),
        (
            {"termination_grace_seconds": 6},
            100,
            "spec.template.spec.terminationGracePeriodSeconds: must be at least 7: 3 s until no "
            "requests arrive, 100 ms (spec.objective) for the queue, 3.5 s for the end; without "
            "it, the operator's terminationGraceSeconds (6) counts",
        ),
        ({"termination_grace_seconds": 7}, 100, None),
        # The objective sets the grace.
        ({"termination_grace_seconds": 6}, 30_000, None),
    ],
)
def test_the_operators_limits_must_leave_the_grace_of_the_drain(
    limits: dict[str, int], milliseconds: float, text: str | None
) -> None:
    scene = ServiceWorld(make_service(objective=Objective(milliseconds)))
    scene.configuration = replace(Configuration(), **limits)
    scene.run(10)
    expected = ("True", "Valid", "the spec is valid")
    if text is not None:
        expected = ("False", "InvalidSpec", text)
    assert scene.condition("Accepted") == expected
    # What the operator renders is what was accepted.
    for one in scene.replicas():
        assert grace_seconds(one.job, scene.configuration) >= needed_grace_seconds(
            scene.service.spec
        )


def test_a_grace_of_the_template_counts_in_place_of_a_short_default() -> None:
    template = make_template(terminationGracePeriodSeconds=7)
    scene = ServiceWorld(make_service(template=template))
    scene.configuration = Configuration(termination_grace_seconds=1)
    assert scene.run(10).condition("Accepted")[0] == "True"


def test_how_an_engine_of_the_users_own_drains_is_unknown() -> None:
    template = make_template(terminationGracePeriodSeconds=1)
    service = make_service(template=template, optimize=ServiceOptimize(EXTERNAL))
    assert ServiceWorld(service).run(10).condition("Accepted")[0] == "True"
