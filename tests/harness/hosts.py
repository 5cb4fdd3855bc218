"""A `World` in which pods take CPU, memory and places on their nodes."""

from collections import defaultdict
from dataclasses import replace
from typing import Any

from gpujob_api.gpujob import GPUJob, SharingMode
from gpujob_operator.decide.model.plan import Plan
from gpujob_operator.decide.model.pod_template import host_requests
from gpujob_operator.decide.model.snapshot import PodView
from tests.harness.builders import make_job, make_template
from tests.harness.world import World


class Hosts(World):
    """The nodes of the snapshot are empty at first."""

    def __init__(self, *jobs: GPUJob, **snapshot: Any) -> None:
        super().__init__(*jobs, **snapshot)
        self._empty = self.snapshot.nodes

    def step(self) -> Plan:
        jobs = {job.metadata.uid: job for job in self.snapshot.jobs}
        pods = tuple(_bound(pod, jobs[pod.job_uid]) for pod in self.snapshot.pods)
        here: dict[str | None, list[PodView]] = defaultdict(list)
        for pod in pods:
            if not pod.finished:
                here[pod.node].append(pod)
        nodes = []
        for node in self._empty:
            requests = [host_requests(jobs[pod.job_uid]) for pod in here[node.name]]
            cpu_milli = sum(one.cpu_milli for one in requests)
            memory_bytes = sum(one.memory_bytes for one in requests)
            nodes.append(
                replace(
                    node,
                    cpu_milli_free=node.cpu_milli_free - cpu_milli,
                    memory_bytes_free=node.memory_bytes_free - memory_bytes,
                    pods_free=node.pods_free - len(requests),
                )
            )
        self.snapshot = replace(self.snapshot, nodes=tuple(nodes), pods=pods)
        return super().step()


def _bound(pod: PodView, job: GPUJob) -> PodView:
    placement = job.status.placement
    if pod.node is not None or placement is None:
        return pod
    return replace(pod, node=placement.workers[pod.rank].node)


def whole(name: str, cpu: str, **fields: Any) -> GPUJob:
    """A job that shares no GPU, each worker of which asks for this CPU."""
    template = make_template(cpu=cpu, command=("train", name))
    return make_job(name, sharing=SharingMode.EXCLUSIVE, template=template, **fields)
