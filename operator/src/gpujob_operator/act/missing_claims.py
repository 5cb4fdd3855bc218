"""Whether the claims that a job's pods mount are there, which no dry run asks.

A pod whose claim does not exist would hold its GPUs and wait for it.
"""

from gpujob_api.gpujob import GPUJob
from gpujob_operator.act.kube import CLAIMS, ApiError, Forbidden, Kube, NotFound
from gpujob_operator.decide.model.pod_template import claims
from gpujob_operator.logs import Log

log = Log(__name__)

CLAIMS_MAX = 16


class MissingClaim(ApiError):  # noqa: N818 - a state of affairs, not a fault
    """A claim that a job's pods mount does not exist."""


async def look_for_claims(kube: Kube, job: GPUJob) -> None:
    """Raises `MissingClaim` for the first one that is not there, and `ApiError`. Claims that the
    operator makes are left out, and all of them if it may not read any.
    """
    namespace = job.metadata.namespace
    for name in claims(job)[:CLAIMS_MAX]:
        try:
            await kube.get(CLAIMS, name, namespace)
        except Forbidden as error:
            log.info("claims are not looked for", job=job.metadata.key, error=str(error))
            return
        except NotFound:
            text = (
                f'persistentvolumeclaim "{name}" does not exist in the namespace {namespace}:'
                " create it, or name another one"
            )
            raise MissingClaim(404, "ClaimNotFound", text) from None
