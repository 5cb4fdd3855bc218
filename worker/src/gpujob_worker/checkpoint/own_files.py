"""The checkpoints that a script keeps itself (`spec.checkpoint.path`), and the newest of them."""

import glob
import itertools
import os
import zipfile
from pathlib import Path

# Maximum number of files that are checked among those that match the pattern.
FILES_MAX = 10_000


def absolute(pattern: str, directory: Path | None) -> str:
    expanded = os.path.expandvars(pattern)
    return expanded if directory is None else str(directory / expanded)


def newest_checkpoint(pattern: str) -> Path | None:
    """Returns the newest file or folder that matches and appears complete, or None."""
    found = itertools.islice(glob.iglob(pattern, recursive=True), FILES_MAX)
    dated = [(_changed(Path(path)), Path(path)) for path in found]
    for _, path in sorted(dated, reverse=True):
        if _is_whole(path):
            return path
    return None


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _is_whole(path: Path) -> bool:
    """Returns whether the file or folder appears complete.

    `torch.save` writes a zip file, whose directory comes last, so a partial file has none. A folder
    may be made long before anything is saved in it.
    """
    try:
        if path.is_dir():
            with os.scandir(path) as entries:
                return any(entries)
        if path.suffix not in (".pt", ".pth", ".ckpt", ".tar"):
            return path.exists()
        with path.open("rb") as stream:
            begins_as_zip = stream.read(2) == b"PK"
    except OSError:
        return False
    return not begins_as_zip or zipfile.is_zipfile(path)
