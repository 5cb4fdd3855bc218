"""What a shell starts is saved and resumed: one process of a run, which is known again."""

import os
import signal
from pathlib import Path

import pytest

from gpujob_api.report import Reply, StopRequest
from gpujob_worker.process import STARTED_BELOW
from tests.harness.report_receiver import Operator
from tests.harness.shell_runs import SECONDS_MAX, ShellRun
from tests.harness.unmodified_scripts import HUGGING_FACE, LIGHTNING, PLAIN
from tests.harness.waiting import wait_until

pytestmark = pytest.mark.timeout(400)
SLOW = pytest.mark.slow


STOP = 'int(os.environ.get("STOP", "0"))'


def asks_first_process(source: str) -> str:
    """After the step that the variable names it asks for a stop, which takes a while to come."""
    return (
        source.replace("sys.argv[1:3]", '(sys.argv[1], "1")')
        .replace("int(sys.argv[3])", STOP)
        .replace("os.getpid()", 'int(os.environ["GPUJOB_FORWARDER"])')
        .replace("OUT", "out")
        .replace("JIT", "False")
        .replace("def stops(step):", f"def stops(step):\n    if 0 < {STOP} < step: time.sleep(0.1)")
        .replace("import hashlib,", "import hashlib, time,")
    )


TRAIN = asks_first_process(PLAIN)
# Two of them at once have different data, and wait for each other's first step.
SIBLING = """
import os, pathlib, sys, time, torch
from torch import nn
torch.set_num_threads(1); torch.manual_seed(int(sys.argv[1]))
data = torch.utils.data.TensorDataset(torch.randn(32, 4))
net = nn.Linear(4, 1); opt = torch.optim.SGD(net.parameters(), lr=0.1)
for (x,) in torch.utils.data.DataLoader(data, 4):
    opt.zero_grad(); net(x).square().mean().backward(); opt.step()
    pathlib.Path("here-" + os.environ.get("NAME", sys.argv[1])).touch()
    while len(list(pathlib.Path().glob("here-*"))) < int(sys.argv[2]): time.sleep(0.01)
    time.sleep(float(os.environ.get("PAUSE", "0")))
print("end", net.weight.sum().item(), flush=True)
"""
ENDLESS = """
import torch
from torch import nn
torch.set_num_threads(1); torch.manual_seed(1)
data = torch.utils.data.TensorDataset(torch.randn(32, 4))
net = nn.Linear(4, 1); opt = torch.optim.SGD(net.parameters(), lr=0.1)
for epoch in range(10**6):
    for (x,) in torch.utils.data.DataLoader(data, 4):
        opt.zero_grad(); net(x).square().mean().backward(); opt.step()
        if not epoch: print("stepped", flush=True)
"""
ANOTHER = "another process of this run is the one that is saved"


def shell(folder: Path, text: str, source: str = TRAIN, **more: object) -> ShellRun:
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text(source)
    return ShellRun(folder, text, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("source", "workers"),
    [
        (PLAIN, 0),
        pytest.param(PLAIN, 2, marks=SLOW),
        pytest.param(HUGGING_FACE, 0, marks=[SLOW, pytest.mark.trainers]),
        pytest.param(LIGHTNING, 0, marks=[SLOW, pytest.mark.trainers]),
    ],
    ids=["plain", "plain with workers", "huggingface", "lightning"],
)
def test_a_stop_of_the_first_process_saves_and_the_next_attempt_goes_on(
    source: str, workers: int, tmp_path: Path
) -> None:
    text, source = f"python train.py {workers}\necho after $?\n", asks_first_process(source)
    whole = shell(tmp_path / "whole", text, source)
    assert whole.run() == 0, whole.errors
    folder = tmp_path / "stopped"
    stopped = shell(folder, text, source, variables={"STOP": "7"})
    assert stopped.run() == 143, stopped.errors
    assert "after" not in stopped.output
    step = stopped.report["checkpoint"]["step"]
    assert (stopped.report["phase"], 7 <= step < 36) == ("draining", True)
    end = shell(folder, text, source, attempt=2)
    assert end.run() == 0, end.errors
    assert (end.report["resumedFromStep"], end.report["step"]) == (step, 36)
    # The digest of the weights, and what the shell says.
    assert end.output.splitlines()[-2:] == whole.output.splitlines()[-2:]
    assert end.output.splitlines()[-1] == "after 0"


@SLOW
def test_a_shell_within_the_shell_changes_nothing(tmp_path: Path) -> None:
    text = "(cd . && python train.py 0; echo inner)\necho after\n"
    stopped = shell(tmp_path, text, variables={"STOP": "7"})
    assert stopped.run() == 143, stopped.errors
    assert stopped.output == ""
    assert stopped.saved


def test_it_is_saved_in_between_also_without_gpujob_run(tmp_path: Path) -> None:
    run = shell(
        tmp_path,
        "python train.py\n",
        ENDLESS,
        forwards=False,
        settings={"checkpointIntervalSeconds": 1},
    )
    with run.started() as first:
        wait_until(lambda: len(run.saved) > 0 or first.poll() is not None, SECONDS_MAX)
        assert first.poll() is None, run.errors
        _end_all(first.pid)
        assert first.wait(SECONDS_MAX) == -signal.SIGKILL


def _end_all(pid: int) -> None:
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        os.kill(int(child), signal.SIGKILL)
    os.kill(pid, signal.SIGKILL)


def test_of_two_at_once_one_is_saved_and_the_other_says_why(tmp_path: Path) -> None:
    text = "python train.py 1 2 & python train.py 2 2 & wait\n"
    run = shell(tmp_path, text, SIBLING, settings={"checkpointIntervalSeconds": 1})
    assert run.run() == 0, run.errors
    assert run.output.count("end ") == 2
    assert run.errors.count(f"resume skipped: plain script: {ANOTHER}") == 1


def test_what_a_program_below_the_shell_starts_says_that_it_is_not_saved(tmp_path: Path) -> None:
    search = "import subprocess, sys; sys.exit(subprocess.call(['python', 'train.py', '1', '1']))"
    run = shell(
        tmp_path, f'python -c "{search}"\n', SIBLING, settings={"checkpointIntervalSeconds": 1}
    )
    assert run.run() == 0, run.errors
    assert f"gpujob: resume skipped: {STARTED_BELOW}\n" in run.errors
    assert not run.saved


@SLOW
def test_of_two_in_turn_the_first_is_saved_and_the_next_attempt_knows_it(tmp_path: Path) -> None:
    text = "python train.py 0 && python train.py 0 second\n"
    stopped = shell(tmp_path, text, variables={"STOP": "7"})
    assert stopped.run() == 143, stopped.errors
    end = shell(tmp_path, text, attempt=2)
    assert end.run() == 0, end.errors
    assert end.errors.count(f"plain script: from step {stopped.saved[-1]}: ") == 1
    assert end.errors.count(ANOTHER) == 1
    digests = [line for line in end.output.splitlines() if len(line) == 64]
    assert len(set(digests)) == 1
    assert len(digests) == 2


def test_another_command_does_not_get_the_checkpoints(tmp_path: Path) -> None:
    stopped = shell(tmp_path, "python train.py 0\n", variables={"STOP": "7"})
    assert stopped.run() == 143, stopped.errors
    other = shell(tmp_path, "python train.py 0 other\n", attempt=2)
    assert other.run() == 0, other.errors
    assert "resumedFromStep" not in other.report or other.report["resumedFromStep"] is None
    assert "the checkpoints that are there are of another command" in other.errors
    assert other.saved == stopped.saved


def test_a_command_that_comes_twice_is_not_taken_for_one_of_them(tmp_path: Path) -> None:
    text = "for name in a b; do NAME=$name python train.py 1 0; done\n"
    more = {"settings": {"checkpointIntervalSeconds": 1}, "variables": {"PAUSE": "0.3"}}
    first = shell(tmp_path, text, SIBLING, **more)
    assert first.run() == 0, first.errors
    assert first.saved
    assert first.errors.count(ANOTHER) == 1
    again = shell(tmp_path, text, SIBLING, attempt=2)
    assert again.run() == 0, again.errors
    assert again.output == first.output
    assert again.errors.count("several processes of one run have this command") == 2


def test_one_of_two_alike_that_ends_before_it_trains_does_not_get_the_other_ones_state(
    tmp_path: Path,
) -> None:
    """In the next run it is the first, because the other one is done."""
    source = SIBLING.replace("from torch", "if os.path.exists('leave'): sys.exit(9)\nfrom torch", 1)
    text = "[ -f here-a ] || NAME=a python train.py 1 0\n"
    text += "[ -f leave ] || { touch leave; python train.py 1 0; exit; }\n"
    text += "rm leave; NAME=b python train.py 1 0\n"
    more = {"settings": {"checkpointIntervalSeconds": 1}, "variables": {"PAUSE": "0.3"}}
    first = shell(tmp_path, text, source, **more)
    assert first.run() == 9, first.errors
    assert first.saved
    end = shell(tmp_path, text, source, attempt=2)
    assert end.run() == 0, end.errors
    assert "several processes of one run have this command" in end.errors
    assert "on the way to step" not in end.errors


def test_a_run_that_saved_nothing_is_in_nobodys_way(tmp_path: Path) -> None:
    tried = shell(tmp_path, "python train.py 1 0 && python train.py 2 0\n", SIBLING)
    assert tried.run() == 0, tried.errors
    assert tried.saved == []
    stopped = shell(tmp_path, "python train.py 0\n", attempt=2, variables={"STOP": "7"})
    assert stopped.run() == 143, stopped.errors
    assert stopped.saved


@SLOW
def test_what_only_reads_is_not_the_one_that_is_saved(tmp_path: Path) -> None:
    reads = (
        "import torch\n"
        "for x in torch.utils.data.DataLoader(torch.arange(4)): print(x.item(), flush=True)\n"
    )
    (tmp_path / "reads.py").write_text(reads)
    run = shell(tmp_path, "python reads.py\npython train.py 0\n", variables={"STOP": "7"})
    assert run.run() == 143, run.errors
    assert run.saved


def _asked_by_operator(operator: Operator, run: ShellRun, seconds: float = 100.0) -> int:
    stop = Reply(interval_seconds=0.2, stop=StopRequest("PodDeleted", seconds)).to_text().encode()
    with run.started() as first:
        wait_until(lambda: "stepped" in run.output or first.poll() is not None, SECONDS_MAX)
        # What is answered once the loop runs; the replies before said nothing.
        operator.answers = [(200, stop)] * 1000
        return first.wait(SECONDS_MAX)


@pytest.mark.parametrize("forwards", [True, pytest.param(False, marks=SLOW)])
def test_a_stop_by_the_operator_saves(forwards: bool, operator: Operator, tmp_path: Path) -> None:
    """Without `gpujob-run` the shell goes on with its next command."""
    run = shell(
        tmp_path,
        "python train.py\ncode=$?\necho after $code\nexit $code\n",
        ENDLESS,
        forwards=forwards,
        variables={"GPUJOB_REPORT_URL": operator.url},
    )
    assert _asked_by_operator(operator, run) == 143, run.errors
    assert ("after 143" in run.output) is not forwards
    report = run.report
    assert report["phase"] == "draining"
    assert run.saved[-1] == report["checkpoint"]["step"]
    # At most two more steps were made, with which the next attempt compares its own.
    assert 1 <= report["step"] - run.saved[-1] <= 2


def test_a_stop_without_a_safe_point_ends_the_run_too(operator: Operator, tmp_path: Path) -> None:
    source = ENDLESS.replace(
        'print("stepped", flush=True)', "print('stepped', flush=True); wait()"
    ).replace(
        "import torch\n", "import time, torch\ndef wait():\n    while True: time.sleep(0.1)\n", 1
    )
    run = shell(
        tmp_path,
        "python train.py\necho after\n",
        source,
        variables={"GPUJOB_REPORT_URL": operator.url},
    )
    assert _asked_by_operator(operator, run, seconds=2.0) == 144, run.errors
    assert "after" not in run.output


def test_a_signal_to_one_process_does_not_end_the_run(tmp_path: Path) -> None:
    """The script ends a training that it has started, as `timeout` and `kill` do."""
    text = """
    python train.py > steps &
    until grep -q stepped steps; do sleep 0.1; done
    kill $!; wait $!; echo after $?
    """
    run = shell(tmp_path, text, ENDLESS)
    assert run.run() == 0, run.errors
    assert run.output == "after 143\n"
    assert run.saved


def test_what_ends_before_its_place_ends_the_run(tmp_path: Path) -> None:
    """It has learned nothing in this attempt, and the next command has nothing to go on with."""
    text = "python train.py 0\necho after\n"
    leaves = 'if os.environ.get("LEAVES"): sys.exit()\n'
    source = TRAIN.replace("for epoch", f"{leaves}for epoch", 1)
    stopped = shell(tmp_path, text, source, variables={"STOP": "14"})
    assert stopped.run() == 143, stopped.errors
    end = shell(tmp_path, text, source, attempt=2, variables={"LEAVES": "1"})
    assert end.run() == 144, end.errors
    assert "the script ended before it came to the place" in end.errors
    assert "after" not in end.output


@SLOW
def test_a_resume_that_is_refused_ends_the_run(tmp_path: Path) -> None:
    text = "python train.py 0\necho after\n"
    stopped = shell(tmp_path, text, variables={"STOP": "14"})
    assert stopped.run() == 143, stopped.errors
    end = shell(tmp_path, text, TRAIN + "# A line that changes nothing.\n", attempt=2)
    assert end.run() == 144, end.errors
    assert "train.py has changed since it was saved; the next attempt starts" in end.errors
    assert end.report["phase"] == "draining"
    assert "after" not in end.output
