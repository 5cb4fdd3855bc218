"""The Python interpreters that there are on this machine, of any version."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

VERSIONS = ("2.7", "3.6", "3.8", "3.9", "3.10", "3.11", "3.12", "3.13", "3.14")
_ASK = "import sys; print('%d.%d' % sys.version_info[:2])"


@cache
def python(version: str) -> str | None:
    """The path of an interpreter of that version that starts; None where there is none."""
    return next((found for found in _candidates(version) if _is(found, version)), None)


def _candidates(version: str) -> Iterator[str]:
    name = f"python{version}"
    on_path = shutil.which(name)
    if on_path is not None:
        yield on_path
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    uv = Path.home() / ".local/share/uv/python"
    for folder in (pyenv, uv):
        yield from (str(path) for path in sorted(folder.glob(f"*/bin/{name}")))


def _is(program: str, version: str) -> bool:
    try:
        done = subprocess.run([program, "-c", _ASK], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return False
    return done.stdout.strip() == version
