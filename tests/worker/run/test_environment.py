"""The environment contract: every bad value is an error that names its variable."""

import pytest

from gpujob_api.codec import FieldError
from gpujob_api.settings import OptimizeMode
from gpujob_worker.__main__ import main
from gpujob_worker.run.environment import read_environment

pytestmark = pytest.mark.any_torch


def test_an_empty_environment_has_defaults() -> None:
    environment = read_environment({})
    assert environment.settings.mode is OptimizeMode.AUTO
    assert environment.attempt == 1
    assert environment.checkpoint_directory is None
    assert environment.report_url is None


def test_good_values_are_read() -> None:
    environment = read_environment(
        {
            "GPUJOB_SETTINGS": '{"mode":"Off","checkpointKeep":5}',
            "GPUJOB_ATTEMPT": "7",
            "GPUJOB_MEMORY_LIMIT_BYTES": "1073741824",
            "GPUJOB_REPORT_URL": "http://127.0.0.1:8080/report",
            "GPUJOB_CHECKPOINT_DIR": "/checkpoints/a",
            "GPUJOB_GRACE_SECONDS": "12.5",
            "NVIDIA_VISIBLE_DEVICES": "CPU-node-0-512Mi-1a2b,CPU-node-1-512Mi-3c4d",
        }
    )
    assert environment.settings.checkpoint_keep == 5
    assert environment.attempt == 7
    assert environment.memory_limit_bytes == 2**30
    assert environment.cpu_card_bytes == 2**30
    assert str(environment.checkpoint_directory) == "/checkpoints/a"
    assert environment.grace_seconds == 12.5


BAD = [
    ("GPUJOB_SETTINGS", "{"),
    ("GPUJOB_SETTINGS", "[]"),
    ("GPUJOB_SETTINGS", '{"mode":"Fast"}'),
    ("GPUJOB_SETTINGS", '{"tuned":{"precision":"Auto"}}'),
    ("GPUJOB_SETTINGS", '{"tuned":{"batchPerStep":0}}'),
    ("GPUJOB_ATTEMPT", "zero"),
    ("GPUJOB_ATTEMPT", "0"),
    ("GPUJOB_ATTEMPT", "-3"),
    ("GPUJOB_ATTEMPT", "1.5"),
    ("GPUJOB_ATTEMPT", "9" * 40),
    ("GPUJOB_MEMORY_LIMIT_BYTES", "20Gi"),
    ("GPUJOB_MEMORY_LIMIT_BYTES", "0"),
    ("GPUJOB_REPORT_URL", "not a url"),
    ("GPUJOB_REPORT_URL", "file:///etc/passwd"),
    ("GPUJOB_REPORT_URL", "http://"),
    ("GPUJOB_REPORT_URL", "http://host:port/"),
    ("GPUJOB_GRACE_SECONDS", "soon"),
    ("GPUJOB_GRACE_SECONDS", "nan"),
    ("GPUJOB_GRACE_SECONDS", "-1"),
    ("RANK", "first"),
    ("WORLD_SIZE", "0"),
]


@pytest.mark.parametrize(("name", "value"), BAD)
def test_a_bad_value_names_its_variable(name: str, value: str) -> None:
    with pytest.raises(FieldError) as caught:
        read_environment({name: value})
    assert caught.value.field.startswith(name)


def test_the_command_says_it_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GPUJOB_ATTEMPT", "many")
    assert main(["--", "python", "nothing.py"]) == 2
    error = capsys.readouterr().err
    assert error == "gpujob-run: GPUJOB_ATTEMPT: must be a whole number; got 'many'\n"


def test_settings_on_the_command_line_win(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GPUJOB_SETTINGS", "{}")
    assert main(["--settings", '{"mode":3}', "--", "python", "nothing.py"]) == 2
    assert "GPUJOB_SETTINGS.mode: must be one of Auto, Recommend, Off" in capsys.readouterr().err
