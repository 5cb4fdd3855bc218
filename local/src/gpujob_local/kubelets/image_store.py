"""The images in the form of a node's containerd: unpacked once, then linked into every node.

Unpacking half a gigabyte takes a node half a minute, and linking the files takes a second. Nothing
writes to the linked files: content never changes, and containers write to their own layer above
them. Only containerd's databases change, so every node has copies of those.
"""

import json
import os
import platform
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from gpujob_local.control_plane.control_plane import ClusterError
from gpujob_local.control_plane.go_toolchain import ToolError
from gpujob_local.images.archive import Image, configuration, write_archive
from gpujob_local.images.layers import Say, images_cache, key_of, newest_first, only_one, remove_old
from gpujob_local.kubelets.configuration import to_toml
from gpujob_local.processes.processes import Child, start_child, stop_child

NAME = "node-images"
KEPT = 2
IN_USE_SECONDS = 600.0
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
START_LIMIT_SECONDS = 30.0
STOP_LIMIT_SECONDS = 20.0
IMPORT_LIMIT_SECONDS = 300.0
POLL_SECONDS = 0.05


def image_store(
    images: Sequence[Image],
    binaries: Mapping[str, Path],
    environment: Mapping[str, str],
    say: Say,
) -> Path:
    """Returns the root of a containerd that has these images, from the cache or made now.

    Raises `ToolError` or `ClusterError` with containerd's error output.
    """
    parts = [json.dumps([configuration(image, architecture()), image.names]) for image in images]
    target = images_cache() / f"{NAME}-{key_of(str(binaries['containerd']), *parts)}"
    with only_one(NAME):
        if not target.is_dir():
            _make(target, images, binaries, environment, say)
        # The folder has the date of the one from which it was linked, and the oldest ones are
        # removed.
        os.utime(target)
        # Folders whose files may just be linked are not removed.
        remove_old(_stores(), KEPT, IN_USE_SECONDS)
    return target


def _make(
    target: Path,
    images: Sequence[Image],
    binaries: Mapping[str, Path],
    environment: Mapping[str, str],
    say: Say,
) -> None:
    began = time.monotonic()
    with tempfile.TemporaryDirectory(dir=images_cache(), prefix=f".{NAME}-") as temporary:
        folder = Path(temporary)
        # Images that an earlier store has unpacked are not unpacked again.
        if earlier := newest_first(_stores()):
            link_store(earlier[0], folder / "root")
        archive = write_archive(images, architecture(), folder / "images.tar")
        _import(archive, folder, binaries, environment)
        (folder / "root").rename(target)
    say(f"images: {len(images)} unpacked after {time.monotonic() - began:.0f} s")


def architecture() -> str:
    """Returns this machine's architecture as images name it."""
    return ARCHITECTURES[platform.machine()]


def link_store(source: Path, target: Path) -> None:
    """Makes a separate containerd root with the source's files; copies across file systems."""
    link = ["--link"] if source.stat().st_dev == target.parent.stat().st_dev else []
    done = subprocess.run(
        ["cp", "--archive", *link, str(source), str(target)], capture_output=True, check=False
    )
    if done.returncode != 0:
        raise ToolError(f"cannot link {source} to {target}: {done.stderr.decode()[-500:]}")
    for database in target.rglob("*.db"):
        copy = database.with_suffix(".copy")
        shutil.copy2(database, copy)
        os.replace(copy, database)


def _stores() -> Iterator[Path]:
    return images_cache().glob(f"{NAME}-*")


def import_archive(archive: Path, socket: Path, ctr: Path) -> None:
    """Imports into a running containerd, for its kubelet. Raises `ClusterError` with its error
    output.
    """
    done = subprocess.run(
        [
            str(ctr),
            "--address",
            str(socket),
            "--namespace",
            "k8s.io",
            "images",
            "import",
            str(archive),
        ],
        capture_output=True,
        text=True,
        timeout=IMPORT_LIMIT_SECONDS,
        check=False,
    )
    if done.returncode != 0:
        raise ClusterError(f"images were not imported: {done.stderr[-2000:]}")


def _import(
    archive: Path, folder: Path, binaries: Mapping[str, Path], environment: Mapping[str, str]
) -> None:
    socket = folder / "containerd.sock"
    settings = {
        "version": 3,
        "root": str(folder / "root"),
        "state": str(folder / "state"),
        "grpc": {"address": str(socket)},
        "ttrpc": {"address": f"{socket}.ttrpc"},
        "disabled_plugins": ["io.containerd.grpc.v1.cri"],
    }
    (folder / "containerd.toml").write_text(to_toml(settings))
    command = ["unshare", "--mount", "--", str(binaries["containerd"])]
    child = start_child(
        "containerd",
        [*command, "--config", str(folder / "containerd.toml")],
        environment,
        folder / "containerd.log",
    )
    try:
        _wait_for(socket, child)
        import_archive(archive, socket, binaries["ctr"])
    finally:
        stop_child(child, STOP_LIMIT_SECONDS)


def _wait_for(socket: Path, child: Child) -> None:
    deadline = time.monotonic() + START_LIMIT_SECONDS
    while not socket.exists():
        if not child.alive() or time.monotonic() > deadline:
            raise ClusterError(f"containerd did not start:\n{child.log_tail()}")
        time.sleep(POLL_SECONDS)
