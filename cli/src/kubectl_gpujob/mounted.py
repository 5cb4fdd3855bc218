"""Claims and Secrets that a new job names and that do not exist.

No dry run of the API server looks for them, and the job would wait for a claim.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gpujob_api.gpujob import GPUJob
from gpujob_api.manifest import from_manifest
from gpujob_operator.decide.model.pending_reasons import PendingReason
from gpujob_operator.decide.model.pod_template import claims, missing_claim_text
from kubectl_gpujob.cluster import Cluster
from kubectl_gpujob.errors import UserError

NAMES_MAX = 16


@dataclass(frozen=True, slots=True)
class Missing:
    warnings: tuple[str, ...] = ()
    # The operator's decision about a job without its claim, or "".
    decision: str = ""


def missing_objects(cluster: Cluster, manifest: Mapping[str, Any]) -> Missing:
    """Looks for the objects that the job names. Objects that may not be read are skipped."""
    namespace, job = cluster.namespace, from_manifest(GPUJob, manifest)
    warnings: list[str] = []
    decision = ""
    for name in claims(job)[:NAMES_MAX]:
        if _is_missing(cluster, "persistentvolumeclaims", name):
            said = missing_claim_text(name, namespace)
            warnings.append(f"{said} (kubectl get pvc -n {namespace} lists the existing ones)")
            decision = decision or f"Pending: {PendingReason.CLAIM_NOT_FOUND.value}: {said}"
    for name in list(dict.fromkeys(_secrets(job)))[:NAMES_MAX]:
        if _is_missing(cluster, "secrets", name):
            lists = f"kubectl get secrets -n {namespace} lists the existing ones"
            warnings.append(
                f'secret "{name}" does not exist in the namespace {namespace} ({lists})'
            )
    return Missing(tuple(warnings), decision)


def _secrets(job: GPUJob) -> Iterator[str]:
    """Yields the Secrets of variables that `submit` can name."""
    for entry in job.spec.worker_container().get("envFrom") or ():
        if name := (entry.get("secretRef") or {}).get("name"):
            yield str(name)


def _is_missing(cluster: Cluster, plural: str, name: str) -> bool:
    namespace = cluster.namespace
    what, path = f"{plural} in namespace {namespace}", f"/api/v1/namespaces/{namespace}/{plural}"
    try:
        return not cluster.objects(what, path, fieldSelector=f"metadata.name={name}")
    except UserError:
        return False
