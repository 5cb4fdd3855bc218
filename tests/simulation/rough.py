"""What makes a seed's world as rough as a real cluster, beside its jobs and incidents.

Jobs that are sick themselves, volumes with zones, images that are large or wrong, workers and
agents that lie, evictions, clocks that jump.
"""

from dataclasses import replace
from random import Random
from typing import Any

from gpujob_api.quantities import GIB
from gpujob_api.report import FailureClass
from tests.simulation.faults import FAULTS_END_SECONDS, Incident
from tests.simulation.lies import WorkerLie
from tests.simulation.pod_starts import (
    NEVER_SECONDS,
    SCHEDULER_REASONS,
    SCHEDULER_WORDS,
    NodeRefusal,
)
from tests.simulation.queue_worlds import with_queues
from tests.simulation.quotas import PodQuota
from tests.simulation.service_worlds import with_services
from tests.simulation.workloads import (
    ANY_END,
    EVERY_ATTEMPT,
    NAMESPACES,
    Farewell,
    NodePlan,
    Scenario,
    Submission,
    Workload,
    make_scenario,
    make_spec,
)

ROUGH_INCIDENTS = ("agent-lies", "agent-lies", "pod-evicted", "late-pods")
CLOCKS = ("operator-clock", "node-clock", "node-clock")
# An hour and more: a clock that was never set, a summer time, a restored machine.
CLOCK_ERRORS_SECONDS = (-7200.0, -3600.0, -40.0, 40.0, 3600.0, 90_000.0)
QUOTA_SHARE = 0.2
APART_SHARE = 0.3
UNLABELLED_SHARE = 0.3
REFUSAL_SHARE = 0.3
BREAKING_SHARE = 0.1
BEYOND_CAP_SHARE = 0.2
RESTORE_SHARE = 0.1
FAREWELL_SHARE = 0.4
# What ends pods that scripts may outlive with an exit code of 0, and what takes the traces away.
ENDS = ("pod-evicted-softly", "pod-evicted-softly", "pod-drained", "finished-collected")
# Also beside one that has not been measured, of which nobody knows how busy it is.
CLOSE: dict[str, Any] = {"mode": "Shared", "maxSlowdownPercent": 100}
SMALL_CAP: dict[str, Any] = {"gpu": {"memory": "2Gi"}, "sharing": CLOSE}
HIDDEN_HINT: dict[str, Any] = {"gpu": {"memory": "6Gi"}, "sharing": {"mode": "Shared"}}


def _kinds(random: Random, nodes: tuple[NodePlan, ...]) -> list[tuple[dict[str, Any], Workload]]:
    """(spec fields, truth) of the kinds of rough job."""
    failing: dict[str, Any] = {"failing_attempts": EVERY_ATTEMPT, "expected": "Failed"}
    some_node = random.choice(nodes).name
    steps = random.randint(15, 50)
    return [
        ({}, Workload(steps=steps, failure=FailureClass.UNKNOWN, fail_at_step=4, failing_xid=31,
                      **failing)),
        ({}, Workload(steps=steps, failure=FailureClass.UNKNOWN, fail_at_step=4, failing_attempts=1,
                      host_out_of_memory=True)),
        *(({}, Workload(steps=steps, volume_nodes=(some_node,), volume_is_bound=bound))
          for bound in (True, False)),
        *(({}, Workload(steps=steps, volume_nodes=("elsewhere",), volume_is_bound=bound,
                        expected="Pending")) for bound in (True, False)),
        ({}, Workload(steps=steps, cannot_start="CreateContainerConfigError",
                      cannot_start_until=random.uniform(50, FAULTS_END_SECONDS))),
        ({}, Workload(steps=steps, cannot_start="ImagePullBackOff",
                      cannot_start_until=random.uniform(50, FAULTS_END_SECONDS))),
        ({}, Workload(steps=steps, has_executable=False, expected="Failed")),
        ({}, Workload(steps=steps, pull_seconds=random.choice([30.0, 300.0, 1200.0]))),
        ({}, Workload(2 * GIB, steps=60, later_bytes=9 * GIB, later_at_step=random.randint(20, 40),
                      checkpoint_steps=random.choice([5, 1000]))),
        ({}, Workload(2 * GIB, steps=40, leak_bytes_per_second=40 * 1024**2, expected=ANY_END)),
        (HIDDEN_HINT, Workload(2 * GIB, steps=40, later_bytes=5 * GIB, later_at_step=20)),
        *(({}, Workload(steps=steps, memory_bytes=3 * GIB, lie=lie)) for lie in WorkerLie),
        *((HIDDEN_HINT, Workload(steps=steps, memory_bytes=3 * GIB, lie=lie)) for lie in WorkerLie),
    ]  # fmt: skip


def _has_place_for_two(workload: Workload, nodes: tuple[NodePlan, ...]) -> bool:
    """False where the volume's nodes have one GPU in all, on which a gang never fits."""
    names = workload.volume_nodes
    gpus = [node.gpus for node in nodes if node.name in names]
    return not names or not gpus or sum(gpus) > 1


def make_rough_scenario(seed: int) -> Scenario:
    """The seed's scenario with up to four rough jobs more, in both namespaces."""
    plain = make_scenario(seed)
    random = Random(seed * 86_028_121 + 6)
    more: list[Submission] = []
    for number in range(random.choice([0, 1, 2, 4])):
        fields, workload = random.choice(_kinds(random, plain.nodes))
        if random.random() < 0.2 and _has_place_for_two(workload, plain.nodes):
            fields: dict[str, Any] = {**fields, "workers": 2}
        name = f"rough{number}"
        at = random.uniform(0, 120)
        more.append(
            Submission(
                name, at, make_spec(name, **fields), workload, namespace=random.choice(NAMESPACES)
            )
        )
    submissions = (*plain.submissions, *more)
    submissions = _refused(seed, plain.nodes, submissions)
    submissions = _apart(seed, plain.nodes, submissions)
    submissions = (*submissions, *_breaking(seed), *_beyond_cap(seed))
    submissions = _saying_farewell(seed, submissions)
    quotas = _quotas(seed, submissions, len(plain.impostors))
    made = Scenario(plain.nodes, submissions, plain.troubles, plain.impostors, quotas=quotas)
    return with_services(seed, with_queues(seed, made))


def _refused(
    seed: int, nodes: tuple[NodePlan, ...], submissions: tuple[Submission, ...]
) -> tuple[Submission, ...]:
    """Of some seeds, one or two jobs whose pods kube-scheduler refuses on a node: for a while, or
    for ever where another node is enough.
    """
    random = Random(seed * 86_028_157 + 10)
    if random.random() >= REFUSAL_SHARE:
        return submissions
    found = list(submissions)
    for _ in range(random.choice([1, 2])):
        number = random.randrange(len(found))
        one = found[number]
        refusal = NodeRefusal(
            (random.choice(nodes).name,),
            random.choice(SCHEDULER_WORDS),
            random.uniform(one.at + 10, FAULTS_END_SECONDS),
        )
        if _fits_anywhere(one) and random.random() < 0.5:
            refusal = replace(refusal, until=NEVER_SECONDS)
        else:
            refusal = replace(refusal, reason=SCHEDULER_REASONS[seed % len(SCHEDULER_REASONS)])
        workload = replace(one.workload, refusal=refusal)
        found[number] = replace(one, workload=workload)
    return tuple(found)


def _saying_farewell(seed: int, submissions: tuple[Submission, ...]) -> tuple[Submission, ...]:
    """Of some seeds, every other healthy job saves by itself when it is asked to end."""
    random = Random(seed * 86_028_211 + 14)
    if random.random() >= FAREWELL_SHARE:
        return submissions
    found: list[Submission] = []
    for one in submissions:
        says = random.choice(list(Farewell))
        fits = one.workload.is_healthy and one.workload.lie is None
        if fits and not one.workload.ignores_sigterm and random.random() < 0.5:
            one = replace(one, workload=replace(one.workload, farewell=says))
        found.append(one)
    return tuple(found)


def _apart(
    seed: int, nodes: tuple[NodePlan, ...], submissions: tuple[Submission, ...]
) -> tuple[Submission, ...]:
    """Of some seeds, gangs of which kube-scheduler takes one worker on a node, for whatever reason,
    where there are nodes enough that any job may use."""
    random = Random(seed * 86_028_223 + 16)
    if random.random() >= APART_SHARE:
        return submissions
    found: list[Submission] = []
    for one in submissions:
        workers, gpus = one.spec.get("workers", 1), one.spec.get("gpusPerWorker", 1)
        large = [node for node in nodes if node.gpus >= gpus and not node.spot]
        anywhere = one.workload.refusal is None and not one.workload.volume_nodes
        if workers > 1 and anywhere and len(large) >= workers:
            one = replace(one, workload=replace(one.workload, one_on_a_node=True))
        found.append(one)
    return tuple(found)


def _fits_anywhere(submission: Submission) -> bool:
    """Any single node but a spot node is enough for it."""
    spec = submission.spec
    size = spec.get("workers", 1) * spec.get("gpusPerWorker", 1)
    return size == 1 and not submission.workload.volume_nodes


def _breaking(seed: int) -> tuple[Submission, ...]:
    """Of some seeds, a job that breaks every GPU it is on; somebody resets each of them."""
    random = Random(seed * 86_028_163 + 11)
    if random.random() >= BREAKING_SHARE:
        return ()
    workload = Workload(
        steps=100_000,
        breaks_gpus=True,
        repaired_after_seconds=random.uniform(30, 120),
        checkpoint_steps=random.choice([1, 10, 1000]),
        expected="Failed",
    )
    spec = make_spec("breaking", sharing={"mode": random.choice(["Exclusive", "Auto"])})
    at, namespace = random.uniform(0, 120), random.choice(NAMESPACES)
    return (Submission("breaking", at, spec, workload, namespace=namespace),)


def _beyond_cap(seed: int) -> tuple[Submission, ...]:
    """Of some seeds, a job that keeps no cap: by as much as a context, or far beyond, for ever."""
    random = Random(seed * 86_028_173 + 13)
    if random.random() >= BEYOND_CAP_SHARE:
        return ()
    workload = random.choice(
        [
            # Where its GPU has no more than its cap, it runs out of memory.
            Workload(int(2.5 * GIB), steps=40, ignores_cap=True, expected=ANY_END),
            Workload(
                random.choice([3, 6, 17]) * GIB, steps=2000, ignores_cap=True, expected="Failed"
            ),
        ]
    )
    spec, at = make_spec("beyond", **SMALL_CAP), random.uniform(0, 120)
    return (Submission("beyond", at, spec, workload, namespace=random.choice(NAMESPACES)),)


def _quotas(seed: int, submissions: tuple[Submission, ...], others: int) -> tuple[PodQuota, ...]:
    """Of some seeds one namespace may have few pods at a time, but as many as its largest gang,
    and so many more for pods that are nobody's and may run for ever.
    """
    random = Random(seed * 32_452_843 + 8)
    if random.random() >= QUOTA_SHARE:
        return ()
    namespace = random.choice(NAMESPACES)
    gangs = [one.spec.get("workers", 1) for one in submissions if one.namespace == namespace]
    return (PodQuota(namespace, others + max([*gangs, random.choice([1, 2, 3])])),)


def make_rough_incidents(seed: int, nodes: list[str]) -> list[Incident]:
    """Beside the incidents of the seed."""
    random = Random(seed * 49_979_687 + 7)
    clocks = [
        Incident(
            random.uniform(1, FAULTS_END_SECONDS - 100),
            random.choice(CLOCKS),
            random.choice(nodes),
            random.choice(CLOCK_ERRORS_SECONDS),
        )
        for _ in range(random.choice([0, 0, 1, 3]))
    ]
    return (
        clocks
        + _restores(seed)
        + _ends(seed, nodes)
        + _unlabelled(seed, nodes)
        + [
            Incident(
                random.uniform(1, FAULTS_END_SECONDS - 100),
                random.choice(ROUGH_INCIDENTS),
                random.choice(nodes),
                random.uniform(10, 95),
            )
            for _ in range(random.choice([0, 0, 1, 2, 4]))
        ]
    )


def _ends(seed: int, nodes: list[str]) -> list[Incident]:
    random = Random(seed * 86_028_221 + 15)
    return [
        Incident(
            random.uniform(10, FAULTS_END_SECONDS - 100),
            random.choice(ENDS),
            random.choice(nodes),
            random.choice([2.0, 30.0]),
        )
        for _ in range(random.choice([0, 1, 2, 4]))
    ]


def _unlabelled(seed: int, nodes: list[str]) -> list[Incident]:
    """Of some seeds, one or two nodes that are not managed for a while, or all for a moment."""
    random = Random(seed * 86_028_233 + 17)
    if random.random() >= UNLABELLED_SHARE:
        return []
    at = random.uniform(10, FAULTS_END_SECONDS - 100)
    names = nodes if random.random() < 0.3 else random.choices(nodes, k=2)
    return [Incident(at, "label-removed", name, random.uniform(5, 95)) for name in names]


def _restores(seed: int) -> list[Incident]:
    """Of some seeds, a restore of the API server's data from a backup. All nodes joined before."""
    random = Random(seed * 86_028_169 + 12)
    if random.random() >= RESTORE_SHARE:
        return []
    at = random.uniform(10, FAULTS_END_SECONDS - 30)
    lost_seconds = min(at - 1, random.choice([random.uniform(1, 15), random.uniform(1, 90)]))
    return [Incident(at, "restore", "", lost_seconds)]
