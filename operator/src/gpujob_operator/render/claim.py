"""Renders the claim for the checkpoints of a job that names no place for them."""

from typing import Any

from gpujob_api.gpujob import GPUJob
from gpujob_api.meta import LABEL_JOB, LABEL_JOB_UID
from gpujob_operator.decide.model.checkpoint_claim import ClaimTemplate, default_claim_name
from gpujob_operator.render.service import LABEL_CHARACTERS_MAX, owner_reference


def default_claim(job: GPUJob, template: ClaimTemplate) -> dict[str, Any]:
    """Returns the claim of all attempts of a job. It is deleted with the job."""
    storage_class = template.storage_class_name
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": default_claim_name(job),
            "namespace": job.metadata.namespace,
            "labels": {
                LABEL_JOB: job.metadata.name[:LABEL_CHARACTERS_MAX],
                LABEL_JOB_UID: job.metadata.uid,
            },
            "ownerReferences": [owner_reference(job)],
        },
        "spec": {
            "accessModes": [mode.value for mode in template.access_modes],
            "resources": {"requests": {"storage": template.size.to_json()}},
            # An empty name would mean that no storage class creates the volume.
            **({} if storage_class is None else {"storageClassName": storage_class}),
        },
    }
