"""Calibrates the slowdown law for each GPU model by this cluster's own measurements.

The profile of every workload that ran beside co-tenants has its slowdown by band of the GPU's
summed utilization. For each band, the published law counts as some workloads, and every measured
workload counts as one more. Their median is the calibrated law, so that single outliers do not move
it. Values are in steps of half a percent, and never decrease with utilization.
"""

from collections.abc import Iterable
from statistics import median

from gpujob_api.gpuprofile import GPUProfile, SharedPace
from gpujob_operator.decide.capacity.slowdown_law import BANDS_PERCENT, PUBLISHED_SLOWDOWNS, Law

PRIOR_WORKLOADS = 3
_STEPS_PER_PERCENT = 2
# A smaller increase is not written again.
WORTH_WRITING_PERCENT = 5.0


def band_percent(summed_percent: float) -> int:
    """Upper bound of the band of this summed utilization, in percent."""
    return next(bound for bound in BANDS_PERCENT if summed_percent < bound)


def laws(profiles: Iterable[GPUProfile]) -> dict[str, Law]:
    """The calibrated laws by GPU model, for models with measurements."""
    measured: dict[str, dict[int, list[float]]] = {}
    for profile in profiles:
        for entry in profile.status.entries:
            for pace in entry.shared:
                bands = measured.setdefault(entry.gpu_model, {})
                bands.setdefault(pace.up_to_percent, []).append(pace.slowdown_percent)
    return {model: _law(bands) for model, bands in measured.items()}


def _law(measured: dict[int, list[float]]) -> Law:
    found: list[float] = []
    for bound, published in zip(BANDS_PERCENT, PUBLISHED_SLOWDOWNS, strict=True):
        slowdown = _middle(published, measured.get(bound, []))
        found.append(max([slowdown, *found]))
    return found[0], found[1], found[2], found[3]


def _middle(published: float, measured: list[float]) -> float:
    middle = median([*[published] * PRIOR_WORKLOADS, *measured])
    if middle == published:
        return published
    return round(middle * _STEPS_PER_PERCENT) / _STEPS_PER_PERCENT


def with_pace(known: tuple[SharedPace, ...], pace: SharedPace | None) -> tuple[SharedPace, ...]:
    """The profile's figures with this measurement added, if that changes anything.

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
