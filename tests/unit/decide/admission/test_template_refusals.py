"""A pending job whose pods a dry run refused says so, holds nothing and moves nobody (I4, I15)."""

from dataclasses import replace
from datetime import timedelta

from gpujob_api.gpujob import GPUJob, JobPhase, SharingMode
from gpujob_operator.decide.model.pending_reasons import PendingReason
from gpujob_operator.decide.model.plan import EventNote, WriteStatus
from gpujob_operator.decide.model.snapshot import RefusedTemplate
from gpujob_operator.decide.planner import plan
from tests.harness.builders import make_gpu, make_gpu_node, make_job
from tests.harness.world import World

WORDS = "spec.volumes[1].name: Duplicate value"


def whole(name: str, priority: int = 0, created: float = 0) -> GPUJob:
    return make_job(name, sharing=SharingMode.EXCLUSIVE, priority=priority, created=created)


def refuse(world: World, name: str, seconds: float, words: str = WORDS) -> None:
    until = world.now + timedelta(seconds=seconds)
    refused = RefusedTemplate(world.job(name).metadata.uid, words, until)
    world.snapshot = replace(world.snapshot, refused_templates=(refused,))


def one_gpu(*jobs: GPUJob) -> World:
    return World(*jobs, gpu_nodes=[make_gpu_node("n0", make_gpu("GPU-0"))])


def test_it_waits_with_the_servers_words_and_others_go_first() -> None:
    world = one_gpu(whole("refused", priority=9), whole("other", created=1))
    refuse(world, "refused", 100)
    world.tick()
    assert world.running() == {"other"}
    assert world.why("refused") == f"PodRejected: the API server refuses the job's pods: {WORDS}"
    assert world.status("refused").attempt == 0


def test_a_claim_that_does_not_exist_has_a_reason_of_its_own() -> None:
    world = one_gpu(whole("refused"))
    refuse(world, "refused", 30, 'persistentvolumeclaim "data" does not exist')
    (refused,) = world.snapshot.refused_templates
    told = replace(refused, reason=PendingReason.CLAIM_NOT_FOUND)
    world.snapshot = replace(world.snapshot, refused_templates=(told,))
    world.tick()
    assert world.why("refused") == 'ClaimNotFound: persistentvolumeclaim "data" does not exist'
    assert world.status("refused").held_back_since is not None, "it is no waiting"


def test_the_servers_words_are_an_event_once() -> None:
    world = one_gpu(whole("refused"))
    refuse(world, "refused", 100)
    told: list[EventNote] = []
    for _ in range(3):
        decided = plan(world.snapshot, world.now)
        told += [e for item in decided.items if isinstance(item, WriteStatus) for e in item.events]
        world.tick()
    assert [(one.reason, WORDS in one.message) for one in told] == [("PodRejected", True)]


def test_what_can_be_done_is_said_as_for_a_pod() -> None:
    world = one_gpu(whole("refused"))
    refuse(world, "refused", 100, "exceeded quota: small, requested: pods=1, limited: pods=0")
    world.tick()
    assert "have the ResourceQuota raised" in world.why("refused")


def test_it_is_decided_again_when_the_template_is_to_be_tried() -> None:
    world = one_gpu(whole("refused"))
    refuse(world, "refused", 100)
    assert plan(world.snapshot, world.now).next_seconds == 100
    world.tick(100)
    assert world.running() == {"refused"}, "the executor tries it before it writes the placement"


def test_nobody_is_preempted_for_it_even_when_it_is_to_be_tried() -> None:
    world = one_gpu(whole("low"))
    world.tick()
    world.submit(whole("refused", priority=9, created=1))
    refuse(world, "refused", 10)
    world.tick(1000)
    assert world.running() == {"low"}
    world.snapshot = replace(world.snapshot, refused_templates=())
    world.tick()
    assert (world.phase("low"), world.phase("refused")) == (JobPhase.PENDING, JobPhase.RUNNING)
