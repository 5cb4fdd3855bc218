"""Outlives a cluster's owner to clean up after it: `watchdog.py MARKER DIRECTORY`.

Standard input is a pipe whose other end only the owner holds. End of file means that the owner is
gone, however it ended. Then every process with MARKER (NAME=value) in its environment is killed and
DIRECTORY is removed. The watchdog's own environment is empty, so it does not find itself.
"""

import os
import shutil
import signal
import sys
import time
from pathlib import Path

ROUNDS_MAX = 200
ROUND_SECONDS = 0.05


def marked_processes(marker: str) -> list[int]:
    """Returns the ids of processes whose environment has MARKER (NAME=value), except this one."""
    wanted = b"\0" + marker.encode() + b"\0"
    found: list[int] = []
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid():
            try:
                environment = Path(f"/proc/{entry}/environ").read_bytes()
            except OSError:
                continue
            if wanted in b"\0" + environment:
                found.append(int(entry))
    return found


def kill_marked(marker: str) -> bool:
    """Kills until none is left, because a process may start another meanwhile."""
    for _ in range(ROUNDS_MAX):
        alive = marked_processes(marker)
        if not alive:
            return True
        for pid in alive:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                continue
        time.sleep(ROUND_SECONDS)
    return False


def main(marker: str, directory: str) -> int:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while sys.stdin.buffer.read(4096):
        pass
    complete = kill_marked(marker)
    shutil.rmtree(directory, ignore_errors=True)
    return 0 if complete else 1


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
