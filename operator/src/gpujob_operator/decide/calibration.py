"""The law of slowdown beside others, calibrated for each card model by what our own jobs measured.

Every workload that ran beside others has told in its profile how much longer a step took then than
alone, by band of the card's summed utilization. For each band the published law stands for some
workloads, and every workload that was measured there counts as one more:

    slowdown of a band = (PRIOR_WORKLOADS x published + sum of measured) / (PRIOR_WORKLOADS + count)

in steps of half a percent; a fuller card is never said to slow less than an emptier one.
"""

from collections.abc import Iterable

from gpujob_api.gpuprofile import GPUProfile, SharedPace
from gpujob_operator.decide.interference import BANDS_PERCENT, PUBLISHED_SLOWDOWNS, Law

PRIOR_WORKLOADS = 3
_STEPS_PER_PERCENT = 2
# A figure that moved by less is not written again.
WORTH_WRITING_PERCENT = 5.0


def band_percent(summed_percent: float) -> int:
    """The upper bound of the band that this sum of utilizations is in."""
    return next(bound for bound in BANDS_PERCENT if summed_percent < bound)


def laws(profiles: Iterable[GPUProfile]) -> dict[str, Law]:
    """By card model, of those on which anything was measured."""
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
        slowdown = _mean(published, measured.get(bound, []))
        found.append(max([slowdown, *found]))
    return found[0], found[1], found[2], found[3]


def _mean(published: float, measured: list[float]) -> float:
    if not measured:
        return published
    # Sorted: sums of floats depend on the order, and profiles come in any.
    total = PRIOR_WORKLOADS * published + sum(sorted(measured))
    mean = total / (PRIOR_WORKLOADS + len(measured))
    return round(mean * _STEPS_PER_PERCENT) / _STEPS_PER_PERCENT


def with_pace(known: tuple[SharedPace, ...], pace: SharedPace | None) -> tuple[SharedPace, ...]:
    """What is known of a workload with this, if that says anything new."""
    if pace is None:
        return known
    before = next((one for one in known if one.up_to_percent == pace.up_to_percent), None)
    if before is not None:
        moved_percent = abs(before.slowdown_percent - pace.slowdown_percent)
        if moved_percent < WORTH_WRITING_PERCENT:
            return known
    others = (one for one in known if one.up_to_percent != pace.up_to_percent)
    return tuple(sorted((*others, pace), key=lambda one: one.up_to_percent))
