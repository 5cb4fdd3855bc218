"""The mistakes of a first day cost one attempt, and the job says the line that names them."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpujob_api.gpujob import GPUJob, JobPhase
from gpujob_api.report import FailureClass, WorkerPhase
from gpujob_operator.decide.lifecycle.outcome import AttemptEnd, judge
from gpujob_operator.decide.lifecycle.user_errors import user_error_in
from gpujob_operator.decide.model.conditions import FAILED, find
from gpujob_operator.decide.model.plan import CreatePod
from gpujob_operator.decide.model.snapshot import PodPhase
from gpujob_operator.decide.planner import plan
from tests.harness.builders import (
    after,
    make_gpu,
    make_gpu_node,
    make_job,
    make_pod,
    make_report,
    make_snapshot,
    running,
    statuses,
)

JOB = running(make_job())
PARSER = "import argparse; p = argparse.ArgumentParser(); p.add_argument('--lr', type=float)\n"

# Run here by this Python, as a container would: script, arguments, part of the line that tells.
SCRIPTS: dict[str, tuple[str | None, list[str], str]] = {
    "no script": (None, ["absent.py"], "can't open file"),
    "no module": (None, ["-m", "absent_module"], "No module named absent_module"),
    "import": ("import absent_module", [], "ModuleNotFoundError: No module named"),
    "name in module": ("from os import absent_name", [], "ImportError: cannot import name"),
    "syntax": ("def train(:\n    pass", [], "SyntaxError: "),
    "indentation": ("def train():\npass", [], "IndentationError: "),
    "name": ("train()", [], "NameError: name 'train'"),
    "wrong flag": (PARSER + "p.parse_args()", ["--learning", "1"], "unrecognized arguments"),
    "wrong value": (PARSER + "p.parse_args()", ["--lr", "fast"], "argument --lr: invalid"),
    "working directory": ("open('conf/train.yaml')", [], "FileNotFoundError: "),
    "permission": (
        "raise PermissionError(13, 'Permission denied', '/data')",
        [],
        "PermissionError",
    ),
}
# As torch, shells and other parsers say it.
TEXTS: dict[str, tuple[int, str]] = {
    "no CUDA in torch": (1, "AssertionError: Torch not compiled with CUDA enabled"),
    "no GPU": (1, "RuntimeError: No CUDA GPUs are available"),
    "no driver": (1, "RuntimeError: Found no NVIDIA driver on your system. Please check that"),
    "no libcuda": (1, "ImportError: libcuda.so.1: cannot open shared object file: No such file"),
    "old GPU": (1, "RuntimeError: CUDA error: no kernel image is available for execution on"),
    "click": (2, "Error: No such option: --epcohs Did you mean --epochs?"),
    "not found": (127, "sh: 1: trian.sh: not found"),
    "gpujob-run": (127, "gpujob-run: trian: command not found"),
    "no right": (126, "sh: 1: ./train.sh: Permission denied"),
    "old driver": (1, "RuntimeError: The NVIDIA driver on your system is too old (found version"),
    "line ends": (255, "exec /app/train.sh: no such file or directory"),
    "architecture": (255, "exec /usr/bin/python: exec format error"),
    "no library": (127, "python: error while loading shared libraries: libpython3.11.so.1.0"),
    "read-only": (1, "OSError: [Errno 30] Read-only file system: '/data/out'"),
    "no token": (1, "requests.exceptions.HTTPError: 401 Client Error: Unauthorized for url: https"),
    "no access": (1, "Access to model meta-llama/Llama-3.1-8B is restricted. You must have access"),
    "no key": (1, "wandb.errors.errors.UsageError: api_key not configured (no-tty)."),
    "said in a frame": (2, "\u2502 No such option: --epcohs \u2502\n\u2570\u2500\u2500\u256f"),
    "said after it": (1, "ModuleNotFoundError: No module named 'x'\nmake: *** [Makefile:2: train]"),
}


def failed(exit_code: int, text: str, job: GPUJob = JOB, **facts: Any) -> Any:
    pod = make_pod(job, phase=PodPhase.FAILED, exit_code=exit_code, termination_text=text, **facts)
    return judge(job, (pod,))


def is_mistake(exit_code: int, text: str) -> bool:
    failure = failed(exit_code, text).failure
    return failure.failure_class is FailureClass.USER_ERROR


@pytest.mark.parametrize("mistake", SCRIPTS)
def test_a_script_that_does_not_begin(mistake: str, tmp_path: Path) -> None:
    script, arguments, line = SCRIPTS[mistake]
    if script is not None:
        (tmp_path / "train.py").write_text(script, encoding="utf-8")
        arguments = ["train.py", *arguments]
    command = [sys.executable, "-S", "-E", *arguments]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    failure = failed(ran.returncode, ran.stderr[-1024:]).failure
    assert failure.failure_class is FailureClass.USER_ERROR, ran.stderr
    assert line in failure.message
    assert "kubectl logs job-1-0" in failure.message


@pytest.mark.parametrize("mistake", TEXTS)
def test_what_libraries_and_shells_say(mistake: str) -> None:
    code, text = TEXTS[mistake]
    failure = failed(code, f"Epoch 1\nloading\n{text}\n").failure
    assert failure.failure_class is FailureClass.USER_ERROR
    assert text.splitlines()[0][:60] in failure.message


LAUNCHERS = {
    "accelerate": """Traceback (most recent call last):
  File "/usr/local/bin/accelerate", line 8, in <module>
subprocess.CalledProcessError: Command '['python', 'x.py']' returned non-zero exit status 2.""",
    "torchrun": """E1128 10:00:00 torch/distributed/elastic/multiprocessing/api.py] failed: 2
Traceback (most recent call last):
  File "/usr/local/bin/torchrun", line 8, in <module>
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
x.py FAILED
------------------------------------------------------------
  exitcode  : 2 (pid: 33)
============================================================""",
    "deepspeed": "[2026-11-28 10:00:00] [INFO] [launch.py:319:sigkill_handler] Killing 7\n" * 8
    + "[2026-11-28 10:00:00] [ERROR] [launch.py:325:sigkill_handler] ['python', 'x.py']",
    "lightning": "[rank: 1] Child process with PID 77 terminated with code 1. Terminating all",
}


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_launcher_does_not_hide_the_line(launcher: str) -> None:
    line = "python: can't open file '/app/x.py': [Errno 2] No such file or directory"
    failure = failed(1, f"{line}\n{LAUNCHERS[launcher]}\n").failure
    assert failure.failure_class is FailureClass.USER_ERROR
    assert line in failure.message


def test_of_a_traceback_its_last_line_is_reported() -> None:
    text = "Traceback (most recent call last):\n  File 'x.py', line 2\nRuntimeError: it broke\n"
    message = failed(1, text).failure.message
    expected = "exited with code 1: RuntimeError: it broke; kubectl logs job-1-0 has the rest"
    assert message.endswith(expected)
    assert failed(3, "two lines\nof a log").failure.message.endswith("code 3: two lines\nof a log")


def test_a_lack_of_gpu_memory_is_read_from_the_log() -> None:
    """The next attempt then begins on a whole GPU."""
    line = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    failure = failed(1, f"Traceback (most recent call last):\n{line}\n").failure
    assert failure.failure_class is FailureClass.OUT_OF_MEMORY
    caught = failed(1, f"{line}\nRuntimeError: gave up\n").failure
    assert caught.failure_class is FailureClass.UNKNOWN


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_launcher_alone_is_no_mistake(launcher: str) -> None:
    assert not is_mistake(1, LAUNCHERS[launcher])


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("ConnectionError: HTTPSConnectionPool(host='huggingface.co')", FailureClass.UNKNOWN),
        ("HfHubHTTPError: 503 Server Error: Service Unavailable", FailureClass.UNKNOWN),
        ("HfHubHTTPError: 429 Client Error: Too Many Requests", FailureClass.UNKNOWN),
        ("DistNetworkError: The client socket has timed out", FailureClass.UNKNOWN),
        ("AcceleratorError: CUDA error: uncorrectable ECC error", FailureClass.UNKNOWN),
        ("OSError: [Errno 116] Stale file handle: '/data/x'", FailureClass.UNKNOWN),
        ("HTTPError: 401 Client Error: Unauthorized for url", FailureClass.USER_ERROR),
        ("RepositoryNotFoundError: 404 Client Error", FailureClass.USER_ERROR),
        ("OSError: x is not a valid model identifier listed", FailureClass.USER_ERROR),
        ("KeyError: 'timeout'", FailureClass.USER_ERROR),
        ("TypeError: got an unexpected keyword 'timeout'", FailureClass.USER_ERROR),
        ("ModuleNotFoundError: No module named 'socketio'", FailureClass.USER_ERROR),
        ("DistNetworkError: The server socket: EADDRINUSE", FailureClass.USER_ERROR),
        (
            "ProcessRaisedException: \n  File 'connection.py', line 2\nValueError: no such model",
            FailureClass.USER_ERROR,
        ),
        ("OSError: [Errno 28] No space left on device", FailureClass.USER_ERROR),
    ],
)
def test_an_error_from_outside_before_the_first_step_is_tried_again(
    message: str, kind: FailureClass
) -> None:
    """A worker reports every error of a script that it does not know as the user's."""
    words = make_report(step=0, failure=FailureClass.USER_ERROR, message=message)
    pod = make_pod(JOB, exit_code=1, termination=words)
    node = make_gpu_node("n0", make_gpu("GPU-0"), at=10)
    status = statuses(plan(make_snapshot(JOB, pods=(pod,), gpu_nodes=[node]), after(10)).items)
    assert status["job"].failure is not None
    assert status["job"].failure.failure_class is kind
    is_final = kind is FailureClass.USER_ERROR
    assert status["job"].phase is (JobPhase.FAILED if is_final else JobPhase.PENDING)


@pytest.mark.parametrize("exit_code", [126, 127])
def test_a_shell_says_by_its_code_that_there_is_no_command(exit_code: int) -> None:
    assert "worker 0 exited with code" in failed(exit_code, "").failure.message
    assert is_mistake(exit_code, "")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "RuntimeError: shape '[4]' is invalid for input of size 3",
        "ConnectionError: HTTPSConnectionPool(host='x')",
        "FileNotFoundError: [Errno 2] No such file or directory: '/data/train.bin'",
        "OSError: [Errno 5] Input/output error",
        "Killed",
        "ImportError: no flash attention, going on without\nRuntimeError: it broke",
        "ImportError: no flash attention\n" + "step\n" * 9 + "Segmentation fault",
    ],
)
def test_other_errors_are_tried_again(text: str) -> None:
    """What was caught long before, or may be over at the next attempt, is no mistake."""
    assert not is_mistake(1, text)


def test_a_command_that_is_missing_after_training_has_the_report_of_it() -> None:
    words = make_report(step=40, phase=WorkerPhase.FINISHED)
    pod = make_pod(JOB, exit_code=127, termination=words)
    assert user_error_in(pod)
    outcome = judge(JOB, (pod,))
    assert outcome.failure is not None
    assert (outcome.failure.failure_class, outcome.step) == (FailureClass.USER_ERROR, 40)


@pytest.mark.parametrize(
    ("path", "kind"),
    [("conf/train.yaml", FailureClass.USER_ERROR), ("/data/train.bin", FailureClass.DATA)],
)
def test_a_worker_that_misses_a_file_of_its_directory(path: str, kind: FailureClass) -> None:
    message = f"FileNotFoundError: [Errno 2] No such file or directory: '{path}'"
    words = make_report(step=0, failure=FailureClass.DATA, message=message)
    failure = failed(1, "", termination=words).failure
    assert failure.failure_class is kind


def test_what_somebody_ended_from_outside_was_no_mistake() -> None:
    assert failed(127, "", deletion_at=after(30)).end is AttemptEnd.INTERRUPTED


def test_it_costs_one_attempt_and_the_job_says_the_line() -> None:
    line = "ModuleNotFoundError: No module named 'transformers'"
    pod = make_pod(JOB, exit_code=1, termination_text=f"Traceback ...\n{line}\n")
    node = make_gpu_node("n0", make_gpu("GPU-0"), at=10)
    found = plan(make_snapshot(JOB, pods=(pod,), gpu_nodes=[node]), after(10))
    status = statuses(found.items)["job"]
    assert status.phase is JobPhase.FAILED
    assert not [one for one in found.items if isinstance(one, CreatePod)]
    assert status.failure is not None
    assert line in status.failure.message
    said = [one.message for one in status.conditions if one.type == FAILED]
    assert line in said[0]
    assert "not retrying" in said[0]
    assert find(status, FAILED) is not None
