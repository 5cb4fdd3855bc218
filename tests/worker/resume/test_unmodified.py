"""Scripts that know nothing of checkpoints end, stopped and begun again, with the same weights."""

import random
import re
from pathlib import Path

import pytest

from tests.harness.unmodified_scripts import ACCELERATE, HUGGING_FACE, LIGHTNING, PLAIN
from tests.harness.worker_process import WorkerRun, run_worker

pytestmark = pytest.mark.timeout(400)
EPOCH_STEPS = 12
STEPS = 3 * EPOCH_STEPS
OPTIONS = ("--explain", "--tuning-seconds", "1")


def run(
    folder: Path, attempt: int, source: str, *arguments: int, grace_seconds: float = 60.0
) -> WorkerRun:
    folder.mkdir(exist_ok=True)
    script = folder / "train.py"
    script.write_text(source.replace("OUT", str(folder / "out")).replace("JIT", "False"))
    _, done = run_worker(
        folder / f"attempt-{attempt}",
        ["python", str(script), *map(str, arguments)],
        settings={"mode": "Recommend"},
        options=OPTIONS,
        environment={
            "GPUJOB_CHECKPOINT_DIR": str(folder / "checkpoints"),
            "GPUJOB_ATTEMPT": str(attempt),
            "GPUJOB_GRACE_SECONDS": str(grace_seconds),
        },
    )
    return done


def weights(done: WorkerRun) -> str:
    assert done.process.exitcode == 0, done.errors
    return done.output.splitlines()[-1]


def said(done: WorkerRun) -> str:
    return "\n".join(done.report["explain"])


def resumes_exactly(folder: Path, source: str, workers: int, accumulated: int) -> WorkerRun:
    """Stopped in the middle of an epoch and after the last step of another; returns the end."""
    whole = run(folder / "whole", 1, source, workers, accumulated, 0)
    rng = random.Random(f"{workers} {len(source)}")
    stops = (rng.randrange(2, EPOCH_STEPS), 2 * EPOCH_STEPS)
    for attempt, stop in enumerate(stops, start=1):
        stopped = run(folder / "stopped", attempt, source, workers, accumulated, stop)
        assert stopped.process.exitcode == 143, stopped.errors
        assert stopped.report["checkpoint"]["step"] == stop
        assert stopped.report["phase"] == "draining"
    end = run(folder / "stopped", 3, source, workers, accumulated, 0)
    assert weights(end) == weights(whole)
    assert end.report["resumedFromStep"] == stops[-1]
    assert end.report["step"] == STEPS
    return end


@pytest.mark.slow
@pytest.mark.trainers
@pytest.mark.parametrize(("workers", "accumulated"), [(0, 1), (2, 2)])
@pytest.mark.parametrize("source", [HUGGING_FACE, LIGHTNING], ids=["huggingface", "lightning"])
def test_trainers_resume_bit_for_bit(
    tmp_path: Path, source: str, workers: int, accumulated: int
) -> None:
    resumes_exactly(tmp_path, source, workers, accumulated)


@pytest.mark.slow
@pytest.mark.trainers
@pytest.mark.parametrize("workers", [0, 2])
def test_a_loop_of_accelerate_resumes_bit_for_bit(tmp_path: Path, workers: int) -> None:
    stopped_after_own_counting(tmp_path, ACCELERATE, workers)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_a_plain_loop_resumes_bit_for_bit(tmp_path: Path, workers: int) -> None:
    end = stopped_after_own_counting(tmp_path, PLAIN, workers)
    text = said(end)
    assert "best effort: 3 objects, order and random numbers are put back" in text
    assert "what the script counts itself begins anew" in text
    assert "resume files out-0.pt stays as it is until the place is reached" in text


def stopped_after_own_counting(folder: Path, source: str, workers: int) -> WorkerRun:
    """The script counts its steps anew: the second stop comes so many steps after the resume."""
    whole = run(folder / "whole", 1, source, workers, 1, 0)
    first = random.Random(workers).randrange(2, EPOCH_STEPS)
    stopped = run(folder / "stopped", 1, source, workers, 1, first)
    assert stopped.process.exitcode == 143, stopped.errors
    assert stopped.report["checkpoint"]["step"] == first
    # To the last step of the second epoch.
    second = run(folder / "stopped", 2, source, workers, 1, 2 * EPOCH_STEPS - first)
    assert second.process.exitcode == 143, second.errors
    assert second.report["checkpoint"]["step"] == 2 * EPOCH_STEPS
    assert "resume check the first loss is" in said(second)
    assert "the same" in said(second)
    end = run(folder / "stopped", 3, source, workers, 1, 0)
    assert weights(end) == weights(whole)
    assert end.report["step"] == STEPS
    return end


ENDS_BY_ITSELF = """
import os, signal, torch
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.ones(4, 2)).sum().backward()
optimizer.step()
os.kill(os.getpid(), signal.SIGTERM)
"""


def test_a_script_that_ends_well_after_a_stop_is_not_said_to_have_finished(tmp_path: Path) -> None:
    done = run(tmp_path, 1, ENDS_BY_ITSELF)
    assert done.process.exitcode == 0, done.errors
    assert done.report["phase"] == "draining"


GAN = """
import hashlib, os, signal, sys, torch
from torch import nn
stop = int(sys.argv[1])
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
        if step == stop: os.kill(os.getpid(), signal.SIGTERM)
digest = hashlib.sha256()
for net in (makes, judges):
    for tensor in net.state_dict().values(): digest.update(tensor.numpy().tobytes())
print(digest.hexdigest())
"""


def test_two_models_with_an_optimizer_each_resume_bit_for_bit(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", 1, GAN, 0)
    stopped = run(tmp_path / "stopped", 1, GAN, 9)
    assert stopped.process.exitcode == 143, stopped.errors
    assert weights(run(tmp_path / "stopped", 2, GAN, 0)) == weights(whole)


LOOP = """
import os, signal, sys, torch
stop = int(sys.argv[1])
torch.manual_seed(1)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
def loader(seed):
    return torch.utils.data.DataLoader(torch.randn(40, 4), batch_size=4, shuffle=True)
def learn(batch):
    global step
    optimizer.zero_grad(); model(batch).square().mean().backward(); optimizer.step()
    step += 1
    if step == stop: os.kill(os.getpid(), signal.SIGTERM)
step = 0
CODE
"""
TWO_LOADERS = "for one, two in zip(loader(1), loader(2)): learn(one + two)"
NO_LOADER = "for number in range(20): learn(torch.randn(4, 4))"


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (TWO_LOADERS, "plain script: a step reads from several loaders"),
        (NO_LOADER, "plain script: its loop reads no DataLoader"),
    ],
)
def test_a_loop_whose_place_is_not_known_is_not_saved(
    tmp_path: Path, code: str, reason: str
) -> None:
    done = run(tmp_path, 1, LOOP.replace("CODE", code), 6)
    assert done.process.exitcode == 144, done.errors
    assert reason in said(done)
    assert not list((tmp_path / "checkpoints").glob("step-*"))


COUNTS_ITSELF = """
weight, batches = 1.0, loader(1)
for epoch in range(2):
    for batch in batches:
        optimizer.zero_grad(); (weight * model(batch).square().mean()).backward(); optimizer.step()
        weight, step = 1.5 * weight, step + 1
        if step == stop: os.kill(os.getpid(), signal.SIGTERM)
"""


def test_a_first_loss_that_is_another_one_is_said_and_the_run_goes_on(tmp_path: Path) -> None:
    """A weight that the script counts up itself begins anew."""
    source = LOOP.replace("CODE", COUNTS_ITSELF)
    assert run(tmp_path, 1, source, 4).process.exitcode == 143
    second = run(tmp_path, 2, source, 0)
    assert second.process.exitcode == 0, second.errors
    assert second.report["resumedFromStep"] == 4
    found = re.search(
        r"resume check the first loss is (\S+) and would have been (\S+):", said(second)
    )
    assert found is not None, said(second)
    assert float(found[2]) / float(found[1]) == pytest.approx(1.5**4, rel=1e-3)
    assert "not the continuation of the one before in every part" in said(second)
    assert second.report["step"] == 20


OTHER_MODEL = """
if os.environ["GPUJOB_ATTEMPT"] == "2": model.extra = torch.nn.Linear(4, 4)
for batch in loader(1): learn(batch)
"""


def test_what_does_not_fit_is_given_up_and_starts_from_the_beginning(tmp_path: Path) -> None:
    source = LOOP.replace("CODE", OTHER_MODEL)
    assert run(tmp_path, 1, source, 4).process.exitcode == 143
    second = run(tmp_path, 2, source, 0)
    assert second.process.exitcode == 144, second.errors
    assert "Linear has other parameters than were saved; the next attempt starts" in said(second)
    third = run(tmp_path, 3, source, 0)
    assert third.process.exitcode == 0, third.errors
    assert third.report["step"] == 10


FAILS_ON_THE_WAY = """
for epoch in range(2):
    batches = 0
    for batch in loaders[0]: learn(batch); batches += 1
    assert batches > 1, "the script counts on whole passes"
"""


def test_a_script_that_fails_on_its_way_back_starts_from_the_beginning(tmp_path: Path) -> None:
    source = LOOP.replace("CODE", "loaders = [loader(1)]\n" + FAILS_ON_THE_WAY)
    assert run(tmp_path, 1, source, 14).process.exitcode == 143
    second = run(tmp_path, 2, source, 0)
    assert second.process.exitcode == 1
    assert "counts on whole passes" in second.errors
    third = run(tmp_path, 3, source, 0)
    assert third.process.exitcode == 0, third.errors
    assert third.report["step"] == 20


@pytest.mark.slow
@pytest.mark.trainers
def test_a_trainer_that_saves_on_sigterm_by_itself_is_stopped_and_not_finished(
    tmp_path: Path,
) -> None:
    """By itself it saves, returns from `train`, and the script goes on to its end and exits 0."""
    own = HUGGING_FACE.replace("=JIT", "=True")
    done = run(tmp_path, 1, own, 0, 1, 5)
    assert done.process.exitcode == 143, done.errors
    assert done.report["checkpoint"]["step"] == 5
    assert done.report["stepsTotal"] == STEPS


EVALUATES = PLAIN.replace('net(**batch)["loss"].item() for batch in test)', "judged(test))")
JUDGED = """
def judged(test):
    for number in range(100_000 if stop < 0 and epoch == 1 else 1):
        for batch in test:
            if stop < 0 and epoch == 1 and number == 0: os.kill(os.getpid(), signal.SIGTERM)
            yield net(**batch)["loss"].item() / (number + 1)
"""


@pytest.mark.slow
def test_a_stop_in_an_evaluation_that_does_not_end_leaves_what_is_committed(
    tmp_path: Path,
) -> None:
    """What a plain script did since its last batch is not known, and must not be done twice."""
    source = EVALUATES.replace("net = Net()", JUDGED + "net = Net()")
    stopped = run(tmp_path, 1, source, 0, 1, -1, grace_seconds=3)
    assert stopped.process.exitcode == 144, stopped.errors
    assert "no safe point before the deadline" in said(stopped)


@pytest.mark.slow
def test_a_stop_in_an_evaluation_waits_for_its_end_where_there_is_time(tmp_path: Path) -> None:
    once = JUDGED.replace("100_000", "1")
    source = EVALUATES.replace("net = Net()", once + "net = Net()")
    whole = run(tmp_path / "whole", 1, source, 0, 1, 0)
    stopped = run(tmp_path / "stopped", 1, source, 0, 1, -1, grace_seconds=200)
    assert stopped.process.exitcode == 143, stopped.errors
    assert "evaluation" not in said(stopped)
    assert weights(run(tmp_path / "stopped", 2, source, 0, 1, 0)) == weights(whole)


NEW_LOADERS = """
import hashlib
model.add = torch.nn.Dropout(0.5)
for epoch in range(5):
    for batch in loader(1): learn(batch)
print(step, hashlib.sha256(model.weight.detach().numpy().tobytes()).hexdigest())
"""
# The pass before is over and its loader gone when the next one is made.
LOADERS_IN_A_FUNCTION = f"""
def one_pass():
    own = loader(1)
    for batch in own: learn(batch)
{NEW_LOADERS.replace("for batch in loader(1): learn(batch)", "one_pass()")}
"""


@pytest.mark.parametrize("code", [NEW_LOADERS, LOADERS_IN_A_FUNCTION], ids=["loop", "function"])
def test_a_loop_with_a_new_loader_for_each_pass_resumes_bit_for_bit(
    tmp_path: Path, code: str
) -> None:
    source = LOOP.replace("CODE", code)
    whole = run(tmp_path / "whole", 1, source, 0)
    stopped = run(tmp_path / "stopped", 1, source, 37)
    assert stopped.process.exitcode == 143, stopped.errors
    end = run(tmp_path / "stopped", 2, source, 0)
    # What the script counts itself begins anew.
    assert weights(end).split()[-1] == weights(whole).split()[-1], said(end)
    assert end.report["step"] == 50, said(end)


# A stop from within the second run of the script is at another place than that of the first.
OTHER_PASSES = """
for epoch in range(3 if os.environ["GPUJOB_ATTEMPT"] == "1" else 1):
    for batch in loader(1): learn(batch)
ENDS
"""


@pytest.mark.parametrize(
    ("ends", "code"), [("", 144), ("sys.exit()", 144), ("sys.exit('too few')", 1)]
)
def test_a_script_that_ends_before_it_comes_to_its_place_is_run_again_from_the_beginning(
    tmp_path: Path, ends: str, code: int
) -> None:
    """It would count as done with a batch of each pass."""
    source = LOOP.replace("CODE", OTHER_PASSES.replace("ENDS", ends))
    assert run(tmp_path, 1, source, 25).process.exitcode == 143
    second = run(tmp_path, 2, source, 0)
    assert second.process.exitcode == code, second.errors
    assert "the next attempt starts from the beginning" in said(second)
    assert second.report["phase"] != "finished"
    third = run(tmp_path, 3, source, 0)
    assert third.report["step"] == 10, third.errors
