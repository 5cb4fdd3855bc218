"""A folder of scripts as a ConfigMap, so that a job can run files that no image has.

The ConfigMap has a numbered key for each file and the job's volume maps keys to paths. An init
container copies the files into an empty folder, because ConfigMaps are read-only and scripts write
beside themselves.
"""

import base64
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kubectl_gpujob.errors import UserError

# The API server takes ConfigMaps of at most 1 MiB.
BYTES_MAX = 900 * 1024
FILES_MAX = 500
WORKSPACE = "/workspace"
_SOURCE, _MOUNT = "gpujob-source", "/gpujob-source"
_WORKSPACE_VOLUME = "gpujob-workspace"
# Names that begin with a dot are the kubelet's own in a ConfigMap's volume.
_COPY = f"cp -RL {_MOUNT}/* {WORKSPACE}/"
_EXECUTABLE = 0o755
_SKIPPED = ("__pycache__", "node_modules", "venv")


@dataclass(frozen=True, slots=True)
class Source:
    """The files of a folder, by their paths in it."""

    files: Mapping[str, bytes]
    hidden: int = 0
    executables: frozenset[str] = frozenset()
    # Links to folders, to nothing, and out of the folder. They are left out.
    links: tuple[str, ...] = ()

    @property
    def size_bytes(self) -> int:
        return sum(map(len, self.files.values()))


def read_folder(folder: Path) -> Source:
    """Reads the files that Git does not ignore, or all but caches outside a repository.

    Hidden files are left out. Raises `UserError` if the folder is too large, with the numbers.
    """
    if not folder.is_dir():
        raise UserError(f"--dir {folder}: is not a folder")
    found = _known_to_git(folder)
    if found is None:
        found = [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*"))]
    paths = [path for path in found if (folder / path).is_file()]
    within = [path for path in paths if _is_inside(folder, path)]
    chosen = [path for path in within if not _is_left_out(path)]
    others = [path for path in found if (folder / path).is_symlink() and not _is_left_out(path)]
    links = tuple(sorted(set(others).difference(chosen)))
    if len(chosen) > FILES_MAX:
        raise _too_large(folder, f"has {len(chosen)} files, more than {FILES_MAX}")
    size_bytes = sum((folder / path).stat().st_size for path in chosen)
    if size_bytes > BYTES_MAX:
        largest = max(chosen, key=lambda path: (folder / path).stat().st_size)
        of_largest = (folder / largest).stat().st_size
        text = f"has {size_bytes // 1024} KiB, more than {BYTES_MAX // 1024}"
        raise _too_large(folder, f"{text}; the largest file is {largest}, {of_largest // 1024} KiB")
    if not chosen:
        raise UserError(f"--dir {folder}: has no files")
    try:
        files = {path: (folder / path).read_bytes() for path in chosen}
    except OSError as error:
        raise UserError(f"--dir {folder}: cannot be read: {error}") from None
    executables = frozenset(path for path in chosen if os.access(folder / path, os.X_OK))
    return Source(files, len(within) - len(chosen), executables, links)


def _is_inside(folder: Path, path: str) -> bool:
    """Returns whether the file is in the folder, also if its path has links."""
    return (folder / path).resolve().is_relative_to(folder.resolve())


def config_map_of(spec: Mapping[str, Any]) -> str:
    """Returns the name of the ConfigMap that holds the folder of a GPUJob, or ""."""
    template = spec.get("template") or {}
    volumes = (template.get("spec") or {}).get("volumes") or ()
    named = [one for one in volumes if one.get("name") == _SOURCE]
    return str((named[0].get("configMap") or {}).get("name", "")) if named else ""


def config_map(name: str, namespace: str, source: Source) -> dict[str, Any]:
    """Returns the ConfigMap that holds the files."""
    data = {
        _key(number): base64.b64encode(content).decode()
        for number, content in enumerate(source.files.values())
    }
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": namespace},
        "binaryData": data,
    }


def mount(pod: dict[str, Any], name: str, source: Source) -> None:
    """Adds the folder to a pod's spec and makes it the working directory of its container."""
    [container] = pod["containers"]
    items: list[dict[str, Any]] = []
    for number, path in enumerate(source.files):
        mode = {"mode": _EXECUTABLE} if path in source.executables else {}
        items.append({"key": _key(number), "path": path, **mode})
    workspace = {"name": _WORKSPACE_VOLUME, "mountPath": WORKSPACE}
    pod["initContainers"] = [
        {
            "name": _SOURCE,
            "image": container["image"],
            "command": ["sh", "-c", _COPY],
            "volumeMounts": [{"name": _SOURCE, "mountPath": _MOUNT, "readOnly": True}, workspace],
        }
    ]
    pod["volumes"] = [
        *pod.get("volumes", ()),
        {"name": _SOURCE, "configMap": {"name": name, "items": items}},
        {"name": _WORKSPACE_VOLUME, "emptyDir": {}},
    ]
    container["volumeMounts"] = [*container.get("volumeMounts", ()), workspace]
    container["workingDir"] = WORKSPACE


def _known_to_git(folder: Path) -> list[str] | None:
    """Returns the files that Git has or would add, or None outside a repository."""
    command = ["git", "ls-files", "-co", "--exclude-standard", "-z", "--deduplicate"]
    try:
        found = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    except OSError:
        return None
    if found.returncode:
        return None
    return sorted(path for path in found.stdout.split("\0") if path)


def _is_left_out(path: str) -> bool:
    return any(map(_is_skipped, path.split("/")))


def _is_skipped(part: str) -> bool:
    return part.startswith(".") or part in _SKIPPED or part.endswith(".pyc")


def _key(number: int) -> str:
    return f"file-{number}"


def _too_large(folder: Path, text: str) -> UserError:
    remedy = "put the files into the image, or on a claim (--data CLAIM:/path)"
    return UserError(f"--dir {folder}: {text}: {remedy}")
