"""The ledger of a whole snapshot, built at once and not kept up to date as the operator does it."""

from collections.abc import Mapping
from datetime import datetime

from gpujob_operator.decide.cache.jobs import Pods
from gpujob_operator.decide.capacity.calibration import laws
from gpujob_operator.decide.capacity.cluster import Capacity, capacity_of
from gpujob_operator.decide.capacity.job_usage import usage_of, usage_of_gone, usage_of_orphans
from gpujob_operator.decide.capacity.prices import rates
from gpujob_operator.decide.capacity.suspects import suspects
from gpujob_operator.decide.capacity.usage import ClusterUsage, Learned
from gpujob_operator.decide.model.pod_requests import PodRequests
from gpujob_operator.decide.model.snapshot import Snapshot
from gpujob_operator.decide.model.workers import job_pods_of


def build_capacity(
    snapshot: Snapshot, now: datetime, host_requests: Mapping[str, PodRequests]
) -> Capacity:
    """The ledger of a whole snapshot. `host_requests` are one worker's of each job, by job UID."""
    pods = Pods()
    _, owners = pods.take(snapshot.pods)
    holdings = ClusterUsage()
    for job in snapshot.jobs:
        uid = job.metadata.uid
        job_pods = job_pods_of(job, pods.namesakes(job))
        holdings.add(usage_of(job, job_pods, host_requests.get(uid, PodRequests())))
    for uid in sorted(owners - {job.metadata.uid for job in snapshot.jobs}):
        holdings.add(usage_of_orphans(pods.owned(uid)))
    for pod in snapshot.gone_pods:
        holdings.add(usage_of_gone(pod))
    views = {view.name: view for view in snapshot.nodes}
    learned = Learned(rates(snapshot), laws(snapshot.profiles), suspects(snapshot.program_faults))
    return capacity_of(
        {
            node.metadata.name: holdings.node(
                views[node.metadata.name], node, snapshot.configuration, now, learned
            )
            for node in snapshot.gpu_nodes
            if node.metadata.name in views
        },
        learned.laws,
    )
