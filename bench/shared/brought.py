"""What is brought along to a machine with a GPU and without a network: packed here, unpacked there.

A pack is a folder: the programs of a control plane in one archive, the contents of wheels that the
machine may lack in another, and the metadata of our own distribution, whose code is the checkout's.
It uses the standard library only, because it runs before anything is unpacked.
"""

import io
import json
import lzma
import os
import sys
import tarfile
import time
import venv
import zipfile
from collections.abc import Generator, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS, PACKAGES = "programs.tar.xz", "packages.tar.xz"
METADATA, RECORD = "own.dist-info", "pack.json"
# What may travel to such a machine: the checkout and this.
BYTES_MAX = 64 * 1024**2
# What a pack has with all programs and wheels is below this, so the checkout must leave it room.
PACK_BYTES_MAX = 50 * 1024**2
SOURCES = ("api", "operator", "worker", "cli", "local")
# As large as all programs together, so that what they share is stored once.
DICTIONARY_BYTES = 400 * 1024**2
PACKAGES_DICTIONARY_BYTES = 128 * 1024**2
PRESET = 6
ASSETS_VARIABLE = "KUBEBUILDER_ASSETS"


class PackError(Exception):
    """A pack is too large, or not one for this machine. The message is one line."""


@dataclass(frozen=True, slots=True)
class Unpacked:
    """Where things are on this side: the interpreter, and the variables for its processes."""

    python: Path
    variables: Mapping[str, str]
    seconds: float


@contextmanager
def _archive(target: Path, dictionary_bytes: int) -> Generator[tarfile.TarFile]:
    filters = [
        {"id": lzma.FILTER_X86},
        {"id": lzma.FILTER_LZMA2, "preset": PRESET, "dict_size": dictionary_bytes},
    ]
    with (
        lzma.open(target, "wb", check=lzma.CHECK_CRC32, filters=filters) as stream,
        tarfile.open(fileobj=stream, mode="w|") as archive,
    ):
        yield archive


def write_programs(
    programs: Mapping[str, Path], target: Path, dictionary_bytes: int = DICTIONARY_BYTES
) -> None:
    """All programs in one archive: they share much of their code, which is then stored once."""
    with _archive(target, dictionary_bytes) as archive:
        for name in sorted(programs):
            archive.add(programs[name], arcname=name)


def write_packages(
    wheels: Iterable[Path], target: Path, dictionary_bytes: int = PACKAGES_DICTIONARY_BYTES
) -> None:
    """The wheels' files, each below a folder with the wheel's name: half of the wheels' size."""
    with _archive(target, dictionary_bytes) as archive:
        for wheel in sorted(wheels):
            with zipfile.ZipFile(wheel) as files:
                for name in sorted(one for one in files.namelist() if not one.endswith("/")):
                    content = files.read(name)
                    member = tarfile.TarInfo(f"{wheel.stem}/{name}")
                    member.size, member.mode = len(content), 0o644
                    archive.addfile(member, io.BytesIO(content))


def tree_bytes(files: Iterable[Path]) -> int:
    return sum(path.stat().st_size for path in files if path.is_file())


def check_size(pack: Path, checkout_bytes: int, limit_bytes: int = BYTES_MAX) -> int:
    """Returns the pack's bytes. Raises `PackError` if it and the checkout are too large."""
    packed = tree_bytes(pack.rglob("*"))
    if packed + checkout_bytes > limit_bytes:
        largest = sorted(
            (path for path in pack.rglob("*") if path.is_file()), key=_size, reverse=True
        )
        names = ", ".join(f"{path.name} {_mib(_size(path))}" for path in largest[:3])
        raise PackError(
            f"the pack has {_mib(packed)} and the checkout {_mib(checkout_bytes)}, together at "
            f"most {_mib(limit_bytes)}: name packages that the machine has after --without "
            f"(largest: {names})"
        )
    return packed


def unpack(pack: Path, target: Path) -> Unpacked:
    """Makes an interpreter that has this one's packages, the pack's, and the checkout's code."""
    began = time.monotonic()
    try:
        about = json.loads((pack / RECORD).read_text())
    except (OSError, ValueError) as error:
        raise PackError(
            f"{pack} is no pack ({error}): python -m bench.gpu_pack makes one"
        ) from None
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    if about["python"] != here:
        raise PackError(
            f"{pack} is for Python {about['python']}, this is {here}: make it again with "
            f"--python {here}"
        )
    folder, programs = target / "venv", target / "programs"
    venv.EnvBuilder(symlinks=True, with_pip=False).create(folder)
    site = folder / "lib" / f"python{here}" / "site-packages"
    with ThreadPoolExecutor(max_workers=2) as threads:
        # Both wait for the decompressor, which runs beside the other one.
        both = [
            threads.submit(_unpack_programs, pack / PROGRAMS, programs),
            threads.submit(_unpack_packages, pack / PACKAGES, site),
        ]
        for one in both:
            one.result()
    _add_checkout(pack / METADATA, site, folder / "bin")
    variables = {ASSETS_VARIABLE: str(programs)}
    return Unpacked(folder / "bin" / "python", variables, time.monotonic() - began)


def _unpack_programs(source: Path, target: Path) -> None:
    with lzma.open(source) as stream, tarfile.open(fileobj=stream, mode="r|") as archive:
        archive.extractall(target, filter="data")


def _unpack_packages(source: Path, site: Path) -> None:
    """Only the wheels that this machine lacks, without the folders that have their names."""
    wanted: dict[str, bool] = {}
    with lzma.open(source) as stream, tarfile.open(fileobj=stream, mode="r|") as archive:
        for member in archive:
            wheel, _, name = member.name.partition("/")
            if wheel not in wanted:
                wanted[wheel] = is_wanted(wheel)
            if wanted[wheel]:
                member.name = name
                archive.extract(member, site, filter="data")


def _add_checkout(metadata: Path, site: Path, scripts: Path) -> None:
    """Our distribution's metadata and commands; its code stays where it is."""
    own = site / f"gpujob-{(metadata / 'VERSION').read_text().strip()}.dist-info"
    own.mkdir()
    for path in metadata.iterdir():
        (own / path.name).write_bytes(path.read_bytes())
    paths = [str(ROOT / part / "src") for part in SOURCES]
    paths += [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    (site / "checkout.pth").write_text("\n".join(paths) + "\n")
    _write_scripts(own / "entry_points.txt", scripts)


def _write_scripts(entry_points: Path, folder: Path) -> None:
    for line in entry_points.read_text().splitlines():
        name, _, target = (part.strip() for part in line.partition("="))
        module, _, function = target.partition(":")
        if function:
            path = folder / name
            path.write_text(
                f"#!{folder / 'python'}\nimport sys\nfrom {module} import {function}\n"
                f"sys.exit({function}())\n"
            )
            path.chmod(0o755)


def is_wanted(wheel: str) -> bool:
    """Whether this machine lacks the wheel's package, or has an older one."""
    name, packed = wheel.split("-")[:2]
    try:
        return _numbers(version(name)) < _numbers(packed)
    except PackageNotFoundError:
        return True


def _numbers(text: str) -> tuple[int, ...]:
    parts = text.split("+")[0].split(".")
    return tuple(int(part) for part in parts if part.isdigit())


def run_environment(unpacked: Unpacked | None) -> dict[str, str]:
    """The variables of processes on this side."""
    return {**os.environ, **(unpacked.variables if unpacked is not None else {})}


def names_of(wheels: Sequence[Path]) -> list[str]:
    return sorted(path.name.split("-")[0].replace("_", "-").lower() for path in wheels)


def _size(path: Path) -> int:
    return path.stat().st_size


def _mib(amount: int) -> str:
    return f"{amount / 1024**2:.1f} MiB"
