"""GPUJOB_SETTINGS: read exactly or refused by name."""

import pytest

from gpujob_api.codec import FieldError
from gpujob_api.settings import (
    OptimizeMode,
    Precision,
    ResumeMode,
    Settings,
    Task,
    Toggle,
    TunedSettings,
)


def test_nothing_set_is_all_automatic() -> None:
    settings = Settings.from_text("{}")
    assert settings == Settings()
    assert (settings.mode, settings.precision) == (OptimizeMode.AUTO, Precision.AUTO)


def test_settings_survive() -> None:
    settings = Settings(
        mode=OptimizeMode.OFF,
        batch_total=256,
        compile=Toggle.ON,
        tuned=TunedSettings(Precision.TF32, batch_per_step=64),
        checkpoint_interval_seconds=30,
    )
    assert Settings.from_text(settings.to_text()) == settings


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("not json", r"^GPUJOB_SETTINGS: is not JSON"),
        ("[]", r"^GPUJOB_SETTINGS: must be an object, not a list"),
        ('{"task": "Server"}', r"\.task: must be one of Auto, Training, Inference, Serving"),
        ('{"mode": "Fast"}', r"^GPUJOB_SETTINGS\.mode: must be one of Auto, Recommend, Off"),
        ('{"batchTotal": "many"}', r"^GPUJOB_SETTINGS\.batchTotal: must be int, not a string"),
        ('{"tuned": {"precision": "Auto"}}', r"^GPUJOB_SETTINGS\.tuned\.precision: .*concrete"),
        ('{"tuned": {"batchPerStep": 0}}', r"^GPUJOB_SETTINGS\.tuned\.batchPerStep: .*got 0"),
    ],
)
def test_errors_name_the_variable_and_the_field(text: str, message: str) -> None:
    with pytest.raises(FieldError, match=message):
        Settings.from_text(text)


def test_only_a_resume_that_is_not_exact_is_written() -> None:
    assert '"resume"' not in Settings().to_text()
    settings = Settings(resume=ResumeMode.BEST_EFFORT)
    assert '"resume":"BestEffort"' in settings.to_text()
    assert Settings.from_text(settings.to_text()) == settings


def test_only_a_stated_task_is_written() -> None:
    assert '"task"' not in Settings().to_text()
    settings = Settings(task=Task.INFERENCE)
    assert '"task":"Inference"' in settings.to_text()
    assert Settings.from_text(settings.to_text()) == settings


def test_tuned_settings_are_concrete() -> None:
    with pytest.raises(FieldError, match="precision"):
        TunedSettings(Precision.AUTO)
    with pytest.raises(FieldError, match="batchPerStep"):
        TunedSettings(batch_per_step=0)
