"""The end of a worker's start-up. What it used before is no measure of the rest of its run."""

from gpujob_api.report import Report, WorkerPhase

_UNSETTLED = (WorkerPhase.STARTING, WorkerPhase.MEASURING, WorkerPhase.TUNING)


def has_settled(report: Report) -> bool:
    """Returns whether the worker uses what it will use: its start-up and its tuning are over."""
    # A server has executed its largest batch before it is ready.
    is_warm = report.serving is not None and report.serving.ready
    return report.phase not in _UNSETTLED and (report.current is not None or is_warm)
