"""What is kept of one job from cycle to cycle, and the inputs of its last step."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from gpujob_api.gpujob import GPUJob
from gpujob_api.gpuprofile import GPUProfile
from gpujob_operator.decide.cache.groups import ListDiff
from gpujob_operator.decide.lifecycle.inputs import JobInputs
from gpujob_operator.decide.measurement.profile import WorkloadKeys
from gpujob_operator.decide.model.plan import NextStep
from gpujob_operator.decide.model.pod_requests import PodRequests
from gpujob_operator.decide.model.snapshot import BoundVolume
from gpujob_operator.decide.model.workers import JobPods
from gpujob_operator.decide.placement.requirements import JobRequirements

ProfileKey = tuple[str, str]
_Version = tuple[int, int]


# A namespace and a claim's name.
ClaimKey = tuple[str, str]


@dataclass(slots=True)
class Volumes:
    """The volumes that claims are bound to, by claim. `take` the lists in order."""

    _by_claim: dict[ClaimKey, dict[str, BoundVolume]] = field(
        default_factory=dict[ClaimKey, dict[str, BoundVolume]]
    )
    _diff: ListDiff[BoundVolume] = field(default_factory=lambda: ListDiff[BoundVolume]())

    def take(self, volumes: tuple[BoundVolume, ...]) -> set[ClaimKey]:
        """Takes the observed volumes. Returns the claims whose volumes came, changed or went."""
        new, gone = self._diff.take(volumes)
        for one in gone:
            of_claim = self._by_claim.get(_claim_of(one), {})
            if of_claim.get(one.name) is one:
                del of_claim[one.name]
            if not of_claim:
                self._by_claim.pop(_claim_of(one), None)
        for one in new:
            self._by_claim.setdefault(_claim_of(one), {})[one.name] = one
        return {_claim_of(one) for one in (*new, *gone)}

    def of(self, claims: Iterable[ClaimKey]) -> tuple[BoundVolume, ...]:
        """Returns the volumes of these claims, by claim and name."""
        found = (self._by_claim.get(claim, {}) for claim in claims)
        return tuple(of_claim[name] for of_claim in found for name in sorted(of_claim))


def _claim_of(volume: BoundVolume) -> ClaimKey:
    return volume.namespace, volume.claim


@dataclass(slots=True)
class JobEntry:
    """One job with what is derived from it alone. The other fields are set later."""

    job: GPUJob
    requests: PodRequests
    # Keys of the spec.
    spec_keys: WorkloadKeys
    # Keys of the job's attempt, or of the spec without an attempt.
    keys: WorkloadKeys
    held: bool
    claims: tuple[ClaimKey, ...] = ()
    job_pods: JobPods = field(default_factory=JobPods)
    profile: GPUProfile | None = None
    # The volumes that its claims are bound to.
    volumes: tuple[BoundVolume, ...] = ()
    # Computed on first use.
    requirements: JobRequirements | None = None
    # The last decision, which was to write nothing, and the time until which it holds.
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
    """A spec changes with its generation. Without one (0), every object counts as a new version."""
    generation = job.metadata.generation
    return (generation, 0) if generation else (0, id(job))
