"""The images of a cluster of kubelets, made from the Dockerfile's description without an engine.

They differ from the Dockerfile: the base is Debian's smallest instead of python:3.12-slim, and the
worker has no compiler. torch and its CUDA libraries are not in the image but mounted into every
container from this machine (`SHARED_PACKAGES_MOUNT`).
"""

import shutil
import tempfile
import time
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

from gpujob_local.control_plane.manifests import REPOSITORY
from gpujob_local.images.archive import Image, Layer
from gpujob_local.images.layers import (
    SITE_PACKAGES,
    SUITE,
    Say,
    build_wheel,
    cached_folder,
    cached_layer,
    fill_base,
    fill_environment,
    fill_packages,
    key_of,
    wheel_key,
)
from gpujob_local.images.requirement_files import is_shared, select

PAUSE_IMAGE = "gpujob.local/pause:1"
DNS_IMAGE = "gpujob.local/coredns:1"
# Names without a registry's host mean this one. The chart's and the examples' names have none.
DEFAULT_REGISTRY = "docker.io/library"
OPERATOR_NAME = f"{DEFAULT_REGISTRY}/gpujob-operator:{version('gpujob')}"
WORKER_NAME = f"{DEFAULT_REGISTRY}/gpujob-worker:{version('gpujob')}"

SHARED_PACKAGES_MOUNT = "/torch-packages"
USER = "65532:65532"
_ENVIRONMENT = {
    "PATH": "/opt/gpujob/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "PYTHONUNBUFFERED": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
}
# The user's number has no name in /etc/passwd.
_OPERATOR_ENVIRONMENT = {"HOME": "/tmp", "USER": "gpujob", "LOGNAME": "gpujob"}  # noqa: S108
_WORKER_ENVIRONMENT = {"HOME": "/workspace", "USER": "gpujob", "LOGNAME": "gpujob"}


def shared_packages(say: Say) -> Path:
    """Returns the folder with torch and its libraries, linked from the package cache if
    possible.
    """
    text = select((REPOSITORY / "requirements" / "worker.txt").read_text(), is_shared)
    began = time.monotonic()

    def fill(root: Path) -> None:
        fill_packages(root, text, SHARED_PACKAGES_MOUNT)

    folder = cached_folder("torch", key_of(text), fill)
    say(
        f"torch is not copied into the worker's image: {folder} is mounted read-only at "
        f"{SHARED_PACKAGES_MOUNT} in every container ({time.monotonic() - began:.0f} s)"
    )
    return folder


def cluster_images(binaries: Mapping[str, Path], say: Say) -> tuple[Image, ...]:
    """Returns all images that a cluster needs. A cached layer is not made again."""
    began = time.monotonic()
    operator = operator_image(REPOSITORY, OPERATOR_NAME)
    base, _, product = operator.layers
    images = (
        _single_binary(PAUSE_IMAGE, binaries["pause"]),
        _single_binary(DNS_IMAGE, binaries["coredns"]),
        operator,
        Image(
            names=(WORKER_NAME,),
            layers=(base, packages_layer(REPOSITORY, "worker"), product, _workspace()),
            command=("gpujob-run", "--help"),
            environment=_ENVIRONMENT | _WORKER_ENVIRONMENT,
            user=USER,
            folder="/workspace",
        ),
    )
    layers = {layer.digest: layer.size_bytes for image in images for layer in image.layers}
    mebibytes = sum(layers.values()) // 1024**2
    say(f"layers: {len(layers)}, {mebibytes} MiB, after {time.monotonic() - began:.0f} s")
    return images


def operator_image(repository: Path, name: str) -> Image:
    """Returns the operator's image of any checkout of this project."""
    base = base_layer()
    with tempfile.TemporaryDirectory() as folder:
        wheel = build_wheel(repository, Path(folder))
        product = cached_layer(
            "product", wheel_key(wheel), lambda root: fill_environment(root, wheel)
        )
    return Image(
        names=(name,),
        layers=(base, packages_layer(repository, "operator"), product),
        command=("gpujob-operator", "run"),
        environment=_ENVIRONMENT | _OPERATOR_ENVIRONMENT,
        user=USER,
    )


def base_layer() -> Layer:
    """Returns the layer with Debian and its Python."""
    return cached_layer("base", key_of(SUITE, "python3,ca-certificates"), fill_base)


def packages_layer(repository: Path, image: str) -> Layer:
    """Returns the locked packages of `operator` or `worker`, without the shared ones and GPUJob."""
    text = (repository / "requirements" / f"{image}.txt").read_text()
    text = select(text, lambda name: not is_shared(name))

    def fill(root: Path) -> None:
        fill_packages(root / SITE_PACKAGES, text, f"/{SITE_PACKAGES}")
        if image == "worker":
            (root / SITE_PACKAGES / "shared.pth").write_text(f"{SHARED_PACKAGES_MOUNT}\n")

    return cached_layer(f"{image}-packages", key_of(text, SHARED_PACKAGES_MOUNT), fill)


def _workspace() -> Layer:
    examples = REPOSITORY / "examples"
    files = sorted(path for path in examples.rglob("*") if path.is_file())
    key = key_of(*(str(path.relative_to(examples)).encode() + path.read_bytes() for path in files))
    return cached_layer(
        "workspace",
        key,
        lambda root: _copy(examples, root / "workspace"),
        owner=USER,
    )


def _copy(source: Path, target: Path) -> None:
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))


def _single_binary(name: str, binary: Path) -> Image:
    def fill(root: Path) -> None:
        shutil.copy(binary, root / binary.name)

    layer = cached_layer(binary.name, key_of(binary.parent.parent.name), fill)
    return Image(names=(name,), layers=(layer,), entrypoint=(f"/{binary.name}",))
