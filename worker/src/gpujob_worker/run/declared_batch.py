"""Compares the samples of one optimizer step to those that the job declares in
`batchSize.total`.
"""

from gpujob_worker.run.decision_log import DecisionLog

_ITEM = "batch size"


def compare_with_declared(
    declared: int | None, samples: int | None, processes: int, log: DecisionLog
) -> None:
    """Logs whether the processes together take the declared number of samples.

    It does so once, for the first step whose samples are known. The script's own number applies
    either way.
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
