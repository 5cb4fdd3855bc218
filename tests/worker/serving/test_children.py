"""Whatever a build does, its process ends within its limits and leaves a reason in words."""

import os
import sys
import time
from pathlib import Path

import pytest

from gpujob_worker.serving.choosing.children import (
    TAIL_BYTES,
    Ended,
    Limits,
    command_again,
    descendants,
    folder_bytes,
    resident_bytes,
    run_child,
)

pytestmark = [
    pytest.mark.any_torch,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc"),
]

PATIENCE_SECONDS = 60.0
MIB = 1024**2


def run(code: str, folder: Path, limits: Limits | None = None) -> Ended:
    limits = limits or Limits(PATIENCE_SECONDS)
    return run_child([sys.executable, "-c", code], os.environ, folder, limits)


def test_a_process_that_ends_with_0_has_no_problem(tmp_path: Path) -> None:
    ended = run("print('done')", tmp_path)
    assert ended.problem is None
    assert ended.tail == "done\n"


def test_a_build_that_hangs_is_ended(tmp_path: Path) -> None:
    ended = run("import time; time.sleep(3600)", tmp_path, Limits(0.5))
    assert ended.problem == "took longer than 0 s"


def test_a_build_that_ignores_sigterm_is_ended_too(tmp_path: Path) -> None:
    code = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(3600)"
    assert run(code, tmp_path, Limits(1.0)).problem == "took longer than 1 s"


def test_a_build_that_crashes_is_named_by_its_signal(tmp_path: Path) -> None:
    code = "import os, signal; print('building', flush=True); os.kill(os.getpid(), signal.SIGSEGV)"
    assert run(code, tmp_path).problem == "was ended by SIGSEGV: building"


def test_a_build_that_raises_is_named_by_its_last_line(tmp_path: Path) -> None:
    problem = run("raise RuntimeError('no kernel')", tmp_path).problem
    assert problem == "ended with exit code 1: RuntimeError: no kernel"


def test_a_build_that_leaks_is_ended(tmp_path: Path) -> None:
    code = (
        "import time\n"
        "kept = []\n"
        "while True:\n"
        "    kept.append(bytearray(b'x') * (8 * 1024**2))\n"
        "    time.sleep(0.01)"
    )
    problem = run(code, tmp_path, Limits(PATIENCE_SECONDS, memory_bytes=256 * MIB)).problem
    assert problem is not None
    assert problem.endswith("MiB of memory, at most 256 MiB")


def test_the_memory_of_what_a_build_started_counts(tmp_path: Path) -> None:
    leak = "kept = bytearray(b'x') * (300 * 1024**2); import time; time.sleep(3600)"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {leak!r}])"
    problem = run(code, tmp_path, Limits(PATIENCE_SECONDS, memory_bytes=256 * MIB)).problem
    assert problem is not None
    assert "of memory, at most 256 MiB" in problem


def test_a_build_that_fills_the_disk_is_ended(tmp_path: Path) -> None:
    code = (
        "import pathlib, time\n"
        f"folder = pathlib.Path({str(tmp_path)!r})\n"
        "number = 0\n"
        "while True:\n"
        "    (folder / f'{number}.bin').write_bytes(b'x' * 1024**2)\n"
        "    number += 1\n"
        "    time.sleep(0.01)"
    )
    problem = run(code, tmp_path, Limits(PATIENCE_SECONDS, disk_bytes=4 * MIB)).problem
    assert problem is not None
    assert problem.endswith("to the disk, at most 4 MiB")


def test_one_huge_file_is_stopped_by_the_kernel(tmp_path: Path) -> None:
    # Written elsewhere, where nobody counts.
    other = tmp_path / "other"
    other.mkdir()
    code = (
        "import time; time.sleep(1)\n"
        f"with open({str(other / 'huge')!r}, 'wb') as file:\n"
        "    for _ in range(64):\n"
        "        file.write(b'x' * 1024**2); file.flush()"
    )
    watched = tmp_path / "watched"
    watched.mkdir()
    problem = run(code, watched, Limits(PATIENCE_SECONDS, disk_bytes=4 * MIB)).problem
    assert problem is not None
    assert "File too large" in problem or "SIGXFSZ" in problem
    assert (other / "huge").stat().st_size <= 4 * MIB


def test_endless_output_is_read_and_only_its_end_is_kept(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "for _ in range(200): sys.stdout.buffer.write(bytes(range(256)) * 256)\n"
        "print('the end')"
    )
    ended = run(code, tmp_path)
    assert ended.problem is None
    assert ended.tail.endswith("the end\n")
    assert len(ended.tail.encode()) <= 4 * TAIL_BYTES


def test_what_a_build_started_ends_with_it(tmp_path: Path) -> None:
    other = tmp_path / "pid"
    inner = (
        "import os, pathlib, time;"
        f"pathlib.Path({str(other)!r}).write_text(str(os.getpid())); time.sleep(3600)"
    )
    code = (
        "import subprocess, sys, time\n"
        f"subprocess.Popen([sys.executable, '-c', {inner!r}], start_new_session=True)\n"
        "time.sleep(3600)"
    )
    ended = run(code, tmp_path, Limits(PATIENCE_SECONDS / 20))
    assert ended.problem is not None
    if other.exists():  # otherwise the machine was too slow to start it
        _await_end(int(other.read_text()))


def _await_end(pid: int) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < end:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            return
        if state == "Z":
            return
        time.sleep(0.05)
    raise AssertionError(f"process {pid} still runs")


def test_the_process_itself_is_its_first_descendant() -> None:
    found = list(descendants(os.getpid()))
    assert found[0] == os.getpid()
    assert resident_bytes(iter(found)) > MIB


def test_the_size_of_a_folder_counts_files_below_it(tmp_path: Path) -> None:
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    (below / "file").write_bytes(b"x" * MIB)
    assert folder_bytes(tmp_path) >= MIB
    assert folder_bytes(tmp_path / "missing") == 0


def test_the_command_is_that_of_this_process() -> None:
    command = command_again()
    assert command[0] == sys.executable
    assert command[1:] == sys.orig_argv[1:]
