"""A pending job whose pods a dry run refused says so, holds nothing and moves nobody (I4, I15)."""

from dataclasses import replace
from datetime import datetime, timedelta

from gpujob_api.gpujob import GPUJob, JobPhase, SharingMode
from gpujob_operator.decide.model.pending_reasons import PendingReason
from gpujob_operator.decide.model.plan import EventNote, Plan, TryTemplate, WriteStatus
from gpujob_operator.decide.model.snapshot import RefusedTemplate, Snapshot
from gpujob_operator.decide.planner import TRIES_MAX, plan
from tests.harness.builders import make_gpu, make_gpu_node, make_job, make_queue
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


# -- once the refusal has ended


def tried(world: World) -> list[str]:
    items = plan(world.snapshot, world.now).items
    return [item.job.metadata.name for item in items if isinstance(item, TryTemplate)]


def test_it_is_tried_again_while_it_waits_for_capacity() -> None:
    world = one_gpu(whole("other"))
    world.tick()
    world.submit(whole("refused", created=1))
    refuse(world, "refused", 100)
    world.tick(99)
    assert tried(world) == []
    world.tick(10)
    assert tried(world) == ["refused"]
    job = world.job("refused")
    suspended = replace(job, spec=replace(job.spec, suspend=True))
    others = [one for one in world.snapshot.jobs if one.metadata.name != "refused"]
    world.snapshot = replace(world.snapshot, jobs=(*others, suspended))
    assert tried(world) == []


def test_a_cycle_tries_few_and_the_first_refused_before_the_others() -> None:
    world = one_gpu(whole("other"))
    world.tick()
    world.submit(*(whole(f"refused{n:02}", created=1) for n in range(TRIES_MAX + 4)))
    refused = [
        RefusedTemplate(f"uid-refused{n:02}", WORDS, world.now - timedelta(seconds=n))
        for n in range(TRIES_MAX + 4)
    ]
    world.snapshot = replace(world.snapshot, refused_templates=tuple(refused))
    assert tried(world) == [f"refused{n:02}" for n in reversed(range(4, TRIES_MAX + 4))]


class Accepting(World):
    """The API server accepts every template by now."""

    def decide(self, snapshot: Snapshot, now: datetime) -> Plan:
        decided = super().decide(snapshot, now)
        accepted = {
            item.job.metadata.uid
            for item in decided.items
            if isinstance(item, TryTemplate)
            or (isinstance(item, WriteStatus) and item.status.placement is not None)
        }
        left = [one for one in self.snapshot.refused_templates if one.job_uid not in accepted]
        self.snapshot = replace(self.snapshot, refused_templates=tuple(left))
        return decided


def test_quota_is_reclaimed_for_it_once_its_pods_are_accepted() -> None:
    queues = (
        make_queue("org", gpus=1),
        make_queue("owner", parent="org", gpus=1),
        make_queue("guest", parent="org", gpus=0),
    )
    nodes = [make_gpu_node("n0", make_gpu("GPU-0"))]
    world = Accepting(make_job("guest", queue="guest"), gpu_nodes=nodes, queues=queues)
    world.tick()
    world.submit(make_job("owner", queue="owner", created=2))
    refuse(world, "owner", 10)
    world.tick(5)
    assert world.running() == {"guest"}
    for _ in range(6):
        world.tick(60)
    assert world.running() == {"owner"}


def test_a_claim_that_came_late_costs_no_place_in_the_queue_for_long() -> None:
    """Two jobs of half an hour arrive each hour, so that the GPU is just full."""
    world = Accepting(whole("late"), gpu_nodes=[make_gpu_node("n0", make_gpu("GPU-0"))])
    refuse(world, "late", 10)
    world.tick(1)
    for number in range(8):
        world.submit(whole(f"short{number}", created=world.seconds))
        world.tick(900)
        running = [name for name in world.running() if name != "late"]
        world.tick(900)
        for name in running:
            world.end(name)
    assert world.status("late").attempt == 1
