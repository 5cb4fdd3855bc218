"""Counts the floating point operations of the root's step, with torch's counter on a few
samples.
"""

import torch
from torch.utils.flop_counter import FlopCounterMode

from gpujob_worker.inject.guards import parallel_wrapper
from gpujob_worker.inject.process_flags import float32_products
from gpujob_worker.inject.recorded_call import RecordedCall
from gpujob_worker.inject.wrapped_module import Root, RootPlan
from gpujob_worker.probe.side_effects import no_trace
from gpujob_worker.tune.probe import RootProbe
from gpujob_worker.tune.trial import few_rows

_ROWS = 2


def step_flop(root: Root, recorded: RecordedCall) -> float | None:
    """Returns the FLOP of forward and backward over the whole batch, for matrix products and
    convolutions only.

    None if the count fails or finds nothing, as for a model of element-wise operations.
    """
    if parallel_wrapper(root.module) is not None:
        return None
    few = few_rows(recorded, _ROWS)
    counter = FlopCounterMode(display=False)
    try:
        with no_trace(root.module), counter:
            RootProbe(root, few).run(RootPlan())
    except Exception:
        return None
    rows, counted = recorded.inputs.rows or 1, few.inputs.rows or 1
    total = float(counter.get_total_flops()) * rows / counted
    return total or None


def forced_float32(root: Root) -> bool:
    """Returns whether the script's products run in plain float32: no autocast, no TF32, no other
    types.
    """
    plain = float32_products() == "highest" and not root.user_autocast
    return plain and all(p.dtype is torch.float32 for p in root.module.parameters())
