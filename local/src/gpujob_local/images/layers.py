"""Makes layers, each once: a tar in the cache whose name is derived from its inputs."""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from pathlib import Path

from gpujob_local.control_plane.go_toolchain import ToolError, cache_directory
from gpujob_local.images.archive import Layer

# The base's release of Debian, and its Python.
SUITE = "bookworm"
PYTHON_VERSION = "3.11"
SITE_PACKAGES = f"opt/gpujob/lib/python{PYTHON_VERSION}/site-packages"
LIMIT_SECONDS = 900.0
# Number of kept layers of one name that follows every change of a checkout. Recently used ones are
# kept too.
KEPT = 4
IN_USE_SECONDS = 3600.0
# Useless in a container, and a third of the base.
_LEFT_OUT = ("usr/share/doc", "usr/share/man", "usr/share/locale", "var/cache/apt", "var/lib/apt")

Say = Callable[[str], None]
Fill = Callable[[Path], None]


def images_cache() -> Path:
    folder = cache_directory() / "images"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def key_of(*parts: str | bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode() if isinstance(part, str) else part)
        digest.update(b"\0")
    return digest.hexdigest()[:16]


def cached_layer(name: str, key: str, fill: Fill, owner: str = "0:0") -> Layer:
    """Returns the layer NAME-KEY from the cache, or packs the files that `fill` writes into a
    folder.

    Raises `ToolError` if a command fails. A partial layer is removed.
    """
    target = images_cache() / f"{name}-{key}.tar"
    # Two processes do not make the same bytes, so one digest would be of a file that is gone.
    with only_one(name):
        if not target.is_file():
            _fill_layer(target, name, fill, owner)
        os.utime(target)
    remove_old(images_cache().glob(f"{name}-*.tar"), KEPT, IN_USE_SECONDS)
    return Layer.of(target)


def _fill_layer(target: Path, name: str, fill: Fill, owner: str) -> None:
    with tempfile.TemporaryDirectory(dir=images_cache(), prefix=f".{name}-") as temporary:
        root = Path(temporary) / "root"
        root.mkdir()
        fill(root)
        packed = Path(temporary) / "layer.tar"
        pack(root, packed, owner)
        packed.rename(target)


def remove_old(made: Iterable[Path], kept: int, in_use_seconds: float) -> None:
    """Removes files and folders of one name that are neither among the newest nor recently used."""
    for old in newest_first(made)[kept:]:
        if time.time() - old.stat().st_mtime > in_use_seconds:
            shutil.rmtree(old, ignore_errors=True) if old.is_dir() else old.unlink()


def newest_first(made: Iterable[Path]) -> list[Path]:
    """Returns them by their last use, the newest first."""
    return sorted(made, key=lambda path: path.stat().st_mtime, reverse=True)


def cached_folder(name: str, key: str, fill: Fill) -> Path:
    """Does the same for a folder that is used directly."""
    target = images_cache() / f"{name}-{key}"
    with only_one(name):
        _fill_folder(target, name, fill)
    return target


@contextmanager
def only_one(name: str) -> Generator[None]:
    """Makes several processes that need the same thing wait for the one that makes it."""
    with (images_cache() / f".{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _fill_folder(target: Path, name: str, fill: Fill) -> None:
    if not target.is_dir():
        temporary = Path(tempfile.mkdtemp(dir=images_cache(), prefix=f".{name}-"))
        try:
            temporary.chmod(0o755)
            fill(temporary)
            temporary.rename(target)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise


def pack(root: Path, target: Path, owner: str) -> None:
    """Writes a tar that depends on the files alone: sorted, without dates, with one owner
    for all.
    """
    user, group = owner.split(":")
    command = ["tar", "--create", f"--file={target}", f"--directory={root}", "--sort=name"]
    command += ["--mtime=@0", "--numeric-owner", "--no-xattrs"]
    command += [f"--owner={user}", f"--group={group}"] if owner != "0:0" else []
    run([*command, "."])


def fill_base(root: Path) -> None:
    """Installs Debian's smallest variant with Python."""
    run(
        [
            "debootstrap",
            "--variant=minbase",
            "--include=python3,ca-certificates",
            SUITE,
            str(root),
        ]
    )
    for folder in _LEFT_OUT:
        shutil.rmtree(root / folder, ignore_errors=True)


def fill_packages(root: Path, requirements: str, mounted_at: str) -> None:
    """Installs packages with locked hashes, for the base's Python and not the one that
    runs this.
    """
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(requirements)
        file.flush()
        run(
            [
                *_uv(),
                "pip",
                "install",
                "--quiet",
                "--no-deps",
                "--require-hashes",
                f"--python-version={PYTHON_VERSION}",
                f"--python={sys.executable}",
                f"--target={root}",
                f"--requirement={file.name}",
            ]
        )
    compile_bytecode(root, mounted_at)


def compile_bytecode(root: Path, mounted_at: str) -> None:
    """Compiles bytecode, because it cannot be written where it is used. Skipped if this Python is
    not the base's.

    The bytecode is checked neither by date nor by hash, because all files in a layer have one date.
    """
    if f"{sys.version_info.major}.{sys.version_info.minor}" != PYTHON_VERSION:
        return
    # Packages contain templates that are not Python, for which compileall returns exit code 1.
    command = [sys.executable, "-m", "compileall", "-qq", "-j", "0", "-s", str(root)]
    command += ["-p", mounted_at, "--invalidation-mode", "unchecked-hash", str(root)]
    subprocess.run(command, check=False, timeout=LIMIT_SECONDS, stdout=subprocess.DEVNULL)


def fill_environment(root: Path, wheel: Path) -> None:
    """Makes what `python3 -m venv /opt/gpujob` would make, with our wheel and its
    commands in it.
    """
    site_packages = root / SITE_PACKAGES
    site_packages.mkdir(parents=True)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site_packages)
    compile_bytecode(site_packages, f"/{SITE_PACKAGES}")
    folder = root / "opt" / "gpujob"
    (folder / "pyvenv.cfg").write_text(
        f"home = /usr/bin\ninclude-system-site-packages = false\nversion = {PYTHON_VERSION}\n"
    )
    commands = folder / "bin"
    commands.mkdir()
    for name in ("python", "python3"):
        (commands / name).symlink_to("/usr/bin/python3")
    for name, module, function in entry_points(site_packages):
        script = commands / name
        script.write_text(
            f"#!/opt/gpujob/bin/python\nimport sys\nfrom {module} import {function}\n"
            f"sys.exit({function}())\n"
        )
        script.chmod(0o755)


def entry_points(site_packages: Path) -> list[tuple[str, str, str]]:
    """Returns name, module and function of every command of the single wheel that is unpacked
    there.
    """
    (path,) = site_packages.glob("gpujob-*.dist-info/entry_points.txt")
    rows: list[tuple[str, str, str]] = []
    for line in path.read_text().splitlines():
        name, separator, target = line.partition("=")
        if separator:
            module, _, function = target.strip().partition(":")
            rows.append((name.strip(), module, function))
    return rows


def build_wheel(repository: Path, folder: Path) -> Path:
    """Builds our own packages. The key is derived from the wheel's content, not its name."""
    run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)], repository)
    (wheel,) = folder.glob("gpujob-*.whl")
    return wheel


def wheel_key(wheel: Path) -> str:
    """Returns a key of the files in a wheel. The archive itself contains dates."""
    with zipfile.ZipFile(wheel) as archive:
        parts = [name.encode() + archive.read(name) for name in sorted(archive.namelist())]
    return key_of(*parts)


def run(command: Sequence[str], folder: Path | None = None) -> None:
    """Runs a command. Raises `ToolError` with the end of its output if it fails."""
    path = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=os.environ | {"PATH": path},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=LIMIT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ToolError(f"{command[0]}: {error}") from None
    if done.returncode != 0:
        end = done.stdout.decode(errors="replace")[-2000:]
        raise ToolError(f"{' '.join(command[:3])} ...: exit code {done.returncode}\n{end}")


def _uv() -> list[str]:
    beside = Path(sys.executable).parent / "uv"
    return [str(beside) if beside.is_file() else "uv"]
