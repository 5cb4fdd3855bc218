"""A gang to the headless Service that gives its workers names, so that they find each other.

Rank r is `worker-<r>.<service>.<namespace>.svc` in the cluster's DNS: from the pod's hostname and
subdomain, which `render.pod` sets.
"""

from typing import Any

from gpujob_api.gpujob import GPUJob
from gpujob_api.meta import API_VERSION, LABEL_JOB, LABEL_JOB_UID

LABEL_CHARACTERS_MAX = 63


def service_name(job: GPUJob) -> str:
    """By UID: nobody else's Service has this name, and it begins with a letter as it must."""
    return f"gpujob-{job.metadata.uid}"


def worker_hostname(rank: int) -> str:
    return f"worker-{rank}"


def master_address(job: GPUJob) -> str:
    """Where rank 0 listens; found with every dnsPolicy that asks the cluster's DNS."""
    return f"{worker_hostname(0)}.{service_name(job)}.{job.metadata.namespace}.svc"


def gang_service(job: GPUJob) -> dict[str, Any]:
    """One a job, for all of its attempts; it goes with the job."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": service_name(job),
            "namespace": job.metadata.namespace,
            "labels": {
                LABEL_JOB: job.metadata.name[:LABEL_CHARACTERS_MAX],
                LABEL_JOB_UID: job.metadata.uid,
            },
            "ownerReferences": [owner_reference(job)],
        },
        "spec": {
            "clusterIP": "None",
            "selector": {LABEL_JOB_UID: job.metadata.uid},
            # Workers look for each other before any of them is ready.
            "publishNotReadyAddresses": True,
        },
    }


def owner_reference(job: GPUJob) -> dict[str, Any]:
    """What is owned goes when the job goes, and does not hold it up."""
    return {
        "apiVersion": API_VERSION,
        "kind": "GPUJob",
        "name": job.metadata.name,
        "uid": job.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }
