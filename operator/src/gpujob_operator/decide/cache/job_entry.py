"""What is remembered of one job from cycle to cycle, and what its step was decided from."""

from dataclasses import dataclass, field
from datetime import datetime

from gpujob_api.gpujob import GPUJob
from gpujob_api.gpuprofile import GPUProfile
from gpujob_operator.decide.cache.volumes import ClaimKey
from gpujob_operator.decide.lifecycle.inputs import JobInputs
from gpujob_operator.decide.measurement.profile import WorkloadKeys
from gpujob_operator.decide.model.plan import NextStep
from gpujob_operator.decide.model.pod_requests import PodRequests
from gpujob_operator.decide.model.snapshot import BoundVolume
from gpujob_operator.decide.model.workers import JobPods
from gpujob_operator.decide.placement.requirements import JobRequirements

ProfileKey = tuple[str, str]
_Version = tuple[int, int]


@dataclass(slots=True)
class JobEntry:
    """One job, with what follows from it alone; the rest is set as it is found out."""

    job: GPUJob
    requests: PodRequests
    # Of the spec.
    spec_keys: WorkloadKeys
    # Of the attempt that the job has, else of the spec.
    keys: WorkloadKeys
    held: bool
    claims: tuple[ClaimKey, ...] = ()
    job_pods: JobPods = field(default_factory=JobPods)
    profile: GPUProfile | None = None
    # What its claims are bound to.
    volumes: tuple[BoundVolume, ...] = ()
    # Found when first asked for.
    requirements: JobRequirements | None = None
    # The last decision, which was to write nothing, and until when nothing else can follow.
    inputs: JobInputs | None = None
    step: NextStep | None = None
    quiet_until: datetime | None = None

    @property
    def profile_key(self) -> ProfileKey:
        return self.keys.profile

    @property
    def waits(self) -> bool:
        """True for a job that admission looks at."""
        job = self.job
        return not self.held and job.metadata.deletion_timestamp is None and not job.finished


def spec_version(job: GPUJob) -> _Version:
    """A spec changes with its generation; without one (0) nothing is known to be the same."""
    generation = job.metadata.generation
    return (generation, 0) if generation else (0, id(job))
