"""Scripts that know nothing of checkpoints end, stopped and begun again, as if never stopped."""

import random
from pathlib import Path

import pytest

from tests.harness.unmodified_scripts import (
    ACCELERATE,
    HUGGING_FACE,
    LIGHTNING,
    OWN_LOOP,
    PLAIN,
    attempt,
    last_line,
    said,
)
from tests.harness.worker_process import WorkerRun

pytestmark = pytest.mark.timeout(400)
EPOCH_STEPS = 12
STEPS = 3 * EPOCH_STEPS
ENDS_BY_ITSELF = """
import os, signal, torch
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.ones(4, 2)).sum().backward()
optimizer.step()
os.kill(os.getpid(), signal.SIGTERM)
"""
GAN = """
import hashlib, os, signal, sys, torch
from torch import nn
torch.manual_seed(1)
data = torch.utils.data.TensorDataset(torch.randn(60, 4))
loader = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True)
makes, judges = nn.Linear(2, 4), nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.1), nn.Linear(8, 1))
first, second = (torch.optim.Adam(net.parameters(), lr=0.01) for net in (makes, judges))
step = 0
for epoch in range(2):
    for (real,) in loader:
        fake = makes(torch.randn(4, 2))
        second.zero_grad()
        (judges(fake.detach()).mean() - judges(real).mean()).backward()
        second.step()
        first.zero_grad(); (-judges(fake).mean()).backward(); first.step()
        step += 1
        if step == int(sys.argv[1]): os.kill(os.getpid(), signal.SIGTERM)
digest = hashlib.sha256()
for net in (makes, judges):
    for tensor in net.state_dict().values(): digest.update(tensor.numpy().tobytes())
print(digest.hexdigest())
"""


def resumes_exactly(folder: Path, source: str, workers: int, accumulated: int) -> list[WorkerRun]:
    """Stopped in the middle of an epoch and after the last step of another; returns the attempts
    that resumed.
    """
    whole = attempt(folder / "whole", 1, source, workers, accumulated, 0)
    rng = random.Random(f"{workers} {len(source)}")
    stops = (rng.randrange(2, EPOCH_STEPS), 2 * EPOCH_STEPS)
    attempts: list[WorkerRun] = []
    for number, stop in enumerate(stops, start=1):
        stopped = attempt(folder / "stopped", number, source, workers, accumulated, stop)
        attempts.append(stopped)
        assert stopped.process.exitcode == 143, stopped.errors
        assert stopped.report["checkpoint"]["step"] == stop
        assert stopped.report["phase"] == "draining"
        assert stopped.report["protection"] == "Exact"
    end = attempt(folder / "stopped", 3, source, workers, accumulated, 0)
    assert last_line(end) == last_line(whole)
    assert end.report["resumedFromStep"] == stops[-1]
    assert end.report["step"] == STEPS
    return [*attempts[1:], end]


@pytest.mark.promise("I6")
@pytest.mark.slow
@pytest.mark.trainers
@pytest.mark.parametrize(("workers", "accumulated"), [(0, 1), (2, 2)])
@pytest.mark.parametrize("source", [HUGGING_FACE, LIGHTNING], ids=["huggingface", "lightning"])
def test_trainers_resume_bit_for_bit(
    tmp_path: Path, source: str, workers: int, accumulated: int
) -> None:
    resumes_exactly(tmp_path, source, workers, accumulated)


@pytest.mark.promise("I6")
@pytest.mark.slow
@pytest.mark.trainers
@pytest.mark.parametrize("workers", [0, 2])
def test_a_loop_of_accelerate_resumes_bit_for_bit(tmp_path: Path, workers: int) -> None:
    resumes_exactly(tmp_path, ACCELERATE, workers, 1)


@pytest.mark.promise("I6")
@pytest.mark.slow
@pytest.mark.parametrize(("workers", "accumulated"), [(0, 1), (2, 2)])
def test_a_plain_loop_resumes_bit_for_bit(tmp_path: Path, workers: int, accumulated: int) -> None:
    from_middle, from_end = map(said, resumes_exactly(tmp_path, PLAIN, workers, accumulated))
    assert "resume check 2 steps compared: the loss is " in from_middle
    assert ", the same" in from_middle
    assert "resume plain script: from step 24: 3 objects, " in from_end
    assert "values of its variables, order and random numbers are put back" in from_end
    # What follows an epoch, such as files that are written, was left to the next attempt.
    assert "resume check the steps after the stop are not known" in from_end


def test_a_script_that_ends_well_after_a_stop_is_not_said_to_have_finished(tmp_path: Path) -> None:
    done = attempt(tmp_path, 1, ENDS_BY_ITSELF)
    assert done.process.exitcode == 0, done.errors
    assert done.report["phase"] == "draining"


def stopped_ends_as_whole(folder: Path, source: str, stop: int) -> WorkerRun:
    """The script's only argument is the step of the stop; returns the end."""
    whole = attempt(folder / "whole", 1, source, 0)
    stopped = attempt(folder / "stopped", 1, source, stop)
    assert stopped.process.exitcode == 143, stopped.errors
    assert stopped.report["checkpoint"]["step"] == stop
    end = attempt(folder / "stopped", 2, source, 0)
    assert last_line(end) == last_line(whole), said(end)
    assert end.report["resumedFromStep"] == stop
    assert end.report["step"] == whole.report["step"], said(end)
    return end


def test_two_models_with_an_optimizer_each_resume_bit_for_bit(tmp_path: Path) -> None:
    stopped_ends_as_whole(tmp_path, GAN, 9)


# Loops of `OWN_LOOP`, and a step at which each is stopped.
LOOPS = {
    "counts itself": (
        """
weight, batches = 1.0, loader()
for epoch in range(2):
    for batch in batches:
        optimizer.zero_grad(); (weight * model(batch).square().mean()).backward(); optimizer.step()
        weight, step = 1.01 * weight, step + 1
        stops(step)
""",
        4,
    ),
    "two loaders": (
        """
for one, two in zip(loader(), loader()):
    learn(one + two)
""",
        6,
    ),
    "no loader": (
        """
for number in range(20):
    learn(torch.randn(4, 4))
""",
        6,
    ),
    # In the second pass.
    "cycle": (
        """
import itertools
batches = itertools.cycle(loader())
for number in range(25):
    learn(next(batches))
""",
        14,
    ),
    "iterator": (
        """
own = loader()
batches = iter(own)
for number in range(25):
    try: batch = next(batches)
    except StopIteration:
        batches = iter(own)
        batch = next(batches)
    learn(batch)
""",
        14,
    ),
    "new loaders": (
        """
model.add = torch.nn.Dropout(0.5)
for epoch in range(5):
    for batch in loader():
        learn(batch)
""",
        37,
    ),
    # The pass before is over and its loader gone when the next one is made.
    "loaders in a function": (
        """
def one_pass():
    own = loader()
    for batch in own:
        learn(batch)
model.add = torch.nn.Dropout(0.5)
for epoch in range(5):
    one_pass()
""",
        37,
    ),
}


@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_resumes_with_its_weights_and_all_that_it_counts(name: str, tmp_path: Path) -> None:
    code, stop = LOOPS[name]
    end = stopped_ends_as_whole(tmp_path, OWN_LOOP.replace("CODE", code), stop)
    assert end.report["protection"] == "Exact"


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (
            "for number in range(20): learn(torch.randn(4, 4))",
            "the loop in line 17 has its body in the line of its head",
        ),
        ("learn(torch.randn(4, 4))\n" * 8, "its steps are in no loop"),
    ],
)
def test_a_loop_that_has_no_place_is_not_saved_and_says_so_before_the_stop(
    tmp_path: Path, code: str, reason: str
) -> None:
    done = attempt(tmp_path, 1, OWN_LOOP.replace("CODE", code), 6)
    assert done.process.exitcode == 144, done.errors
    assert f"resume skipped: plain script: {reason}" in said(done)
    assert done.report["protection"] == "FromBeginning"
    assert done.report["protectionReason"] == reason
    assert not list((tmp_path / "checkpoints").glob("step-*"))


@pytest.mark.slow
@pytest.mark.trainers
def test_a_trainer_that_saves_on_sigterm_by_itself_is_stopped_and_not_finished(
    tmp_path: Path,
) -> None:
    """By itself it saves, returns from `train`, and the script goes on to its end and exits 0."""
    own = HUGGING_FACE.replace("=JIT", "=True")
    done = attempt(tmp_path, 1, own, 0, 1, 5)
    assert done.process.exitcode == 143, done.errors
    assert done.report["checkpoint"]["step"] == 5
    assert done.report["stepsTotal"] == STEPS


EVALUATES = PLAIN.replace('net(**batch)["loss"].item() for batch in test)', "judged(test))")
JUDGED = """
def is_asked():
    return int(sys.argv[3]) < 0 and epoch == 1
def judged(test):
    for number in range(100_000 if is_asked() else 1):
        for batch in test:
            if is_asked() and number == 0: os.kill(os.getpid(), signal.SIGTERM)
            yield net(**batch)["loss"].item() / (number + 1)
"""


@pytest.mark.slow
def test_a_stop_in_an_evaluation_that_does_not_end_leaves_what_is_committed(
    tmp_path: Path,
) -> None:
    """What a plain script did since its last batch is not known, and must not be done twice."""
    source = EVALUATES.replace("net = Net()", JUDGED + "net = Net()")
    stopped = attempt(tmp_path, 1, source, 0, 1, -1, grace_seconds=3)
    assert stopped.process.exitcode == 144, stopped.errors
    assert "no safe point before the deadline" in said(stopped)


@pytest.mark.slow
def test_a_stop_in_an_evaluation_waits_for_its_end_where_there_is_time(tmp_path: Path) -> None:
    once = JUDGED.replace("100_000", "1")
    source = EVALUATES.replace("net = Net()", once + "net = Net()")
    whole = attempt(tmp_path / "whole", 1, source, 0, 1, 0)
    stopped = attempt(tmp_path / "stopped", 1, source, 0, 1, -1, grace_seconds=200)
    assert stopped.process.exitcode == 143, stopped.errors
    assert "evaluation" not in said(stopped)
    assert last_line(attempt(tmp_path / "stopped", 2, source, 0, 1, 0)) == last_line(whole)
