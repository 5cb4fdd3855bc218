"""Packs what a machine with a GPU and without a network may lack: below 64 MiB with the checkout.

    python -m bench.gpu_pack DIR [--python 3.12] [--wheels FOLDER] [--without NAME,NAME]

DIR gets etcd and Kubernetes' control plane as `make tools` built them, in one archive, and in
another the operator's and the local cluster's packages for that Python, without torch, which the
machine must have. The wheels are looked for in FOLDER; without it pip downloads the versions that
are installed here. What the machine has in the same or a newer version is not taken from the pack.
There, `python -m bench.gpu_day --pack DIR` unpacks it first. Packing takes five minutes on a core,
and one if the programs are the same as before.
"""

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, distribution, requires, version
from pathlib import Path

from packaging.requirements import Requirement

from bench.shared.brought import (
    METADATA,
    PACKAGES,
    PROGRAMS,
    RECORD,
    ROOT,
    PackError,
    check_size,
    names_of,
    tree_bytes,
    write_packages,
    write_programs,
)

DISTRIBUTION, EXTRAS = "gpujob", ("operator", "worker", "local")
# The machine has torch, and with it these and all that they need.
THERE = frozenset({"torch", "numpy"})
PLATFORMS = ("2_28", "2_27", "2_24", "2_17", "2_12", "2_5")
DOWNLOAD_SECONDS = 600
DEPTH_MAX = 50


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench.gpu_pack", description=__doc__)
    parser.add_argument("folder", type=Path, help="is made, or made anew")
    parser.add_argument("--python", default="3.12", help="version of Python on that machine")
    parser.add_argument("--wheels", type=Path, help="folder with wheels; nothing is downloaded")
    parser.add_argument("--without", default="", help="packages that the machine has")
    options = parser.parse_args(arguments)
    without = {name.lower().replace("_", "-") for name in options.without.split(",") if name}
    try:
        packed = pack(options.folder, options.python, options.wheels, without)
    except PackError as error:
        print(f"bench.gpu_pack: {error}", file=sys.stderr)
        return 1
    print(f"{options.folder} has {packed / 1024**2:.1f} MiB")
    return 0


def pack(folder: Path, python: str, wheels: Path | None, without: set[str]) -> int:
    """Makes the folder and returns its bytes. Raises `PackError`."""
    from gpujob_local.control_plane.go_toolchain import ToolError
    from gpujob_local.control_plane.tools import find_tools

    wanted = [name for name in needed_packages() if name not in without]
    try:
        programs = find_tools()
    except ToolError as error:
        raise PackError(f"the control plane's programs are missing: {error}") from None
    folder.mkdir(parents=True, exist_ok=True)
    (folder / RECORD).unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as gathered:
        copy_wheels(wanted, wheels, Path(gathered), python)
        write_packages(Path(gathered).glob("*.whl"), folder / PACKAGES)
    shutil.rmtree(folder / METADATA, ignore_errors=True)
    write_metadata(folder / METADATA)
    digest = _digest(programs)
    _compress(programs, folder, digest)
    about = {"python": python, "packages": wanted, "programs": sorted(programs)}
    (folder / RECORD).write_text(json.dumps(about, indent=1) + "\n")
    return check_size(folder, tree_bytes(checkout_files()))


def _compress(programs: Mapping[str, Path], folder: Path, digest: str) -> None:
    """Makes the archive of the programs, unless the folder has that of the same ones."""
    archive, known = folder / PROGRAMS, folder / f"{PROGRAMS}.of"
    if archive.exists() and known.exists() and known.read_text() == digest:
        return
    print(f"compressing {', '.join(programs)}", flush=True)
    known.unlink(missing_ok=True)
    write_programs(programs, archive)
    known.write_text(digest)


def _digest(programs: Mapping[str, Path]) -> str:
    digest = hashlib.sha256()
    for name in sorted(programs):
        with programs[name].open("rb") as file:
            digest.update(name.encode() + hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def checkout_files() -> list[Path]:
    """What of the checkout travels: tracked files, and others that are not ignored."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return [ROOT / name for name in listed.stdout.split("\0") if name]


def needed_packages(extras: Sequence[str] = EXTRAS) -> list[str]:
    """Names of all packages that our extras need here, without torch's."""
    found: set[str] = set()
    todo = [(DISTRIBUTION, frozenset(extras))]
    for _ in range(DEPTH_MAX):
        todo = [
            one
            for name, wanted in todo
            for one in _requirements(name, wanted)
            if one[0] not in found | THERE
        ]
        found |= {name for name, _ in todo}
    return sorted(found)


def _requirements(name: str, extras: frozenset[str]) -> list[tuple[str, frozenset[str]]]:
    found: list[tuple[str, frozenset[str]]] = []
    try:
        lines = requires(name) or []
    except PackageNotFoundError:
        return []
    for line in lines:
        one = Requirement(line)
        environments = [{"extra": extra} for extra in ("", *extras)]
        if one.marker is None or any(one.marker.evaluate(each) for each in environments):
            found.append((one.name.lower().replace("_", "-"), frozenset(one.extras)))
    return found


def copy_wheels(names: Sequence[str], source: Path | None, target: Path, python: str) -> None:
    """Puts a wheel of each package into `target`. Raises `PackError` with those without one."""
    if source is None:
        _download(names, target, python)
    else:
        for path in source.glob("*.whl"):
            if set(names_of([path])) & set(names):
                shutil.copy(path, target)
    missing = sorted(set(names) - set(names_of([*target.glob("*.whl")])))
    if missing:
        raise PackError(f"no wheel of {', '.join(missing)}: add them to the folder of wheels")


def _download(names: Sequence[str], target: Path, python: str) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "-d", str(target)]
    command += ["--only-binary=:all:", "--implementation", "cp", "--python-version", python]
    for platform in PLATFORMS:
        command += ["--platform", f"manylinux_{platform}_x86_64"]
    command += ["--platform", "manylinux2014_x86_64"]
    command += [f"{name}=={version(name)}" for name in names]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=DOWNLOAD_SECONDS, check=False
    )
    if done.returncode != 0:
        last = " ".join(done.stderr.split())[-300:]
        raise PackError(f"pip cannot download the wheels ({last}): give them with --wheels")


def write_metadata(folder: Path) -> None:
    """Our own distribution's metadata: its version is asked for, and its commands are made."""
    own = distribution(DISTRIBUTION)
    folder.mkdir()
    for name in ("METADATA", "entry_points.txt"):
        text = own.read_text(name)
        if text is None:
            raise PackError(f"{DISTRIBUTION} has no {name} here: make setup installs it")
        (folder / name).write_text(text)
    (folder / "VERSION").write_text(own.version + "\n")


if __name__ == "__main__":
    sys.exit(main())
