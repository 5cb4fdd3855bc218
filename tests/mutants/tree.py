"""A copy of the tree in which mutants live, and pytest on it."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.mutant import Mutant

PACKAGES = ("api", "operator", "worker", "cli", "local")
COPIED = (*PACKAGES, "tests", "crds", "charts", "bench", "examples")
TEST_SECONDS_MAX = 300.0
# pytest's exit status where tests ran and some failed. Any other end proves nothing.
TESTS_FAILED = 1
_FAILED = re.compile(r"^FAILED \S*?(\w+(?:\[.*\])?)(?: - .*)?$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Verdict:
    """`by` is the first test that failed, or what pytest said instead."""

    caught: bool
    by: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Tree:
    root: Path

    @classmethod
    @contextmanager
    def copied(cls, origin: Path) -> Generator["Tree"]:
        with tempfile.TemporaryDirectory(prefix="gpujob-mutants-") as folder:
            root = Path(folder)
            for name in COPIED:
                shutil.copytree(origin / name, root / name, symlinks=True)
            shutil.copy(origin / "pyproject.toml", root)
            yield cls(root)

    def healthy(self, mutants: Sequence[Mutant]) -> str | None:
        """None where all tests that are used pass without a mutant; else what pytest said."""
        tests = sorted({test for mutant in mutants for test in mutant.tests})
        status, said = self._run(tests)
        return None if status == 0 else said

    def judge(self, mutant: Mutant) -> Verdict:
        path = self.root / mutant.path
        source = path.read_text()
        path.write_text(mutant.mutated(source))
        # What was compiled before need not be older by a whole second.
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
            compiled.unlink()
        started = time.monotonic()
        try:
            status, said = self._run(mutant.tests)
        finally:
            path.write_text(source)
        failed = _FAILED.search(said)
        caught = status == TESTS_FAILED and failed is not None
        by = failed[1] if failed is not None else said.strip().rpartition("\n")[2]
        return Verdict(caught, by, time.monotonic() - started)

    def _run(self, tests: Sequence[str]) -> tuple[int, str]:
        """pytest's exit status (-1: it took too long) and what it said."""
        sources = [str(self.root / name / "src") for name in PACKAGES]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(self.root), *sources]),
            "PYTHONDONTWRITEBYTECODE": "1",
            "COLUMNS": "200",
        }
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "--no-header", "-rf"]
        with suppress(subprocess.TimeoutExpired):
            done = subprocess.run(
                [*command, "-p", "no:cacheprovider", "-p", "no:randomly", "--tb=no", *tests],
                cwd=self.root,
                env=environment,
                capture_output=True,
                text=True,
                timeout=TEST_SECONDS_MAX,
                check=False,
            )
            return done.returncode, done.stdout + done.stderr
        return -1, f"no end within {TEST_SECONDS_MAX:.0f} s"
