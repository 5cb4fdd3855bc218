"""Claims and Secrets that a job names and that do not exist or cannot be mounted.

No dry run of the API server looks for them, and the job would wait for a claim.
"""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpujob_api.gpujob import GPUJob
from gpujob_api.manifest import from_manifest
from gpujob_operator.decide.model.pending_reasons import PendingReason
from gpujob_operator.decide.model.pod_template import claims, missing_claim_text
from gpujob_operator.read.claims import claim_problem
from kubectl_gpujob.cluster import Cluster, Manifest
from kubectl_gpujob.errors import UserError

NAMES_MAX = 16

# Namespace and name.
Key = tuple[str, str]


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
        said = _claim_problem(cluster, namespace, name)
        if said:
            warnings.append(_with_list(said, namespace))
            decision = decision or f"Pending: {PendingReason.CLAIM_NOT_FOUND.value}: {said}"
    for name in list(dict.fromkeys(_secrets(job)))[:NAMES_MAX]:
        if _is_missing(cluster, namespace, "secrets", name):
            lists = f"kubectl get secrets -n {namespace} lists the existing ones"
            warnings.append(
                f'secret "{name}" does not exist in the namespace {namespace} ({lists})'
            )
    return Missing(tuple(warnings), decision)


def missing_claims(
    cluster: Cluster, jobs: Iterable[GPUJob], given: Container[Key] = ()
) -> list[str]:
    """Returns a warning for each claim of the jobs that is not among `given` and that new pods
    cannot mount.

    Claims that may not be read are skipped.
    """
    problems = (
        (key[0], _claim_problem(cluster, *key)) for key in named_claims(jobs) if key not in given
    )
    return [_with_list(problem, namespace) for namespace, problem in problems if problem]


def named_claims(jobs: Iterable[GPUJob]) -> Sequence[Key]:
    """Returns the claims that the jobs mount, at most `NAMES_MAX`."""
    keys = {(job.metadata.namespace, name): None for job in jobs for name in claims(job)}
    return list(keys)[:NAMES_MAX]


def claim_warning(key: Key) -> str:
    namespace, name = key
    return _with_list(missing_claim_text(name, namespace), namespace)


def _with_list(problem: str, namespace: str) -> str:
    return f"{problem} (kubectl get pvc -n {namespace} lists the existing ones)"


def _secrets(job: GPUJob) -> Iterator[str]:
    """Yields the Secrets of variables that `submit` can name."""
    for entry in job.spec.worker_container().get("envFrom") or ():
        if name := (entry.get("secretRef") or {}).get("name"):
            yield str(name)


def _claim_problem(cluster: Cluster, namespace: str, name: str) -> str:
    found = _found(cluster, namespace, "persistentvolumeclaims", name)
    return "" if found is None else claim_problem(name, namespace, next(iter(found), None))


def _is_missing(cluster: Cluster, namespace: str, plural: str, name: str) -> bool:
    return _found(cluster, namespace, plural, name) == []


def _found(cluster: Cluster, namespace: str, plural: str, name: str) -> list[Manifest] | None:
    """Returns the object in a list, or None if it may not be read."""
    what, path = f"{plural} in namespace {namespace}", f"/api/v1/namespaces/{namespace}/{plural}"
    try:
        return cluster.objects(what, path, fieldSelector=f"metadata.name={name}")
    except UserError:
        return None
