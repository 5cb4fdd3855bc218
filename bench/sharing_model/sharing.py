"""Beside whom a job may go: among groups that share GPUs, the one which gains most work.

Sits between `order` (who is next) and placement (which GPUs): a job that finds no free GPUs of
its own joins others only where `interference.may_share` allows it for everybody.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.sharing_model.interference import Calibration, SharingVerdict, Use, may_share

# More than this many on one GPU is never tried, whatever the prediction says.
TENANTS_MAX = 4


@dataclass(frozen=True, slots=True, eq=False)
class Tenant:
    """A job as sharing sees it: what it uses alone, and how much slower a step may become."""

    use: Use
    max_slowdown_percent: float


Judge = Callable[[Sequence[Tenant]], SharingVerdict]


@dataclass(frozen=True, slots=True)
class Choice:
    """Which group to join, what is then predicted for all of it, and the work gained by joining
    (1 = as much as one GPU does for one job)."""

    index: int
    verdict: SharingVerdict
    gain: float


def judge_by(calibration: Calibration) -> Judge:
    """The verdict on tenants of one GPU, by the calibration of its GPU model."""

    def judge(tenants: Sequence[Tenant]) -> SharingVerdict:
        limits = [tenant.max_slowdown_percent for tenant in tenants]
        return may_share([tenant.use for tenant in tenants], limits, calibration)

    return judge


def choose_group(
    candidate: Tenant,
    groups: Sequence[Sequence[Tenant]],
    judge: Judge,
    tenants_max: int = TENANTS_MAX,
) -> Choice | None:
    """The group where the candidate adds most work, the first of equals; None where it adds none.

    The caller offers only groups whose memory and number of GPUs fit.
    """
    best: Choice | None = None
    for index, group in enumerate(groups):
        if not group or len(group) >= min(tenants_max, TENANTS_MAX):
            continue
        verdict = judge((*group, candidate))
        if not verdict.allowed:
            continue
        gain = verdict.gain - judge(group).gain
        if gain > (best.gain if best else 0.0):
            best = Choice(index, verdict, gain)
    return best
