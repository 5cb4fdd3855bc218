"""What a script made is known in that order, and gets its state back by where it was made."""

import copy
import linecache
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from gpujob_worker.checkpoint.errors import MismatchError, UnsavableError
from gpujob_worker.resume.script_objects import ScriptObjects

KEPT = 50_000
DROPPED = 300


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Callable[..., ScriptObjects]:
    plain = [
        (kind, name, getattr(kind, name))
        for kind, name in (
            (torch.nn.Module, "__init__"),
            (torch.nn.Module, "__setstate__"),
            (torch.optim.Optimizer, "__init__"),
            (torch.optim.lr_scheduler.LRScheduler, "__init__"),
            (torch.amp.GradScaler, "__init__"),
        )
    ]

    def installed(on_made: Callable[[], None] = lambda: None) -> ScriptObjects:
        """As in a new process."""
        for kind, name, call in plain:
            monkeypatch.setattr(kind, name, call)
        found = ScriptObjects()
        found.install(on_made)
        return found

    return installed


@pytest.fixture
def objects(install: Callable[..., ScriptObjects]) -> ScriptObjects:
    return install()


def make_one(number: int) -> torch.nn.Module:
    return torch.nn.Identity(number)


def seconds_to_drop() -> float:
    made = [torch.nn.Identity() for _ in range(DROPPED)]
    start = time.process_time()
    made.clear()
    return time.process_time() - start


def test_dropping_one_does_not_look_at_all_others(objects: ScriptObjects) -> None:
    few = min(seconds_to_drop() for _ in range(5))
    kept = list(map(make_one, range(KEPT)))
    many = min(seconds_to_drop() for _ in range(5))
    assert many < 20 * few, (few, many, len(kept))


def test_in_the_order_they_were_made(objects: ScriptObjects) -> None:
    first, dropped, last = (torch.nn.Linear(1, size) for size in (1, 2, 3))
    assert objects.all() == [first, dropped, last]
    del dropped
    # It may get the place in memory of the one that is gone.
    again = torch.nn.Linear(1, 2)
    assert objects.all() == [first, last, again]


def test_parts_of_others_and_modules_without_a_state_are_left_out(objects: ScriptObjects) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.ReLU())
    kept = torch.nn.Dropout()
    assert objects.all() == [model]
    assert kept.training


def test_a_copy_is_an_object_too(objects: ScriptObjects) -> None:
    model = torch.nn.Linear(1, 1)
    average = copy.deepcopy(model)
    assert objects.all() == [model, average]


def test_whoever_listens_is_called_before_an_object_is_there(
    install: Callable[..., ScriptObjects],
) -> None:
    seen: list[int] = []
    objects: list[ScriptObjects] = []
    objects.append(install(lambda: seen.append(len(objects[0].all()))))
    kept = [torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)]
    assert seen == [0, 1]
    assert len(kept) == 2


class Script:
    """Text of a script whose objects' places are its lines."""

    def __init__(self, folder: Path, text: str) -> None:
        self._path, self._text = folder / "train.py", text

    def run(self) -> dict[str, Any]:
        lines = self._text.splitlines(keepends=True)
        linecache.cache[str(self._path)] = (len(self._text), None, lines, str(self._path))
        found: dict[str, Any] = {"torch": torch, "__name__": "__main__"}
        exec(compile(self._text, self._path, "exec"), found)
        return found


TEXT = """
first = torch.nn.Linear(2, 2)
second = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(first.parameters(), lr=0.1, momentum=0.9)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
"""


def trained(script: Script) -> dict[str, Any]:
    found = script.run()
    found["first"](torch.ones(1, 2)).sum().backward()
    found["optimizer"].step()
    found["schedule"].step()
    return found


def test_each_gets_its_own_state_back(
    install: Callable[..., ScriptObjects], tmp_path: Path
) -> None:
    objects = install()
    script = Script(tmp_path, TEXT)
    before = trained(script)
    saved = copy.deepcopy(objects.states(objects.all()))
    objects = install()
    after = script.run()
    made = objects.restore(saved)
    assert made == [after[name] for name in ("first", "second", "optimizer", "schedule")]
    for name in ("first", "second"):
        assert torch.equal(after[name].weight, before[name].weight)
    momentum = after["optimizer"].state[after["first"].weight]["momentum_buffer"]
    assert torch.equal(
        momentum, before["optimizer"].state[before["first"].weight]["momentum_buffer"]
    )
    assert after["schedule"].get_last_lr() == pytest.approx([0.01])


def test_a_state_that_is_put_back_is_not_changed_by_the_next_steps(
    install: Callable[..., ScriptObjects], tmp_path: Path
) -> None:
    objects = install()
    script = Script(tmp_path, TEXT)
    before = trained(script)
    saved = copy.deepcopy(objects.states(objects.all()))
    untouched = copy.deepcopy(saved)
    objects = install()
    after = script.run()
    objects.restore(saved)
    after["first"](torch.ones(1, 2)).sum().backward()
    after["optimizer"].step()
    assert repr(saved) == repr(untouched)
    assert before is not after


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (TEXT.replace("Linear(2, 2)\nsecond", "Linear(2, 3)\nsecond"), "other parameters"),
        (TEXT.replace("(2, 2)\nsecond", "(2, 2).half()\nsecond"), "other parameters"),
        (TEXT.replace("first =", "\nfirst ="), "saved were"),
        (
            TEXT.replace("SGD", "Adam").replace(", momentum=0.9", ""),
            "the script has Linear, Linear, Adam",
        ),
        (TEXT.replace("StepLR(optimizer, 1)", "ExponentialLR(optimizer, 0.5)"), "the script has"),
    ],
)
def test_a_script_that_makes_others_is_refused(
    other: str, why: str, install: Callable[..., ScriptObjects], tmp_path: Path
) -> None:
    objects = install()
    kept = trained(Script(tmp_path, TEXT))
    saved = copy.deepcopy(objects.states(objects.all()))
    objects = install()
    made = Script(tmp_path, other).run()
    with pytest.raises(MismatchError, match=why):
        objects.restore(saved)
    assert kept is not made


def test_an_optimizer_with_other_groups_is_refused(
    install: Callable[..., ScriptObjects], tmp_path: Path
) -> None:
    objects = install()
    script = Script(tmp_path, TEXT)
    kept = trained(script)
    kept["optimizer"].add_param_group({"params": list(kept["second"].parameters())})
    saved = copy.deepcopy(objects.states(objects.all()))
    objects = install()
    made = script.run()
    with pytest.raises(MismatchError, match=r"SGD: .*groups"):
        objects.restore(saved)
    assert made is not kept


class Silent(torch.nn.Linear):
    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("ask another one")


def test_an_object_that_does_not_give_its_state_is_refused(objects: ScriptObjects) -> None:
    model = Silent(1, 1)
    with pytest.raises(
        UnsavableError, match=r"the state of Silent .* RuntimeError: ask another one"
    ):
        objects.states([model])


def test_libraries_whose_objects_keep_more_are_named(objects: ScriptObjects) -> None:
    kept: list[Any] = [torch.nn.Linear(1, 1)]
    assert objects.refusal() is None
    kind = type("DeepSpeedEngine", (torch.nn.Linear,), {"__module__": "deepspeed.runtime.engine"})
    kept.append(kind(1, 1))
    refusal = objects.refusal()
    assert refusal is not None
    assert refusal.startswith("deepspeed.runtime.engine.DeepSpeedEngine: DeepSpeed keeps")
