"""Manifests: the files of a checkpoint, their sizes and their hashes.

Every rank lists its files with xxh3. MANIFEST.json has the sha256 of every rank's list and of
itself. A file that no manifest names is never opened.
"""

import hashlib
import json
import os
from pathlib import Path
from typing import Any, cast

import xxhash

from gpujob_worker.checkpoint.errors import CorruptError
from gpujob_worker.checkpoint.reading import read_file, read_patiently

MANIFEST = "MANIFEST.json"
TENSORS_FILE = "state.safetensors"
STATE_FILE = "state.json"
FORMAT = 1
_BLOCK_BYTES = 1 << 20
_SMALL_BYTES_MAX = 16 << 20


def write_durably(path: Path, data: bytes) -> None:
    """Writes a file so that it is on the disk when this returns, and never in part."""
    temporary = _beside(path)
    with temporary.open("wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())
    temporary.replace(path)
    sync_directory(path.parent)


def write_at_once(path: Path, data: bytes) -> None:
    """Writes a file so that readers see the old or the new one. After a crash of the machine,
    neither may exist.
    """
    temporary = _beside(path)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, 0o666)
    try:
        os.write(descriptor, data)
    finally:
        os.close(descriptor)
    temporary.replace(path)


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.tmp-{os.getpid()}")


def sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def rank_name(rank: int) -> str:
    return f"rank-{rank}"


def write_rank_manifest(directory: Path, rank: int, known: dict[str, Any]) -> str:
    """Lists the files in `rank-<n>/`, and returns the hash of the list.

    Files are hashed unless their size and hash are `known` by name.
    """
    folder = directory / rank_name(rank)
    files = {
        path.name: known.get(path.name) or _describe(path) for path in sorted(folder.iterdir())
    }
    text = json.dumps({"files": files}, sort_keys=True)
    write_durably(directory / f"{rank_name(rank)}.manifest.json", text.encode())
    return hashlib.sha256(text.encode()).hexdigest()


def rank_manifest_hash(directory: Path, rank: int) -> str:
    """Returns the hash of a rank's list as it is read here. Raises `CorruptError` or
    `UnreadableError`.
    """
    data = read_small(directory / f"{rank_name(rank)}.manifest.json")
    return hashlib.sha256(data).hexdigest()


def write_manifest(directory: Path, ranks: int, about: dict[str, Any]) -> None:
    """Commits the checkpoint. Everything that the manifest names is already durable."""
    hashes = {rank_name(rank): rank_manifest_hash(directory, rank) for rank in range(ranks)}
    body = json.dumps({"format": FORMAT, "ranks": hashes, **about}, sort_keys=True)
    digest = hashlib.sha256(body.encode()).hexdigest()
    write_durably(directory / MANIFEST, f"{body}\n{digest}\n".encode())


def read_manifest(directory: Path) -> dict[str, Any]:
    """Returns the content of MANIFEST.json. Raises `CorruptError` or `UnreadableError`."""
    body, newline, digest = read_small(directory / MANIFEST).partition(b"\n")
    if not newline or hashlib.sha256(body).hexdigest().encode() + b"\n" != digest:
        raise CorruptError(f"{directory.name}: {MANIFEST} does not match its own hash")
    about = _parse(body, directory / MANIFEST)
    if about.get("format") != FORMAT or not isinstance(about.get("ranks"), dict):
        raise CorruptError(f"{directory.name}: format {about.get('format')!r} is not {FORMAT}")
    return about


def verify_rank(directory: Path, about: dict[str, Any], rank: int) -> Path:
    """Checks one rank's files by size and hash, and returns their folder.

    Raises `CorruptError` or `UnreadableError`.
    """
    path = directory / f"{rank_name(rank)}.manifest.json"
    data = read_small(path)
    if hashlib.sha256(data).hexdigest() != about["ranks"].get(rank_name(rank)):
        raise CorruptError(f"{directory.name}: {path.name} does not match {MANIFEST}")
    folder = directory / rank_name(rank)
    if read_patiently(folder, folder.is_symlink):
        raise CorruptError(f"{directory.name}: {folder.name} is a link")
    files = _parse(data, path).get("files")
    if not isinstance(files, dict):
        raise CorruptError(f"{directory.name}: {path.name} lists no files")
    for name, expected in cast("dict[str, Any]", files).items():
        if "/" in name:
            raise CorruptError(f"{directory.name}: {name} is outside of {folder.name}")
        if read_file(folder / name, _describe) != expected:
            raise CorruptError(f"{directory.name}: {name} does not match its size or hash")
    missing = {TENSORS_FILE, STATE_FILE} - set(cast("dict[str, Any]", files))
    if missing:
        raise CorruptError(f"{directory.name}: {path.name} lists no {' and '.join(missing)}")
    return folder


def verify(directory: Path) -> dict[str, Any]:
    """Checks a whole checkpoint by size and hash, and returns the content of MANIFEST.json.

    Raises `CorruptError` or `UnreadableError`.
    """
    about = read_manifest(directory)
    for rank in range(len(about["ranks"])):
        verify_rank(directory, about, rank)
    return about


def _describe(path: Path) -> dict[str, Any]:
    digest = xxhash.xxh3_128()
    size = 0
    with path.open("rb") as stream:
        while block := stream.read(_BLOCK_BYTES):
            digest.update(block)
            size += len(block)
    return {"bytes": size, "xxh3": digest.hexdigest()}


def read_small(path: Path) -> bytes:
    """Returns the file's bytes, up to a limit. Raises `CorruptError` or `UnreadableError`."""

    def read(path: Path) -> bytes:
        with path.open("rb") as stream:
            return stream.read(_SMALL_BYTES_MAX + 1)

    data = read_file(path, read)
    if len(data) > _SMALL_BYTES_MAX:
        raise CorruptError(f"{path.name} is larger than {_SMALL_BYTES_MAX} bytes")
    return data


def _parse(data: bytes, path: Path) -> dict[str, Any]:
    try:
        parsed = json.loads(data)
    except (ValueError, RecursionError):
        raise CorruptError(f"{path.name} is not JSON") from None
    if not isinstance(parsed, dict):
        raise CorruptError(f"{path.name} is not an object")
    return cast("dict[str, Any]", parsed)
