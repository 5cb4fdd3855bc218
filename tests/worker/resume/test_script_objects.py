"""What a script made is known in the order it was made, for as long as the script has it."""

import time

import pytest
import torch

from gpujob_worker.resume.script_objects import ScriptObjects

KEPT = 50_000
DROPPED = 300


@pytest.fixture
def objects(monkeypatch: pytest.MonkeyPatch) -> ScriptObjects:
    for kind in (torch.nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler):
        monkeypatch.setattr(kind, "__init__", kind.__init__)
    monkeypatch.setattr(torch.amp.GradScaler, "__init__", torch.amp.GradScaler.__init__)
    monkeypatch.setattr(torch.nn.Module, "__setstate__", torch.nn.Module.__setstate__)
    found = ScriptObjects()
    found.install()
    return found


def seconds_to_drop() -> float:
    made = [torch.nn.Identity() for _ in range(DROPPED)]
    start = time.process_time()
    made.clear()
    return time.process_time() - start


def test_dropping_one_does_not_look_at_all_others(objects: ScriptObjects) -> None:
    few = min(seconds_to_drop() for _ in range(5))
    kept = [torch.nn.Identity() for _ in range(KEPT)]
    many = min(seconds_to_drop() for _ in range(5))
    assert many < 20 * few, (few, many, len(kept))


def test_in_the_order_they_were_made(objects: ScriptObjects) -> None:
    first, dropped, last = (torch.nn.Linear(1, size) for size in (1, 2, 3))
    assert objects.all() == [first, dropped, last]
    del dropped
    # It may get the place in memory of the one that is gone.
    again = torch.nn.Linear(1, 2)
    assert objects.all() == [first, last, again]
