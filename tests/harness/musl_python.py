"""A Python whose C library is musl, as Alpine's is: built from the sources of Debian's Python.

Only what is in Python itself is built. Its modules that need other libraries (zlib, OpenSSL) are
left out, for those of Debian are made for another C library.
"""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from gpujob_local.images.layers import PYTHON_VERSION, SUITE, run

_KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"
_NEEDED = {
    "musl-gcc": "musl-tools",
    "make": "make",
    "dpkg-source": "dpkg-dev",
    "apt-get": "apt",
}
_LOADER = "ld-musl-x86_64.so.1"
# Debian's layout of folders is not musl's, and `configure` takes only one of them.
_COMPILER = '#!/bin/sh\n[ "$*" = --print-multiarch ] || exec musl-gcc "$@"\n'
_OPTIONS = ("--prefix=/usr/local", "--disable-test-modules", "--without-ensurepip")
_LEFT_OUT = ("*.a", "__pycache__", "test", "tests", "idlelib", "lib2to3", "tkinter", "config-*")


def musl_refusal() -> str | None:
    """Why it cannot be built on this machine, and what to do about it; None where it can."""
    if not Path("/etc/debian_version").is_file() or not Path(_KEYS).is_file():
        return "a Python for musl is built from Debian's sources, and this is no Debian"
    missing = sorted({package for name, package in _NEEDED.items() if not shutil.which(name)})
    if missing:
        return f"a Python for musl cannot be built: apt-get install {' '.join(missing)}"
    return None


def fill_musl_python(root: Path) -> None:
    """The C library, and Python below /usr/local. Takes minutes.

    Raises `ToolError` when a command fails, for instance because there is no network.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sources = _sources(folder)
        compiler = folder / "compiler"
        compiler.write_text(_COMPILER)
        compiler.chmod(0o755)
        run(["env", f"CC={compiler}", "./configure", *_OPTIONS], sources)
        run(["make", f"-j{len(os.sched_getaffinity(0))}"], sources)
        run(["make", "install", f"DESTDIR={folder / 'made'}"], sources)
        ignored = shutil.ignore_patterns(*_LEFT_OUT)
        made, target = folder / "made" / "usr/local", root / "usr/local"
        shutil.copytree(made, target, ignore=ignored, symlinks=True)
    (root / "lib").mkdir()
    shutil.copy(Path("/lib") / _LOADER, root / "lib" / _LOADER)


def _sources(folder: Path) -> Path:
    """From the mirror that this machine takes its packages from."""
    lists = folder / "lists"
    lists.mkdir()
    entry = folder / "sources.list"
    entry.write_text(f"deb-src [signed-by={_KEYS}] {_mirror()} {SUITE} main\n")
    apt = ["apt-get", "-qq", "-o", f"Dir::Etc::SourceList={entry}", "-o"]
    apt += ["Dir::Etc::SourceParts=/dev/null", "-o", f"Dir::State::Lists={lists}", "-o"]
    apt += ["APT::Sandbox::User=root"]
    run([*apt, "update"])
    package = f"python{PYTHON_VERSION}"
    run([*apt, "source", "--download-only", package], folder)
    (description,) = folder.glob(f"{package}_*.dsc")
    run(["dpkg-source", "--extract", str(description), "source"], folder)
    return folder / "source"


def _mirror() -> str:
    command = [
        "apt-get",
        "indextargets",
        "--format",
        "$(REPO_URI) $(RELEASE)",
        "Created-By: Packages",
    ]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    rows = [line.split() for line in said.splitlines()]
    return next(address for address, release, *_ in rows if release == SUITE)
