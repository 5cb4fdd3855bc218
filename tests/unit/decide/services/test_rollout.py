"""Replicas are created, replaced and removed so that no request finds fewer than wanted."""

from dataclasses import replace
from datetime import timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from gpujob_api.gpujob import WorkerPlacement
from gpujob_api.gpuservice import Replicas
from gpujob_api.serving import Objective
from gpujob_operator.decide.services.rollout import AWAY_MAX
from tests.harness.builders import make_template
from tests.harness.services import Live, ServiceWorld, make_service

NEW = make_template(command=("serve", "--version=2"))


def _workers(live: Live) -> tuple[WorkerPlacement, ...]:
    placement = live.job.status.placement
    return placement.workers if placement is not None else ()


def world(replicas: int = 2, most: int | None = None) -> ServiceWorld:
    return ServiceWorld(make_service(replicas=Replicas(replicas, most)))


def test_a_service_gets_its_replicas_one_after_the_other_and_nothing_more() -> None:
    """Each is created once the one before it has its GPU, so it can avoid that node."""
    scene = world(3).run(10)
    assert scene.answering == [0, 0, 0, 1, 2, 3, 3, 3, 3, 3]
    nodes = [worker.node for one in scene.ready() for worker in _workers(one)]
    assert len(set(nodes)) == 3
    assert len(scene.created) - 1 == 3, "and one measurement of backends"
    assert scene.condition("Ready")[:2] == ("True", "ReplicasReady")
    assert scene.condition("Progressing")[:2] == ("False", "Complete")


def test_a_replica_waits_for_the_gpu_of_a_removed_one_if_enough_answer() -> None:
    """Otherwise it would join another replica, and one node would be both."""
    scene = world(2)
    scene.nodes = ("n0", "n1", "n2")
    scene.run(15)
    scene.edit(template=NEW)
    for _ in range(60):
        scene.tick()
        nodes = [
            worker.node
            for one in scene.replicas()
            if one.gone_at is None
            for worker in _workers(one)
        ]
        assert len(set(nodes)) == len(nodes)
    assert len(scene.ready()) == 2


def test_replicas_share_a_node_if_there_is_no_other() -> None:
    scene = world(3)
    scene.nodes = ("n0",)
    scene.run(10)
    assert len(scene.ready()) == 3


def test_a_replica_without_a_gpu_waits_alone() -> None:
    scene = world(3)
    scene.start_seconds = lambda name: None
    scene.run(30)
    assert len(scene.replicas()) == 1


def test_an_edit_of_the_template_replaces_one_replica_after_the_other() -> None:
    scene = world(3).run(10)
    before = scene.revisions()
    scene.edit(template=NEW)
    for _ in range(40):
        scene.tick()
        assert len(scene.ready()) >= 3
        assert sum(one.gone_at is None for one in scene.replicas()) <= 4
    assert len(scene.revisions()) == 1
    assert not scene.revisions() & before
    assert scene.condition("Progressing")[1] == "Complete"


def test_an_edit_of_the_objective_is_another_revision_too() -> None:
    scene = world().run(10)
    before = scene.revisions()
    scene.edit(objective=Objective(20.0))
    scene.run(30)
    assert not scene.revisions() & before


def test_a_new_revision_that_never_answers_leaves_the_old_one_in_place() -> None:
    scene = world(2).run(10)
    scene.start_seconds = lambda name: None
    scene.edit(template=NEW)
    scene.run(700)
    assert set(scene.answering[10:]) == {2}
    assert scene.condition("Ready")[0] == "True"
    status, reason, message = scene.condition("Progressing")
    assert (status, reason) == ("False", "Stuck")
    assert "0 of 2 have revision" in message
    assert "10 min" in message


def test_an_interrupted_replica_is_replaced_before_it_is_gone() -> None:
    scene = world(2).run(10)
    victim = scene.ready()[0].job.metadata.name
    scene.interrupt(victim, grace_seconds=60, back_seconds=600)
    scene.run(5)
    assert len(scene.ready()) == 2, "the replacement started while the node had its grace"
    assert victim not in [one.job.metadata.name for one in scene.ready()]


def test_an_interrupted_replica_that_comes_back_is_one_too_many() -> None:
    scene = world(2).run(10)
    kept = {one.job.metadata.name for one in scene.ready()}
    victim = scene.ready()[0].job.metadata.name
    scene.interrupt(victim, grace_seconds=5, back_seconds=5)
    scene.run(40)
    names = {one.job.metadata.name for one in scene.replicas()}
    assert len(names) == 2
    assert names & kept == kept - {victim}, "one that answers is never removed for one that waits"


def test_a_suspended_service_has_no_replicas_and_comes_back() -> None:
    scene = world(2).run(10)
    scene.edit(suspend=True)
    scene.run(5)
    assert scene.jobs == {}
    assert scene.condition("Ready")[:2] == ("False", "Suspended")
    scene.edit(suspend=False)
    scene.run(10)
    assert len(scene.ready()) == 2


def test_a_service_that_is_being_deleted_creates_nothing() -> None:
    scene = world(2)
    metadata = scene.service.metadata
    scene.service = replace(scene.service, metadata=replace(metadata, deletion_timestamp=scene.now))
    scene.run(5)
    assert scene.created == []
    assert all(not step.changes for step in scene.steps)


@settings(max_examples=25)
@given(
    wanted=st.integers(1, 4),
    acts=st.lists(
        st.tuples(
            st.integers(1, 25), st.sampled_from(("edit", "interrupt", "fail", "suspend", "wait"))
        ),
        max_size=8,
    ),
    seconds=st.floats(0, 20),
)
def test_any_sequence_of_events_ends_complete(
    wanted: int, acts: list[tuple[int, str]], seconds: float
) -> None:
    """After the last event: as many replicas as wanted, of one revision, and none left over."""
    scene = world(wanted)
    scene.start_seconds = lambda name: seconds
    version = 0
    for pause, act in acts:
        scene.run(pause)
        ready = scene.ready()
        if act == "edit":
            version += 1
            scene.edit(template=make_template(command=("serve", str(version))))
        elif act == "suspend":
            scene.edit(suspend=not scene.service.spec.suspend)
        elif act == "interrupt" and ready:
            scene.interrupt(ready[0].job.metadata.name)
        elif act == "fail" and ready:
            scene.fail(ready[0].job.metadata.name)
        assert sum(one.gone_at is None and not one.job.finished for one in scene.replicas()) <= (
            2 * wanted + 1
        )
    scene.edit(suspend=False)
    scene.run(900)
    assert len(scene.ready()) == wanted
    assert len({one.job.metadata.name.rsplit("-", 2)[1] for one in scene.ready()}) == 1
    left_over = [one for one in scene.replicas() if not one.ready]
    assert all(one.job.finished for one in left_over), "the newest failed one is kept for its log"
    assert len(left_over) <= 1
    assert scene.condition("Progressing")[1] == "Complete"


def test_another_queue_or_priority_reaches_the_replicas() -> None:
    scene = ServiceWorld(make_service(replicas=Replicas(2))).run(10)
    since = len(scene.answering)
    scene.edit(queue="production", priority=7)
    scene.run(30)
    assert {(one.job.spec.queue, one.job.spec.priority) for one in scene.ready()} == {
        ("production", 7)
    }
    assert min(scene.answering[since:]) == 2


# -- a rollout that is stuck


def stuck(replicas: int = 1) -> ServiceWorld:
    """An edit names an image that does not exist."""
    scene = world(replicas).run(20)
    old = scene.status.revision
    scene.start_seconds = lambda name: 3.0 if f"-{old}-" in name else None
    scene.edit(template=make_template(image="gone:2"))
    scene.run(1200)
    assert scene.condition("Progressing")[1] == "Stuck"
    assert len(scene.ready()) == replicas
    return scene


def test_an_old_replica_whose_probe_fails_once_is_kept_while_nothing_replaces_it() -> None:
    scene = stuck()
    (live,) = scene.ready()
    live.ready = False
    live.ready_at = scene.now + timedelta(seconds=2)
    scene.run(600)
    assert [one.job.metadata.name for one in scene.ready()] == [live.job.metadata.name]


def test_interrupted_old_replicas_come_back_while_nothing_replaces_them() -> None:
    scene = stuck(2)
    for live in list(scene.ready()):
        scene.interrupt(live.job.metadata.name)
        scene.run(300)
    assert len(scene.ready()) == 2


def test_an_old_replica_that_stays_away_makes_room() -> None:
    """What is edited may be the mend of just that."""
    scene = stuck()
    (live,) = scene.ready()
    live.ready, live.ready_at = False, scene.now + timedelta(days=1)
    scene.run(int(AWAY_MAX.total_seconds()) - 10)
    assert live.gone_at is None
    scene.run(30)
    assert live.gone_at is not None


def test_a_second_edit_of_a_stuck_rollout_begins_anew() -> None:
    scene = stuck()
    scene.edit(template=make_template(image="right:3"))
    scene.run(2)
    assert scene.condition("Progressing")[1] == "Updating"
