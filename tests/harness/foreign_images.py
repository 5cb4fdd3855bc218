"""Images as people bring them, none made for GPUJob: the kinds that differ in what a hook can do.

All are made of what is on this machine. What has torch has the one that is mounted into every
container, found by a path file as a distribution's packages are.
"""

import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from gpujob_local.images.archive import Image, Layer
from gpujob_local.images.layers import (
    PYTHON_VERSION,
    SITE_PACKAGES,
    SUITE,
    cached_layer,
    key_of,
)
from gpujob_local.images.recipes import (
    DEFAULT_REGISTRY,
    SHARED_PACKAGES_MOUNT,
    base_layer,
    packages_layer,
)
from tests.harness.musl_python import fill_musl_python
from tests.harness.repository import ROOT

NUMBER = "1000:1000"
NO_NAME = {"HOME": "/tmp", "USER": "trainer", "LOGNAME": "trainer"}
_PATHS = f"/{SITE_PACKAGES}\n{SHARED_PACKAGES_MOUNT}\n"
_LEFT_OUT = ("test", "tests", "idlelib", "lib2to3", "__pycache__", "*.a", "site-packages", "share")
_DEBIANS_PACKAGES = "usr/local/lib/python3.11/dist-packages"
# The Python that torch's packages are of.
CONDA_VERSION = "3.11"
_CONDA, _ENVIRONMENT = "opt/conda", "opt/conda/envs/train"
# What is run in an image without a shell.
_KEPT_PROGRAMS = ("python3",)


class ForeignImages:
    """Each image by its kind."""

    def __init__(self) -> None:
        self._base, self._packages = base_layer(), packages_layer(ROOT, "worker")

    def own(self) -> Image:
        """Debian's Python with torch, and a user by number."""
        layers = (self._base, self._packages, _path_file(_DEBIANS_PACKAGES))
        return _image("own", *layers, environment=NO_NAME, user=NUMBER)

    def root(self) -> Image:
        """The same, which names no user."""
        return replace(self.own(), names=(_name("root"),), user="")

    def named_user(self) -> Image:
        """The same with a user by name."""
        return replace(self.own(), names=(_name("named"),), user="nobody")

    def distroless(self) -> Image:
        """Python and torch without a shell or any other program."""
        layer = _changed(self._base, "distroless", _without_programs)
        packages = _path_file(_DEBIANS_PACKAGES)
        return _image("distroless", layer, self._packages, packages, user=NUMBER)

    def other_python(self, version: str, prefix: Path) -> Image:
        """Python of another version, without torch; its installation is at `prefix` here."""
        paths = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LD_LIBRARY_PATH": "/usr/local/lib"}
        layers = (self._base, _prefix(prefix, "usr/local"))
        return _image(f"python{version}", *layers, environment=NO_NAME | paths, user=NUMBER)

    def conda(self, prefix: Path) -> Image:
        """An environment of conda with a Python and torch of its own, switched on by variables."""
        site_packages = f"{_ENVIRONMENT}/lib/python{CONDA_VERSION}/site-packages"
        layers = (self._base, self._packages, _conda(prefix), _path_file(site_packages))
        variables = {
            "PATH": f"/{_ENVIRONMENT}/bin:/{_CONDA}/condabin:/usr/bin:/bin",
            "CONDA_PREFIX": f"/{_ENVIRONMENT}",
            "CONDA_DEFAULT_ENV": "train",
            "CONDA_SHLVL": "1",
            "LD_LIBRARY_PATH": f"/{_ENVIRONMENT}/lib",
        }
        return _image("conda", *layers, environment=NO_NAME | variables, user=NUMBER)

    def musl(self) -> Image:
        """Python, without torch, and nothing else; the C library is that of Alpine."""
        layer = cached_layer("musl", key_of(SUITE, PYTHON_VERSION), fill_musl_python)
        paths = {"PATH": "/usr/local/bin"}
        return _image("musl", layer, environment=NO_NAME | paths, user=NUMBER)

    def without_python(self) -> Image:
        """Programs, and no Python among them."""
        layer = _changed(self._base, "without-python", _without_python)
        return _image("without-python", layer, user=NUMBER)


def _name(kind: str) -> str:
    return f"{DEFAULT_REGISTRY}/somebodys-{kind}:1"


def _image(
    kind: str, *layers: Layer, environment: Mapping[str, str] | None = None, user: str
) -> Image:
    return Image((_name(kind),), layers, environment=environment or {}, user=user)


def _path_file(site_packages: str) -> Layer:
    def fill(root: Path) -> None:
        folder = root / site_packages
        folder.mkdir(parents=True)
        (folder / "packages.pth").write_text(_PATHS)

    return cached_layer("path-file", key_of(site_packages, _PATHS), fill)


def _prefix(prefix: Path, where: str) -> Layer:
    """An installation of Python."""
    return cached_layer(
        "python", key_of(str(prefix), where), lambda root: _copy(prefix, root / where)
    )


def _conda(prefix: Path) -> Layer:
    """The same where conda has it, which tells an environment by its folder `conda-meta`."""

    def fill(root: Path) -> None:
        _copy(prefix, root / _ENVIRONMENT)
        for folder in (_CONDA, _ENVIRONMENT):
            (root / folder / "conda-meta").mkdir()
            (root / folder / "conda-meta" / "history").touch()

    return cached_layer("conda", key_of(str(prefix)), fill)


def _copy(prefix: Path, where: Path) -> None:
    """Without what no program needs."""
    ignored = shutil.ignore_patterns(*_LEFT_OUT)
    shutil.copytree(prefix, where, ignore=ignored, symlinks=True)


def _changed(base: Layer, kind: str, change: Callable[[Path], None]) -> Layer:
    """The base with something taken out: a layer of its own, for nothing else brings that back."""

    def fill(root: Path) -> None:
        command = ["tar", "--extract", f"--file={base.path}", f"--directory={root}"]
        subprocess.run(command, check=True)
        change(root)

    return cached_layer(kind, key_of(base.digest, kind), fill)


def _without_programs(root: Path) -> None:
    for folder in ("bin", "sbin", "usr/bin", "usr/sbin"):
        for program in (root / folder).iterdir():
            if not program.name.startswith(_KEPT_PROGRAMS):
                program.unlink() if not program.is_dir() else shutil.rmtree(program)


def _without_python(root: Path) -> None:
    for folder in ("usr/bin", "usr/lib"):
        for found in (root / folder).glob("python3*"):
            shutil.rmtree(found) if found.is_dir() and not found.is_symlink() else found.unlink()
