"""The pictures in docs/images: terminals with what real commands printed (`make pictures`).

    python -m bench.pictures [--folder docs/images] [--no-cluster | --dashboard]

Jobs run on a local cluster of CPU cards, and one waits; a script trains without a cluster, is
stopped and goes on. Each command runs in a terminal of its own, and nothing of what it
prints is changed. The dashboard of the same cluster is shown by Chromium. About three minutes.
"""

import argparse
import fcntl
import os
import pty
import select
import shlex
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.text import Text

from bench.screenshots import screenshots

ROOT = Path(__file__).resolve().parents[1]
PROGRAMS = Path(sys.executable).parent
EXAMPLES = ROOT / "examples"
CLUSTER = "pictures"
COLUMNS, ROWS = 112, 60
COMMAND_LIMIT_SECONDS = 300.0
# No fonts from elsewhere: a picture in a document must not load anything.
SVG = """<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: monospace; font-size: {char_height}px; }}
.{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: sans-serif; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


@dataclass
class Recording:
    """Commands and what they printed, as one picture."""

    title: str
    shown: list[str] = field(default_factory=list[str])

    def add(self, command: str, ended: "Ended") -> None:
        code = f"\n# exit code {ended.code}" if ended.code else ""
        self.shown.append(f"\x1b[1m$ {command}\x1b[0m\n{ended.printed.rstrip()}{code}\n")

    def svg(self) -> str:
        console = Console(record=True, width=COLUMNS, file=StringIO(), force_terminal=True)
        console.print(Text.from_ansi("\n".join(self.shown)))
        return console.export_svg(title=self.title, code_format=SVG, unique_id="terminal")


@dataclass(frozen=True, slots=True)
class Ended:
    printed: str
    code: int


def in_terminal(command: str, environment: dict[str, str], folder: Path, stop: str = "") -> Ended:
    """What a command prints in a terminal; with `stop` it gets SIGTERM once it printed that."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    process = subprocess.Popen(
        shlex.split(command),
        cwd=folder,
        env=environment | {"TERM": "xterm-256color"},
        stdin=subprocess.DEVNULL,
        stdout=follower,
        stderr=follower,
    )
    os.close(follower)
    printed = b""
    deadline = time.monotonic() + COMMAND_LIMIT_SECONDS
    try:
        while time.monotonic() < deadline:
            if not select.select([leader], [], [], 1.0)[0]:
                continue
            try:
                printed += os.read(leader, 65536)
            except OSError:
                # Linux reports the end of a terminal so.
                break
            if stop and stop.encode() in printed:
                process.send_signal(signal.SIGTERM)
                stop = ""
        process.wait(timeout=max(1.0, deadline - time.monotonic()))
    finally:
        process.kill()
        process.wait()
        os.close(leader)
    return Ended(printed.decode(errors="replace").replace("\r\n", "\n"), process.returncode)


def run(*command: str, environment: dict[str, str]) -> str:
    done = subprocess.run(
        command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout


@contextmanager
def local_cluster(environment: dict[str, str]) -> Generator[tuple[dict[str, str], str]]:
    """Yields the environment of a cluster with jobs, and the name of one that waits."""
    run("gpujob-local", "up", "--name", CLUSTER, environment=environment)
    try:
        exports = run("gpujob-local", "env", "--name", CLUSTER, environment=environment)
        read = run("bash", "-c", f"{exports}\nenv -0", environment=environment)
        inside = dict(entry.split("=", 1) for entry in read.split("\0") if entry)
        demo = EXAMPLES / "demo"
        _apply([demo / "checkpoints-claim.yaml", demo / "recommender.yaml"], inside)
        _wait("jsonpath={.status.phase}=Succeeded", "recommender", inside)
        _apply([demo / "classifier.yaml"], inside)
        _wait("jsonpath={.status.reservation.source}=Measured", "classifier", inside)
        *running, waiting = (f"whole-gpu-{number}" for number in range(1, 5))
        _apply([whole_gpu(name) for name in running], inside)
        for name in running:
            _wait("jsonpath={.status.phase}=Running", name, inside)
        _apply([whole_gpu(waiting)], inside)
        _wait("condition=Scheduled=false", waiting, inside)
        yield inside, waiting
    finally:
        run("gpujob-local", "down", "--name", CLUSTER, environment=environment)


def cluster_pictures(environment: dict[str, str], day: str, folder: Path) -> dict[str, Recording]:
    """Jobs on a local cluster: what is in the list, why one waits, what one reports."""
    with local_cluster(environment) as (inside, waiting):
        jobs = Recording(f"Local cluster, 3 nodes with 2 CPU cards each, {day}")
        report = Recording(f"Local cluster, an unmodified script on a CPU card, {day}")
        for recording, command in (
            (jobs, "kubectl get gpujobs"),
            (jobs, f"kubectl gpujob why {waiting}"),
            (report, "kubectl gpujob report recommender"),
        ):
            recording.add(command, in_terminal(command, inside, ROOT))
        _show(screenshots(inside, folder))
    return {"jobs": jobs, "report": report}


def _show(paths: Iterable[Path]) -> None:
    for path in paths:
        print(path)


def whole_gpu(name: str) -> str:
    """A job that shares its GPU with no other and runs longer than the pictures take."""
    text = (EXAMPLES / "demo" / "recommender.yaml").read_text(encoding="utf-8")
    text = text.replace("\nspec:\n", "\nspec:\n  sharing: {mode: Exclusive}\n", 1)
    return text.replace("recommender", name, 1).replace('"240"', '"20000"')


def _apply(manifests: Sequence[Path | str], environment: dict[str, str]) -> None:
    texts = [one if isinstance(one, str) else one.read_text(encoding="utf-8") for one in manifests]
    subprocess.run(
        ["kubectl", "apply", "-f", "-"],
        env=environment,
        input="\n---\n".join(texts),
        text=True,
        check=True,
    )


def _wait(what: str, name: str, environment: dict[str, str]) -> None:
    limit = f"--timeout={COMMAND_LIMIT_SECONDS:.0f}s"
    run("kubectl", "wait", f"gpujob/{name}", f"--for={what}", limit, environment=environment)


def laptop_picture(environment: dict[str, str], day: str) -> Recording:
    """A script without a cluster, stopped in the middle and started again."""
    recording = Recording(f"A script without Kubernetes on a processor, {day}")
    with tempfile.TemporaryDirectory() as folder:
        given = environment | {"GPUJOB_CHECKPOINT_DIR": folder}
        command = "gpujob-run --explain -- python train_recommender.py --steps 60"
        first = in_terminal(command, given, EXAMPLES, stop="step 20 loss")
        recording.add(f"GPUJOB_CHECKPOINT_DIR=checkpoints {command}", first)
        recording.add(
            f"GPUJOB_CHECKPOINT_DIR=checkpoints {command}", in_terminal(command, given, EXAMPLES)
        )
    return recording


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench.pictures", description=__doc__)
    parser.add_argument("--folder", type=Path, default=ROOT / "docs" / "images")
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument("--no-cluster", action="store_true", help="the script alone")
    chosen.add_argument("--dashboard", action="store_true", help="the dashboard alone")
    given = parser.parse_args(arguments)
    folder: Path = given.folder
    kept = {name: text for name, text in os.environ.items() if not name.startswith("GPUJOB_")}
    environment = kept | {"PATH": f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}"}
    day = datetime.now(UTC).date().isoformat()
    folder.mkdir(parents=True, exist_ok=True)
    if given.dashboard:
        with local_cluster(environment) as (inside, _):
            _show(screenshots(inside, folder))
        return 0
    recordings = {} if given.no_cluster else cluster_pictures(environment, day, folder)
    recordings["laptop"] = laptop_picture(environment, day)
    for name, recording in recordings.items():
        (folder / f"{name}.svg").write_text(recording.svg(), encoding="utf-8")
        print(folder / f"{name}.svg")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
