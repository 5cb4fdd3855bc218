"""Compares what one optimizer step takes with what the job declares in `batchSize.total`."""

from gpujob_worker.run.decision_log import DecisionLog

_ITEM = "batch size"


def compare_with_declared(
    declared: int | None, samples: int | None, processes: int, log: DecisionLog
) -> None:
    """Says once, of the first step whose samples are known, whether the processes together take
    the declared number. The script's own number holds either way.
    """
    if declared is None or samples is None or log.decision(_ITEM) is not None:
        return
    taken = samples * processes
    if taken == declared:
        log.note(_ITEM, f"{taken} samples in a step, as declared")
        return
    each = f"{processes} processes with {samples} each" if processes > 1 else "the script"
    log.note(
        _ITEM,
        f"differs: a step takes {taken} samples ({each}), and "
        f"spec.optimize.batchSize.total declares {declared}; nothing is changed",
    )
