"""Unknown names in settings: an error on a command line, a line of the explanation elsewhere."""

import json
from pathlib import Path

import pytest

from gpujob_api.codec import FieldError
from gpujob_api.settings import Settings, TunedSettings
from gpujob_worker.__main__ import main
from gpujob_worker.options import options_of_run
from gpujob_worker.run.environment import read_environment
from gpujob_worker.run.settings_names import (
    NAMED_MAX,
    nearest_name,
    refuse_unknown_names,
    unknown_names,
)
from tests.harness.worker_process import run_worker


def test_what_the_operator_writes_has_no_unknown_name() -> None:
    for settings in (Settings(), Settings(tuned=TunedSettings(compile=True), batch_per_step=3)):
        assert unknown_names(settings.to_text()) == ()


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", ()),
        ("{", ()),
        ("[]", ()),
        ('{"batchSize":{"perStep":32}}', ("batchSize.perStep",)),
        ('{"batchSize":{"perStep":32,"total":64}}', ("batchSize.perStep", "batchSize.total")),
        ('{"mode":"Off","batchSize":{}}', ("batchSize",)),
        ('{"tuned":{"compiled":true,"compile":true}}', ("tuned.compiled",)),
        ('{"tuned":null,"tuned2":null}', ("tuned2",)),
        ('{"resumeArguments":["a"],"x":[{"y":1}]}', ("x",)),
    ],
)
def test_unknown_names_are_found(text: str, names: tuple[str, ...]) -> None:
    assert unknown_names(text) == names


def test_names_without_end_are_bounded() -> None:
    many = json.dumps({f"name{n}": n for n in range(100)})
    assert len(unknown_names(many)) == NAMED_MAX
    deep = '{"a":' * 50 + "1" + "}" * 50
    assert unknown_names(deep) == ("a.a.a.a.a",)


@pytest.mark.parametrize(
    ("path", "nearest"),
    [
        ("batchSize.perStep", "batchPerStep"),
        ("batchSize.total", "batchTotal"),
        ("batch_per_step", "batchPerStep"),
        ("checkpoint.intervalSeconds", "checkpointIntervalSeconds"),
        ("Precision", "precision"),
        ("tuned.compiled", "tuned.compile"),
        ("xyz", None),
    ],
)
def test_the_nearest_name(path: str, nearest: str | None) -> None:
    assert nearest_name(path) == nearest


def test_the_error_names_the_field_and_the_nearest() -> None:
    with pytest.raises(FieldError) as caught:
        refuse_unknown_names('{"batchSize":{"perStep":32}}')
    text = "GPUJOB_SETTINGS.batchSize.perStep: is no setting; batchPerStep is the nearest"
    assert str(caught.value) == text
    with pytest.raises(FieldError, match="xyz: is no setting; known are mode, task, precision, "):
        refuse_unknown_names('{"xyz":1}')


def test_the_command_line_ends_as_for_any_wrong_option(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--settings", '{"batchSize":{"perStep":32}}', "--", "python", "nothing.py"]
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 2
    error = capsys.readouterr().err
    assert "gpujob-run: error: argument --settings: GPUJOB_SETTINGS.batchSize.perStep: is" in error
    assert error.endswith("batchPerStep is the nearest\n")


def test_options_in_a_variable_are_a_command_line_too() -> None:
    with pytest.raises(ValueError, match=r"GPUJOB_OPTIONS: .*batchPerStep is the nearest"):
        options_of_run({"GPUJOB_OPTIONS": """--settings '{"batchSize":{"perStep":32}}'"""})


SCRIPT = """
import torch
net = torch.nn.Linear(2, 1); optimizer = torch.optim.SGD(net.parameters(), 0.1)
for step in range(9):
    optimizer.zero_grad(); net(torch.ones(4, 2)).sum().backward(); optimizer.step()
"""


@pytest.mark.timeout(240)
def test_those_of_a_newer_operator_are_ignored_and_said_once(tmp_path: Path) -> None:
    newer = {"checkpointKeep": 5, "futureMode": "Fast", "tuned": {"futureKernel": True}}
    text = json.dumps(newer)
    assert read_environment({"GPUJOB_SETTINGS": text}).settings.checkpoint_keep == 5
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    code, run = run_worker(tmp_path, ["python", str(script)], environment={"GPUJOB_SETTINGS": text})
    assert code == 0, run.errors
    said = "settings futureMode, tuned.futureKernel ignored: not known to this worker"
    assert run.report["explain"].count(said) == 1
    assert run.errors.count(said) == 1
