"""Hugging Face's callbacks and its best checkpoint across a resume."""

import json
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from gpujob_worker.resume.huggingface import HuggingFaceTraining, lost_best

transformers: Any = pytest.importorskip("transformers")
pytestmark = [pytest.mark.trainers, pytest.mark.timeout(240)]


def trainer(folder: Path) -> Any:
    arguments = transformers.TrainingArguments(
        str(folder),
        eval_strategy="steps",
        save_strategy="steps",
        load_best_model_at_end=True,
        report_to=[],
    )
    return transformers.Trainer(
        nn.Linear(1, 1),
        arguments,
        train_dataset=[],
        eval_dataset=[],
        callbacks=[transformers.EarlyStoppingCallback(early_stopping_patience=4)],
    )


def patience(one: Any) -> Any:
    callbacks = one.callback_handler.callbacks
    return next(each for each in callbacks if type(each).__name__ == "EarlyStoppingCallback")


def test_an_early_stop_keeps_its_patience(tmp_path: Path) -> None:
    before = trainer(tmp_path)
    patience(before).early_stopping_patience_counter = 3
    before.state = transformers.TrainerState(stateful_callbacks=[patience(before), before.control])
    state = HuggingFaceTraining(before)._state_text()
    after = trainer(tmp_path)
    same = patience(after)
    with HuggingFaceTraining(after).given({"state": state}) as folder:
        path = str(Path(folder) / "trainer_state.json")
        after.state = transformers.TrainerState.load_from_json(path)
        after._load_callback_state()
    assert patience(after) is same
    assert same.early_stopping_patience_counter == 3
    assert "_load_callback_state" not in vars(after)


def test_a_best_checkpoint_that_went_with_the_pod_is_known(tmp_path: Path) -> None:
    best = tmp_path / "checkpoint-40"
    state = json.dumps({"best_model_checkpoint": str(best)})
    assert lost_best(state) == str(best)
    best.mkdir()
    assert lost_best(state) is None
    assert lost_best(json.dumps({"best_model_checkpoint": None})) is None
