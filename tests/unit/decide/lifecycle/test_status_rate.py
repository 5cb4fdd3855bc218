"""What is written at once, and what is written with the next figures."""

from dataclasses import replace
from typing import Any

import pytest

from gpujob_api.gpujob import GPUJobStatus, Measurement
from gpujob_api.report import CheckpointReport, Timing
from gpujob_api.settings import TunedSettings
from gpujob_operator.decide.lifecycle.status import needs_write
from gpujob_operator.decide.model.configuration import Configuration
from tests.harness.builders import GIB, T0, after, make_job, reserve, running

CONFIGURATION = Configuration()
SECONDS = CONFIGURATION.progress_write_seconds


def is_written(at: float, before: GPUJobStatus | None = None, **changes: Any) -> bool:
    """Whether these changes of a status that was written at T0 are written so much later."""
    job = running(make_job(), observed_at=T0)
    job = job if before is None else replace(job, status=before)
    return needs_write(job, replace(job.status, **changes), CONFIGURATION, after(at))


@pytest.mark.parametrize(
    "changes",
    [
        {"measurement": Measurement(GIB, 20.0, 1)},
        {"measurement": Measurement(GIB, 20.0, 1, current=Timing(0.1, GIB))},
        {"tuned": TunedSettings()},
        {"explain": ("nothing",), "progressed_at": after(1)},
    ],
    ids=["memory", "speed", "nothing tuned", "progress"],
)
def test_figures_wait_for_the_next_write(changes: dict[str, Any]) -> None:
    assert not is_written(SECONDS - 1, **changes)
    assert is_written(SECONDS, **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"reservation": reserve(2 * GIB)},
        {"tuned": TunedSettings(compile=True)},
        {"checkpoint": CheckpointReport(10, 1000)},
        {"attempt": 2},
    ],
    ids=["reservation", "tuned", "first checkpoint", "attempt"],
)
def test_what_others_rely_on_is_written_at_once(changes: dict[str, Any]) -> None:
    assert is_written(0, **changes)


def test_settings_that_are_taken_back_are_written_at_once() -> None:
    before = running(make_job(), observed_at=T0, tuned=TunedSettings(compile=True)).status
    assert is_written(0, before, tuned=TunedSettings())
