"""Under gpujob-run a script behaves as under python: output, exit code, traceback, signals."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from gpujob_api.report import FailureClass, Report
from gpujob_api.settings import EXIT_INTERRUPTED_UNSAVED

pytestmark = pytest.mark.any_torch

SCRIPTS = {
    "plain": """
        import sys
        print(sys.argv, __name__, __file__, sys.path); print('e', file=sys.stderr)
        """,
    "exit code": "import sys; sys.exit(7)",
    "exit none": "import sys; sys.exit()",
    "exit text": "import sys; print('before'); sys.exit('it broke')",
    "exception": """
        def inner():
            raise ValueError("bad value")
        def outer():
            inner()
        outer()
        """,
    "chained": """
        try:
            {}["missing"]
        except KeyError as error:
            raise RuntimeError("second") from error
        """,
    "syntax error": "print('never'\n",
    "main module": """
        import sys, pickle
        class Thing: pass
        assert sys.modules["__main__"].Thing is Thing
        print(type(pickle.loads(pickle.dumps(Thing()))).__qualname__, __spec__)
        """,
    "spawned child": """
        import multiprocessing
        def work(n):
            print("child", n, flush=True)
        if __name__ == "__main__":
            child = multiprocessing.get_context("spawn").Process(target=work, args=(3,))
            child.start(); child.join(); print(child.exitcode)
        """,
    "atexit and hook": """
        import atexit, sys
        atexit.register(lambda: print("goodbye"))
        sys.excepthook = lambda *args: print("my hook", args[0].__name__)
        raise KeyError("x")
        """,
}


def run(command: list[str], folder: Path, **extra: str) -> tuple[int, str, str]:
    environment = {**os.environ, "GPUJOB_SETTINGS": '{"mode":"Off"}', **extra}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=110
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_behaves_as_under_python(name: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(textwrap.dedent(SCRIPTS[name]))
    plain = run([sys.executable, "train.py", "--lr", "1"], tmp_path)
    under = run(
        [sys.executable, "-m", "gpujob_worker", "--", "python", "train.py", "--lr", "1"], tmp_path
    )
    assert under == plain


def test_a_module_behaves_as_under_python(tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "__main__.py").write_text(
        "import sys\nprint(sys.argv[1:], __name__, __spec__.name, sys.path[0])\nfrom . import x\n"
    )
    (package / "x.py").write_text("raise SystemExit(5)")
    plain = run([sys.executable, "-m", "package", "a"], tmp_path)
    under = run(
        [sys.executable, "-m", "gpujob_worker", "--", "python", "-m", "package", "a"], tmp_path
    )
    assert under == plain
    assert under[0] == 5


def test_a_missing_script_and_a_missing_program(tmp_path: Path) -> None:
    plain = run([sys.executable, "none.py"], tmp_path)
    under = run([sys.executable, "-m", "gpujob_worker", "--", "python", "none.py"], tmp_path)
    assert under[0] == plain[0] == 2
    assert "can't open file" in under[2]
    missing = run([sys.executable, "-m", "gpujob_worker", "--", "no-such-program"], tmp_path)
    assert missing == (127, "", "gpujob-run: no-such-program: command not found\n")


def test_interpreter_options_and_other_programs(tmp_path: Path) -> None:
    script = "import sys; print(sys.flags.optimize, __debug__, sys.argv, sys.path)"
    (tmp_path / "train.py").write_text(script)
    launcher = [sys.executable, "-m", "gpujob_worker", "--"]
    for words in (["-O", "train.py"], ["-c", script, "a"]):
        plain = run([sys.executable, *words], tmp_path)
        assert run([*launcher, "python", *words], tmp_path) == plain
    assert run([*launcher, "sh", "-c", "echo hello; exit 9"], tmp_path) == (9, "hello\n", "")


def test_an_option_that_keeps_the_hook_away_is_said(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('ran')")
    launcher = [sys.executable, "-m", "gpujob_worker", "--", "python"]
    code, output, errors = run([*launcher, "-I", "train.py"], tmp_path)
    assert (code, output) == (0, "ran\n")
    assert errors == (
        "gpujob-run: python -I does not read PYTHONPATH: the script runs as it is, nothing is "
        "injected\n"
    )


def test_an_interrupted_script_shows_its_own_frames(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("def loop():\n    raise KeyboardInterrupt\nloop()\n")
    plain = run([sys.executable, "train.py"], tmp_path)
    under = run([sys.executable, "-m", "gpujob_worker", "--", "python", "train.py"], tmp_path)
    assert under == plain
    assert under[0] == -signal.SIGINT


def test_signals_end_it_as_they_end_python_and_a_stop_as_one_that_saved_nothing(
    tmp_path: Path,
) -> None:
    (tmp_path / "train.py").write_text(
        "import time\nprint('ready', flush=True)\nwhile True: time.sleep(1)\n"
    )
    launcher = ["-m", "gpujob_worker", "--", "python"]
    for number, plain, stopped in (
        (signal.SIGTERM, -signal.SIGTERM, EXIT_INTERRUPTED_UNSAVED),
        (signal.SIGINT, -signal.SIGINT, -signal.SIGINT),
    ):
        codes = [_code_after(number, [*start, "train.py"], tmp_path) for start in ([], launcher)]
        assert codes == [plain, stopped]


def _code_after(number: signal.Signals, command: list[str], folder: Path) -> int:
    with subprocess.Popen(
        [sys.executable, *command], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            process.send_signal(number)
            return process.wait(100)
        finally:
            process.kill()


def test_a_script_that_fails_before_it_trains_says_why(tmp_path: Path) -> None:
    message = tmp_path / "termination"
    launcher = [sys.executable, "-m", "gpujob_worker", "--", "python", "train.py"]
    for source, text in (
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("import sys; sys.exit(3)", "the script ended with exit code 3"),
        ("import sys; sys.exit('no data')", "the script ended with: no data"),
        (
            "import argparse; argparse.ArgumentParser('train').parse_args(['--lr', '1'])",
            "the script ended with exit code 2: train: error: unrecognized arguments: --lr 1",
        ),
        (
            "import sys\ntry: int('a')\nexcept ValueError: sys.exit(2)",
            "the script ended with exit code 2: "
            "ValueError: invalid literal for int() with base 10: 'a'",
        ),
        (
            "import sys\nclass E(Exception):\n    def __str__(self): return 1 / 0\n"
            "try: raise E\nexcept E: sys.exit(4)",
            "the script ended with exit code 4: E",
        ),
        ("print(", "SyntaxError: '(' was never closed (train.py, line 1)"),
    ):
        (tmp_path / "train.py").write_text(source)
        message.unlink(missing_ok=True)
        code, _, _ = run(launcher, tmp_path, GPUJOB_TERMINATION_FILE=str(message))
        failure = Report.from_text(message.read_text()).failure
        assert code != 0
        assert failure is not None
        assert (failure.failure_class, failure.message) == (FailureClass.USER_ERROR, text)


@pytest.mark.parametrize("source", ["raise SystemExit('no data')", "exit(3)"])
def test_an_exit_that_python_tells_nobody_leaves_the_message_to_the_log(
    tmp_path: Path, source: str
) -> None:
    """A kubelet takes the log's last lines where a container failed and left no message."""
    message = tmp_path / "termination"
    (tmp_path / "train.py").write_text(source)
    launcher = [sys.executable, "-m", "gpujob_worker", "--", "python", "train.py"]
    code, _, _ = run(launcher, tmp_path, GPUJOB_TERMINATION_FILE=str(message))
    assert code != 0
    assert not message.exists() or message.read_text() == ""
