"""OCI image archives: a configuration and layers, in the form that `ctr images import` reads."""

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Json = dict[str, Any]

_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_INDEX = "application/vnd.oci.image.index.v1+json"
_CONFIGURATION = "application/vnd.oci.image.config.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar"
READ_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Layer:
    """An uncompressed tar of files. Its digest is both the blob's and the content's."""

    path: Path
    digest: str
    size_bytes: int

    @classmethod
    def of(cls, path: Path) -> "Layer":
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while data := file.read(READ_BYTES):
                digest.update(data)
        return cls(path, digest.hexdigest(), path.stat().st_size)


@dataclass(frozen=True, slots=True)
class Image:
    """An image. `names` are full references (docker.io/library/NAME:TAG); the other fields are
    those of a Dockerfile.
    """

    names: tuple[str, ...]
    layers: tuple[Layer, ...]
    command: tuple[str, ...] = ()
    entrypoint: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    user: str = ""
    folder: str = "/"


def configuration(image: Image, architecture: str) -> Json:
    """Returns the image configuration. It has no dates, so that equal layers give equal images."""
    variables = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
    config: Json = {
        "Env": [f"{name}={value}" for name, value in (variables | dict(image.environment)).items()],
        "WorkingDir": image.folder,
    }
    if image.entrypoint:
        config["Entrypoint"] = list(image.entrypoint)
    if image.command:
        config["Cmd"] = list(image.command)
    if image.user:
        config["User"] = image.user
    layers = [f"sha256:{layer.digest}" for layer in image.layers]
    return {
        "architecture": architecture,
        "os": "linux",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": layers},
    }


def write_archive(images: Sequence[Image], architecture: str, target: Path) -> Path:
    """Writes one archive with several images. A layer that several of them share is in it once."""
    manifests: list[Json] = []
    blobs: dict[str, bytes] = {}
    layers: dict[str, Layer] = {}
    for image in images:
        layers |= {layer.digest: layer for layer in image.layers}
        config = _blob(blobs, configuration(image, architecture), _CONFIGURATION)
        rows = [_descriptor(_LAYER, layer.digest, layer.size_bytes) for layer in image.layers]
        head = {"schemaVersion": 2, "mediaType": _MANIFEST}
        manifest = _blob(blobs, head | {"config": config, "layers": rows}, _MANIFEST)
        manifests += [
            manifest | {"annotations": {"io.containerd.image.name": name}} for name in image.names
        ]
    index = {"schemaVersion": 2, "mediaType": _INDEX, "manifests": manifests}
    with tarfile.open(target, "w") as archive:
        _add(archive, "oci-layout", _encoded({"imageLayoutVersion": "1.0.0"}))
        _add(archive, "index.json", _encoded(index))
        for digest, content in blobs.items():
            _add(archive, f"blobs/sha256/{digest}", content)
        for layer in layers.values():
            archive.add(layer.path, f"blobs/sha256/{layer.digest}", recursive=False)
    return target


def _blob(blobs: dict[str, bytes], value: Json, media_type: str) -> Json:
    content = _encoded(value)
    digest = hashlib.sha256(content).hexdigest()
    blobs[digest] = content
    return _descriptor(media_type, digest, len(content))


def _descriptor(media_type: str, digest: str, size_bytes: int) -> Json:
    return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": size_bytes}


def _encoded(value: Json) -> bytes:
    return json.dumps(value, sort_keys=True).encode()


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))
