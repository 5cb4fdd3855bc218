"""Scripts that are run twice in processes of their own: as written, and with loops that ask."""

import ast
import hashlib
import json
import os
import re
import subprocess
import sys
import textwrap
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpujob_worker.launch.command import hooked

# Is run after the worker's start and before the script; records what the loops ask.
LISTENS = """
import os, sys
rerun = sys.modules.get("gpujob_worker.resume.rerun")
if rerun is not None:
    class Listener:
        def loop(self, file, line, iterable):
            self.record(file, line)
            return iterable
        def turn(self, file, line):
            self.record(file, line)
            return True
        def record(self, file, line):
            frame = sys._getframe(3)
            assert frame.f_code.co_filename == file, (frame, file)
            with open(os.environ["ASKED"], "a") as asked:
                asked.write(f"{os.path.basename(file)} {line} {frame.f_lineno}\\n")
    rerun.listener = Listener()
"""


ADDRESS = re.compile("0x[0-9a-f]+")


@dataclass
class RerunScript:
    """A script with its modules, and the loops of them that are listed."""

    path: Path
    command: list[str]
    program: str = sys.executable
    input: str = ""
    variables: dict[str, str] = field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        listens = self.path / "listens"
        listens.mkdir()
        (listens / "sitecustomize.py").write_text(LISTENS)

    @property
    def checkpoints(self) -> Path:
        found = self.path / "checkpoints"
        found.mkdir(exist_ok=True)
        return found

    def write(self, name: str, source: str) -> Path:
        path = self.path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(textwrap.dedent(source).lstrip("\n"))
        return path

    def lists(self, *paths: Path, into: Path | None = None, **more: Any) -> None:
        """All loops of the files are on the way."""
        entries = {str(path): {**listed(path.read_bytes()), **more} for path in paths}
        place = (into or self.checkpoints) / "places.json"
        place.write_text(json.dumps({"format": 1, "files": entries}))

    def plain(self) -> subprocess.CompletedProcess[str]:
        return self._run(self._environment)

    def again(self) -> subprocess.CompletedProcess[str]:
        """In an attempt that resumes, with a listener."""
        variables = {"GPUJOB_CHECKPOINT_DIR": str(self.checkpoints), "GPUJOB_ATTEMPT": "2"}
        environment = hooked({**self._environment, **variables})
        del environment["GPUJOB_FIRST_PROCESS"]
        return self._run(environment)

    @property
    def _environment(self) -> dict[str, str]:
        keep = {k: v for k, v in os.environ.items() if not k.startswith(("GPUJOB", "PYTHON"))}
        asked = {"ASKED": str(self.path / "asked"), "PYTHONPATH": str(self.path / "listens")}
        return {**keep, **asked, **self.variables}

    def _run(self, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.program, *self.command],
            cwd=self.path,
            env=environment,
            input=self.input,
            capture_output=True,
            text=True,
            timeout=110,
        )

    @property
    def asked(self) -> list[str]:
        """The file and line of each loop that asked, once, and the line that its frame was in."""
        try:
            return list(dict.fromkeys((self.path / "asked").read_text().splitlines()))
        except FileNotFoundError:
            return []

    def same(self) -> subprocess.CompletedProcess[str]:
        """The end of a plain run, which is that of a run that is rewritten."""
        plain = self.plain()
        assert self.asked == []
        again = self.again()
        for name in ("stderr", "stdout", "returncode"):
            ours, theirs = (ADDRESS.sub("0x", str(getattr(end, name))) for end in (again, plain))
            assert ours == theirs, f"{name}: {ours}\ninstead of: {theirs}"
        return plain


def loops(source: bytes) -> list[int]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree = ast.parse(source)
    found = (node for node in ast.walk(tree) if isinstance(node, (ast.For, ast.While)))
    return sorted(node.lineno for node in found)


def listed(source: bytes) -> dict[str, Any]:
    return {"sha256": hashlib.sha256(source).hexdigest(), "loops": loops(source)}


def script(folder: Path, source: str, *arguments: str, **more: Any) -> RerunScript:
    made = RerunScript(folder, ["train.py", *arguments], **more)
    made.lists(made.write("train.py", source))
    return made
