"""Whom `gpujob-run` asks to stop at once, whom later, and whom whatever the others do."""

import os
from pathlib import Path

import pytest

from gpujob_api.settings import EXIT_INTERRUPTED_SAVED
from gpujob_worker.launch import forwarder
from tests.harness.forwarded import SAVES, ready, stopped

pytestmark = [pytest.mark.any_torch, pytest.mark.timeout(200)]
# Does not leave, and says by a file that it is there.
STAYS = """
import pathlib, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
pathlib.Path("stays").touch()
while True: time.sleep(0.05)
"""
UNTIL_IT_STAYS = "until [ -f stays ]; do sleep 0.05; done"
WITH_ONE_THAT_STAYS = f"python -S stays.py & {UNTIL_IT_STAYS}; "
# Leaves with 143 if it was asked once.
COUNTS = """
import signal, sys, time
stopped = []
signal.signal(signal.SIGTERM, lambda *_: stopped.append(1))
print("ready", flush=True)
while not stopped: time.sleep(0.05)
for _ in range(6): time.sleep(0.05)
sys.exit(143 if len(stopped) == 1 else 1)
"""


@pytest.mark.parametrize(
    "text", ["echo x | python -S child.py 143", "cat <<EOF | python -S child.py 143\nx\nEOF"]
)
def test_what_has_read_its_input_waits_for_nobody(text: str, tmp_path: Path) -> None:
    """Nobody writes it any more; what else lives may never leave."""
    (tmp_path / "stays.py").write_text(STAYS)
    with ready(tmp_path, WITH_ONE_THAT_STAYS + text, SAVES, grace_seconds=2.0) as process:
        assert stopped(process) == (EXIT_INTERRUPTED_SAVED, "saved\n")


def test_what_reads_from_one_that_does_not_leave_can_still_save(tmp_path: Path) -> None:
    (tmp_path / "stays.py").write_text(STAYS)
    text = (
        "python -S stays.py | { until [ -f stays ]; do sleep 0.05; done; python -S child.py 143; }"
    )
    with ready(tmp_path, text, SAVES, grace_seconds=3.0) as process:
        assert stopped(process) == (EXIT_INTERRUPTED_SAVED, "saved\n")


def test_what_can_only_die_reads_for_as_long_as_another_saves(tmp_path: Path) -> None:
    """Without it the other could not write, and would fail."""
    text = "python -S child.py 143 2>&1 | tee log; echo after"
    source = SAVES.replace("time.sleep(0.1)", "[time.sleep(0.05) for _ in range(24)]")
    with ready(tmp_path, text, source, grace_seconds=3.0) as process:
        assert stopped(process) == (EXIT_INTERRUPTED_SAVED, "saved\n")
    assert (tmp_path / "log").read_text() == "ready\nsaved\n"


def test_what_a_trap_asks_itself_is_asked_once(tmp_path: Path) -> None:
    text = (
        "trap 'sleep 0.1; kill -TERM $c; wait $c; exit $?' TERM; python -S child.py & c=$!; wait $c"
    )
    with ready(tmp_path, text, COUNTS) as process:
        assert stopped(process) == (EXIT_INTERRUPTED_SAVED, "")


def test_a_name_that_is_no_text_is_in_nobodys_way(tmp_path: Path) -> None:
    """The system cuts it after 15 bytes: here in the middle of a character."""
    script = tmp_path / (14 * "a" + "\u00e9.sh")
    script.write_text("#!/bin/sh\npython -S child.py 143\n")
    script.chmod(0o755)
    with ready(tmp_path, f"./{script.name}; echo after", SAVES) as process:
        assert stopped(process) == (EXIT_INTERRUPTED_SAVED, "saved\n")


def test_the_time_is_kept_also_where_nothing_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: object) -> None:
        raise ValueError("of a process that is like no other")

    monkeypatch.setattr(forwarder.Forwarder, "_ask_to_stop", fails)
    monkeypatch.setattr(forwarder, "_all", fails)
    child = os.fork()
    if child == 0:
        os._exit(7)
    one = forwarder.Forwarder(child, 60.0)
    one._deadline = one._stopped_at + 60.0
    assert one.wait() == 144
