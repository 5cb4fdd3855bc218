"""What a worker says that is not so: a program may write any report that it likes."""

from dataclasses import replace
from enum import Enum

from gpujob_api.report import CheckpointReport, Report, Timing, WorkerPhase
from gpujob_api.settings import TunedSettings

NEARLY_ALL_BYTES = 20 * 1024**3
# No GPU here has as much.
BEYOND_ALL_BYTES = 40 * 1024**3
FAR_STEP = 10**12


class WorkerLie(Enum):
    # It used far more memory than it did.
    MEMORY = "memory"
    # And more than any GPU has.
    BEYOND_MEMORY = "beyond-memory"
    # Its last checkpoint is of a step that nobody reached.
    CHECKPOINT = "checkpoint"
    # It is done, it says with every report, and goes on.
    FINISHED = "finished"
    # Each report is of another torch version, and of other settings.
    SETTINGS = "settings"
    # Its steps go back and forth.
    STEPS = "steps"
    # It is faster than light, and was slow before.
    SPEED = "speed"
    # Its reports are true; what it sends beside them is no report, or comes too often.
    FLOOD = "flood"
    ODD_BODIES = "odd-bodies"
    # It speaks for other pods with tokens that nobody issued.
    FORGED_TOKENS = "forged-tokens"


def twisted(lie: WorkerLie, report: Report) -> Report:
    """The report with the lie in it."""
    number = report.sequence
    match lie:
        case WorkerLie.MEMORY:
            return replace(report, current=Timing(1.0, NEARLY_ALL_BYTES))
        case WorkerLie.BEYOND_MEMORY:
            return replace(report, current=Timing(1.0, BEYOND_ALL_BYTES))
        case WorkerLie.CHECKPOINT:
            return replace(report, checkpoint=CheckpointReport(FAR_STEP - number, number))
        case WorkerLie.FINISHED:
            return replace(report, phase=WorkerPhase.FINISHED)
        case WorkerLie.SETTINGS:
            tuned = TunedSettings(compile=number % 2 == 0)
            return replace(report, torch_version=f"{number}.0", tuned=tuned)
        case WorkerLie.STEPS:
            return replace(report, step=FAR_STEP if number % 2 else 0)
        case WorkerLie.SPEED:
            return replace(report, current=Timing(1e-9, 0), baseline=Timing(1e6, 0))
        case WorkerLie.FLOOD | WorkerLie.ODD_BODIES | WorkerLie.FORGED_TOKENS:
            return report
