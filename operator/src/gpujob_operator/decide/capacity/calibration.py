"""Calibrates the slowdown law for each GPU model by this cluster's own measurements.

The profile of every workload that ran next to co-tenants has its slowdown by band of the GPU's
summed utilization. The figures are reported by workers, and workloads cost nothing, so each
namespace has one vote. For each band, the vote is the median of its workloads and of some workloads
that follow the published law. The calibrated law is the median of the votes and the published law.
One namespace alone changes nothing. Values are in steps of half a percent, and never decrease with
utilization.
"""

from collections.abc import Iterable, Mapping
from statistics import median

from gpujob_api.gpuprofile import GPUProfile, SharedPace
from gpujob_operator.decide.capacity.slowdown_law import BANDS_PERCENT, PUBLISHED_SLOWDOWNS, Law

PRIOR_WORKLOADS = 3
NAMESPACES_MIN = 2
# A job can allow no more than this (`sharing.maxSlowdownPercent`), so no vote has to be higher.
VOTE_PERCENT_MAX = 100.0
_STEPS_PER_PERCENT = 2
# A smaller increase is not written.
WORTH_WRITING_PERCENT = 5.0


def band_percent(summed_percent: float) -> int:
    """Returns the upper bound of the band of this summed utilization, in percent."""
    return next(bound for bound in BANDS_PERCENT if summed_percent < bound)


def laws(profiles: Iterable[GPUProfile]) -> dict[str, Law]:
    """Returns the calibrated laws by GPU model, for models with measurements."""
    measured: dict[str, dict[int, dict[str, list[float]]]] = {}
    for profile in profiles:
        for entry in profile.status.entries:
            for pace in entry.shared:
                bands = measured.setdefault(entry.gpu_model, {})
                namespaces = bands.setdefault(pace.up_to_percent, {})
                workloads = namespaces.setdefault(profile.metadata.namespace, [])
                workloads.append(pace.slowdown_percent)
    return {model: _law(bands) for model, bands in measured.items()}


def _law(measured: Mapping[int, Mapping[str, list[float]]]) -> Law:
    found: list[float] = []
    for bound, published in zip(BANDS_PERCENT, PUBLISHED_SLOWDOWNS, strict=True):
        slowdown = _middle(published, measured.get(bound, {}))
        found.append(max([slowdown, *found]))
    return found[0], found[1], found[2], found[3]


def _middle(published: float, measured: Mapping[str, list[float]]) -> float:
    """Returns the namespaces' slowdown of a band. Each namespace has one vote."""
    if len(measured) < NAMESPACES_MIN:
        return published
    votes = [_vote(published, workloads) for workloads in measured.values()]
    middle = median([published, *votes])
    if middle == published:
        return published
    return round(middle * _STEPS_PER_PERCENT) / _STEPS_PER_PERCENT


def _vote(published: float, workloads: list[float]) -> float:
    capped = [min(percent, VOTE_PERCENT_MAX) for percent in workloads]
    return median([*[published] * PRIOR_WORKLOADS, *capped])


def with_pace(known: tuple[SharedPace, ...], pace: SharedPace | None) -> tuple[SharedPace, ...]:
    """Returns the profile's figures with this measurement added, if that changes anything.

    The largest measured slowdown counts. Runs with different co-tenants therefore converge and stop
    writing.
    """
    if pace is None:
        return known
    before = next((one for one in known if one.up_to_percent == pace.up_to_percent), None)
    if before is not None:
        grown_percent = pace.slowdown_percent - before.slowdown_percent
        if grown_percent < WORTH_WRITING_PERCENT:
            return known
    others = (one for one in known if one.up_to_percent != pace.up_to_percent)
    return tuple(sorted((*others, pace), key=lambda one: one.up_to_percent))
