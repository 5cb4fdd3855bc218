"""Manifests: which files a checkpoint has, how long they are, and their hashes.

Every rank lists its files with xxh3; MANIFEST.json carries the sha256 of every rank's list and of
itself. A file that no manifest names is never opened.
"""

import hashlib
import json
import os
from pathlib import Path
from typing import Any, cast

import xxhash

from gpujob_worker.checkpoint.errors import CorruptError

MANIFEST = "MANIFEST.json"
FORMAT = 1
_BLOCK_BYTES = 1 << 20
_SMALL_BYTES_MAX = 16 << 20


def write_durably(path: Path, data: bytes) -> None:
    """The file with these bytes is on the disk when this returns; never half of it."""
    temporary = path.with_name(f".{path.name}.tmp-{os.getpid()}")
    with temporary.open("wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())
    temporary.replace(path)
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def rank_name(rank: int) -> str:
    return f"rank-{rank}"


def write_rank_manifest(directory: Path, rank: int, known: dict[str, Any]) -> str:
    """Lists what lies in `rank-<n>/`, hashed unless the size and hash are `known` by the name;
    returns the hash of the list.
    """
    folder = directory / rank_name(rank)
    files = {
        path.name: known.get(path.name) or _describe(path) for path in sorted(folder.iterdir())
    }
    text = json.dumps({"files": files}, sort_keys=True)
    write_durably(directory / f"{rank_name(rank)}.manifest.json", text.encode())
    return hashlib.sha256(text.encode()).hexdigest()


def rank_manifest_hash(directory: Path, rank: int) -> str:
    """The hash of a rank's list as it can be read here. Raises `CorruptError`."""
    data = read_small(directory / f"{rank_name(rank)}.manifest.json")
    return hashlib.sha256(data).hexdigest()


def write_manifest(directory: Path, ranks: int, about: dict[str, Any]) -> None:
    """The commit: everything it names is durable already."""
    hashes = {rank_name(rank): rank_manifest_hash(directory, rank) for rank in range(ranks)}
    body = json.dumps({"format": FORMAT, "ranks": hashes, **about}, sort_keys=True)
    digest = hashlib.sha256(body.encode()).hexdigest()
    write_durably(directory / MANIFEST, f"{body}\n{digest}\n".encode())


def read_manifest(directory: Path) -> dict[str, Any]:
    """What MANIFEST.json says about the checkpoint. Raises `CorruptError`."""
    body, newline, digest = read_small(directory / MANIFEST).partition(b"\n")
    if not newline or hashlib.sha256(body).hexdigest().encode() + b"\n" != digest:
        raise CorruptError(f"{directory.name}: {MANIFEST} does not match its own hash")
    about = _parse(body, directory / MANIFEST)
    if about.get("format") != FORMAT or not isinstance(about.get("ranks"), dict):
        raise CorruptError(f"{directory.name}: format {about.get('format')!r} is not {FORMAT}")
    return about


def verify_rank(directory: Path, about: dict[str, Any], rank: int) -> Path:
    """Checks one rank's files by size and hash; returns their folder. Raises `CorruptError`."""
    path = directory / f"{rank_name(rank)}.manifest.json"
    data = read_small(path)
    if hashlib.sha256(data).hexdigest() != about["ranks"].get(rank_name(rank)):
        raise CorruptError(f"{directory.name}: {path.name} does not match {MANIFEST}")
    folder = directory / rank_name(rank)
    for name, expected in _parse(data, path)["files"].items():
        if folder.is_symlink() or (folder / name).is_symlink() or "/" in name:
            raise CorruptError(f"{directory.name}: {name} is a link")
        if _describe(folder / name) != expected:
            raise CorruptError(f"{directory.name}: {name} does not match its size or hash")
    return folder


def _describe(path: Path) -> dict[str, Any]:
    digest = xxhash.xxh3_128()
    size = 0
    try:
        with path.open("rb") as stream:
            while block := stream.read(_BLOCK_BYTES):
                digest.update(block)
                size += len(block)
    except OSError as error:
        raise CorruptError(f"{path.name} cannot be read: {error.strerror}") from None
    return {"bytes": size, "xxh3": digest.hexdigest()}


def read_small(path: Path) -> bytes:
    """The file's bytes, bounded. Raises `CorruptError`."""
    try:
        with path.open("rb") as stream:
            data = stream.read(_SMALL_BYTES_MAX + 1)
    except OSError as error:
        raise CorruptError(f"{path.name} cannot be read: {error.strerror}") from None
    if len(data) > _SMALL_BYTES_MAX:
        raise CorruptError(f"{path.name} is larger than {_SMALL_BYTES_MAX} bytes")
    return data


def _parse(data: bytes, path: Path) -> dict[str, Any]:
    try:
        parsed = json.loads(data)
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError):
        raise CorruptError(f"{path.name} is not JSON") from None
    if not isinstance(parsed, dict):
        raise CorruptError(f"{path.name} is not an object")
    return cast("dict[str, Any]", parsed)
