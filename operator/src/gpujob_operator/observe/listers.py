"""Looks objects up in the observed cache, as the listers of client-go do."""

from collections.abc import Iterator, Mapping

from gpujob_api.gpujob import GPUJob
from gpujob_api.gpuservice import GPUService
from gpujob_operator.decide.model.gates import GatePod
from gpujob_operator.decide.model.pod_requests import PodRequests
from gpujob_operator.decide.model.snapshot import InvalidJob, PodView
from gpujob_operator.decide.model.workers import job_name_of, speaks_for
from gpujob_operator.observe.store import Store
from gpujob_operator.read.pods import CachedPod


class Listers:
    """Returns the newest stored objects. Invalid jobs are left out."""

    def __init__(
        self,
        jobs: Store[GPUJob | InvalidJob],
        pods: Store[CachedPod],
        services: Store[GPUService],
        gates: Mapping[str, GatePod],
    ) -> None:
        """`gates` are the pods that are gates of services, by UID."""
        self._jobs = jobs
        self._pods = pods
        self._services = services
        self._gates = gates

    def pod(self, uid: str) -> PodView | None:
        pod = self._pods.get(uid)
        return None if pod is None else pod.view

    def gate(self, uid: str) -> GatePod | None:
        return self._gates.get(uid)

    def gates(self) -> tuple[GatePod, ...]:
        """Returns the pods that are gates of services."""
        return tuple(self._gates.values())

    def service(self, uid: str) -> GPUService | None:
        return self._services.get(uid)

    def job(self, uid: str) -> GPUJob | None:
        job = self._jobs.get(uid)
        return job if isinstance(job, GPUJob) else None

    def job_named(self, namespace: str, name: str) -> GPUJob | None:
        job = self._jobs.by_name(name, namespace)
        return job if isinstance(job, GPUJob) else None

    def job_of(self, pod: PodView) -> GPUJob | None:
        """Returns the job whose worker the pod is, or None."""
        namespace, name = job_name_of(pod) or ("", "")
        job = self.job_named(namespace, name)
        return job if job is not None and speaks_for(pod, job) else None

    def requests_of_jobs(self, namespace: str) -> Iterator[PodRequests]:
        """Yields the requests of the jobs' pods in the namespace, without pods that have ended."""
        for pod in self._pods.views:
            view = pod.view
            if view is None or view.namespace != namespace or pod.finished:
                continue
            if self.job_of(view) is not None:
                yield pod.requests

    def held_gpus(self) -> Iterator[str]:
        """Yields the UUIDs of the GPUs that each job holds. A shared one comes several times."""
        for job in self._jobs.views:
            if isinstance(job, GPUJob) and job.status.placement is not None and not job.finished:
                for worker in job.status.placement.workers:
                    yield from worker.gpus
