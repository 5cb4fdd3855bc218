"""A job that needs more of a node's CPU than each that ends leaves free is not passed for ever."""

from dataclasses import replace
from typing import Any

from gpujob_api.gpujob import GPUJob, JobPhase, SharingMode
from gpujob_operator.decide.model.plan import Plan
from gpujob_operator.decide.model.pod_template import host_requests
from tests.harness.builders import make_gpu, make_job, make_node, make_template
from tests.harness.world import World

NODE_CPU, GPUS = 13, 4
HOUR_SECONDS = 3600.0


class OneNode(World):
    """A node whose free CPU follows its pods."""

    def step(self) -> Plan:
        pods = tuple(replace(pod, node="n0") for pod in self.snapshot.pods)
        jobs = {job.metadata.uid: job for job in self.snapshot.jobs}
        live = (jobs[pod.job_uid] for pod in pods if not pod.finished)
        free = NODE_CPU * 1000 - sum(host_requests(job).cpu_milli for job in live)
        node = make_node("n0", cpu=NODE_CPU, cpu_milli_free=free)
        self.snapshot = replace(self.snapshot, nodes=(node,), pods=pods)
        return super().step()


def whole(name: str, cpu: str, **fields: Any) -> GPUJob:
    template = make_template(cpu=cpu, command=("train", name))
    return make_job(name, sharing=SharingMode.EXCLUSIVE, template=template, **fields)


def test_a_stream_of_small_jobs_leaves_the_cpu_to_the_one_that_waits() -> None:
    """I11: one of four small jobs of unknown length ends every half hour, and another one comes."""
    small = [whole(f"small{n}", "3") for n in range(GPUS)]
    world = OneNode(*small, gpus=[make_gpu(f"GPU-{n}", index=n) for n in range(GPUS)])
    world.tick()
    world.submit(whole("large", "8", created=1))
    for number in range(GPUS, GPUS + 24):
        world.submit(whole(f"small{number}", "3", created=world.seconds + 2))
        world.tick(HOUR_SECONDS / 2)
        for name in sorted(world.running() - {"large"})[:1]:
            world.end(name)
        world.tick()
        if world.phase("large") is JobPhase.RUNNING:
            break
    assert world.phase("large") is JobPhase.RUNNING
    assert world.seconds < 4 * HOUR_SECONDS
