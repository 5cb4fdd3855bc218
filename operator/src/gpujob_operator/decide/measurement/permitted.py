"""Whether settings that an earlier attempt or run found are still among those that a spec allows:
`spec.optimize` may be edited at any time.
"""

from gpujob_api.optimize import Optimize
from gpujob_api.settings import OptimizeMode, Precision, Toggle, TunedSettings


def permitted(tuned: TunedSettings | None, optimize: Optimize) -> TunedSettings | None:
    """The settings if the spec allows each of them, else None: they were found together.

    One that is asked for and missing is no reason: the worker says why it did not take it.
    """
    if tuned is None or tuned == TunedSettings():
        return tuned
    is_allowed = optimize.mode is OptimizeMode.AUTO and not (
        _exceeds(tuned, optimize) or _is_forbidden(tuned, optimize)
    )
    return tuned if is_allowed else None


def _exceeds(tuned: TunedSettings, optimize: Optimize) -> bool:
    """It computes in another type than asked for, or with more samples at once."""
    if optimize.precision is not Precision.AUTO and tuned.precision not in (
        optimize.precision,
        Precision.FLOAT32,
    ):
        return True
    asked = optimize.batch_size.per_step
    if asked is None or asked.samples is None or tuned.batch_per_step is None:
        return False
    return tuned.batch_per_step > asked.samples


def _is_forbidden(tuned: TunedSettings, optimize: Optimize) -> bool:
    is_compiled = (
        tuned.compile or tuned.compile_beside or tuned.regional_compile or tuned.cuda_graphs
    )
    return (
        (optimize.activation_checkpointing is Toggle.OFF and tuned.activation_checkpointing)
        or (optimize.compile is Toggle.OFF and is_compiled)
        or (optimize.data_loading is Toggle.OFF and tuned.data_loader_workers is not None)
    )
