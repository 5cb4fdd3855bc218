"""Creates the claims for the checkpoints of jobs that name no place for them.

A claim is created before the first pod that mounts it, and checked before each later one. It is
read first, because a ResourceQuota is checked before the name and may be full because of this very
claim.
"""

from collections.abc import Callable

from gpujob_api.gpujob import GPUJob
from gpujob_operator.client.api_errors import AlreadyExists, ApiError, NotFound
from gpujob_operator.client.kube import CLAIMS, Kube, Manifest
from gpujob_operator.decide.model.checkpoint_claim import (
    ClaimTemplate,
    default_claim_name,
    gets_default_claim,
)
from gpujob_operator.read.shapes import mapping, mappings
from gpujob_operator.render.claim import default_claim
from gpujob_operator.telemetry.logs import Log

log = Log(__name__)

_NEXT_STEP = "create the job again with spec.checkpoint.volumeClaimName, or with another name"


class CheckpointClaims:
    """Creates claims. No job gets a claim if `template` is None.

    `as_leader` returns the client for one changing request, or raises.
    """

    def __init__(
        self, kube: Kube, as_leader: Callable[[], Kube], template: ClaimTemplate | None
    ) -> None:
        self._kube = kube
        self._as_leader = as_leader
        self._template = template

    async def make(self, job: GPUJob) -> None:
        """Creates the job's claim unless it exists or the job gets none.

        Raises `ApiError` if the job's pods must not be created. It also raises it if a claim of
        this name does not belong to the job.
        """
        template = self._template
        if template is None or not gets_default_claim(job, template):
            return
        found = await self._found(job)
        if found is None:
            manifest, namespace = default_claim(job, template), job.metadata.namespace
            try:
                await self._as_leader().create(CLAIMS, manifest, namespace)
            except AlreadyExists:
                # Another worker of the job was first, or an answer was lost.
                found = await self._found(job)
            else:
                log.info("claim made", claim=default_claim_name(job), job=job.metadata.key)
        problem = "" if found is None else _problem(found, job)
        if problem:
            raise ApiError(409, "ClaimNotOwned", problem)

    async def _found(self, job: GPUJob) -> Manifest | None:
        try:
            return await self._kube.get(CLAIMS, default_claim_name(job), job.metadata.namespace)
        except NotFound:
            return None


def _problem(claim: Manifest, job: GPUJob) -> str:
    """Returns why the job must not use the claim. Empty if the claim belongs to the job."""
    metadata = mapping(claim.get("metadata"))
    name = default_claim_name(job)
    owners = mappings(metadata.get("ownerReferences"))
    controller = next((one for one in owners if one.get("controller")), None)
    if controller is None:
        return (
            f'persistentvolumeclaim "{name}" exists and is not this job\'s: no controller owns it; '
            f"{_NEXT_STEP}"
        )
    if controller.get("uid") != job.metadata.uid:
        owner = f"{controller.get('kind')} {controller.get('name')} ({controller.get('uid')})"
        return (
            f'persistentvolumeclaim "{name}" exists and is not this job\'s ({job.metadata.uid}): '
            f"{owner} owns it; wait until it is deleted, or {_NEXT_STEP}"
        )
    if "deletionTimestamp" in metadata:
        return (
            f'persistentvolumeclaim "{name}" of this job is being deleted with its checkpoints; '
            "a new one is made once it is gone"
        )
    return ""
