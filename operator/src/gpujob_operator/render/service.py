"""Renders the headless Service of a gang, which gives its workers DNS names.

Rank r is `worker-<r>.<service>.<namespace>.svc`, from the pod's hostname and subdomain, which
`render.pod` sets.
"""

from typing import Any

from gpujob_api.gpujob import GPUJob
from gpujob_api.gpuservice import GPUService
from gpujob_api.manifest import RESOURCES
from gpujob_api.meta import API_VERSION, LABEL_JOB, LABEL_JOB_UID

LABEL_CHARACTERS_MAX = 63


def service_name(job: GPUJob) -> str:
    """Returns the Service's name, derived from the UID so that it is unique and starts with a
    letter.
    """
    return f"gpujob-{job.metadata.uid}"


def worker_hostname(rank: int) -> str:
    return f"worker-{rank}"


def master_address(job: GPUJob) -> str:
    """Returns the DNS name of rank 0. It resolves with every dnsPolicy that uses the
    cluster's DNS.
    """
    return f"{worker_hostname(0)}.{service_name(job)}.{job.metadata.namespace}.svc"


def gang_service(job: GPUJob) -> dict[str, Any]:
    """Returns the Service of all attempts of a job. It is deleted with the job."""
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
            # Workers need the names before any of them is ready.
            "publishNotReadyAddresses": True,
        },
    }


def owner_reference(owner: GPUJob | GPUService) -> dict[str, Any]:
    """Returns a reference that makes the object a dependent of the owner.

    The object is deleted with the owner and does not block that.
    """
    return {
        "apiVersion": API_VERSION,
        "kind": RESOURCES[type(owner)].kind,
        "name": owner.metadata.name,
        "uid": owner.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }
