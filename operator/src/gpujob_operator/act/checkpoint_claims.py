"""Makes the claims for the checkpoints of jobs that name no place for them.

A claim is made before the first pod that mounts it, and looked at before each later one. It is read
first: a ResourceQuota, which is asked before the name, may be full because of it.
"""

from collections.abc import Callable

from gpujob_api.gpujob import GPUJob
from gpujob_operator.client.api_errors import AlreadyExists, ApiError, NotFound
from gpujob_operator.client.kube import CLAIMS, Kube, Manifest
from gpujob_operator.decide.model.checkpoint_claim import default_claim_name, gets_default_claim
from gpujob_operator.decide.model.claim_template import ClaimTemplate
from gpujob_operator.read.shapes import mapping, mappings
from gpujob_operator.render.claim import default_claim
from gpujob_operator.telemetry.logs import Log

log = Log(__name__)

_NEXT_STEP = "set spec.checkpoint.volumeClaimName, or name the job otherwise"


class CheckpointClaims:
    """`template` None: no job gets a claim. `as_leader` returns the client for one request that
    changes something, or raises.
    """

    def __init__(
        self, kube: Kube, as_leader: Callable[[], Kube], template: ClaimTemplate | None
    ) -> None:
        self._kube = kube
        self._as_leader = as_leader
        self._template = template

    async def make(self, job: GPUJob) -> None:
        """Makes the job's claim unless it is there, or the job gets none. Raises `ApiError` where
        the job's pods must not be created: also where a claim of the name is not the job's own.
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
    """Why the job must not use the claim; empty where it is the job's own."""
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
            f"{owner} owns it; wait until it is deleted, {_NEXT_STEP}"
        )
    if "deletionTimestamp" in metadata:
        return (
            f'persistentvolumeclaim "{name}" of this job is being deleted with its checkpoints; '
            "a new one is made once it is gone"
        )
    return ""
