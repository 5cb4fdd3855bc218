"""Distinguishes the user's files from those of Python and of installed packages."""

import functools
import sys
import sysconfig
from pathlib import Path

import gpujob_api

_LIBRARIES = ("site-packages", "dist-packages")
# The most folders of metadata that are read in one folder of packages.
_DISTRIBUTIONS_MAX = 4096


def _library_folders() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    folders = {paths[name] for name in names if name in paths}
    worker = Path(__file__).resolve().parents[1]
    own = [str(folder) for folder in (Path(gpujob_api.__file__).resolve().parent, worker)]
    return (*(folder + "/" for folder in (*folders, *own)), "<frozen")


_FOLDERS = _library_folders()


@functools.lru_cache(maxsize=8192)
def is_script_file(filename: str) -> bool:
    """Returns whether the file is the user's, and belongs neither to an installed package nor to
    Python.
    """
    if filename.startswith((*_FOLDERS, "<")):
        return False
    if any(name in filename for name in _LIBRARIES):
        return False
    return not any(_is_installed_in(folder, filename) for folder in sys.path)


def _is_installed_in(folder: str, filename: str) -> bool:
    """Returns whether an installer put the file there, as `pip install --target FOLDER` does."""
    folder = folder.rstrip("/") + "/"
    if folder == "/" or not filename.startswith(folder):
        return False
    return filename[len(folder) :] in _recorded_files(folder)


@functools.lru_cache(maxsize=256)
def _recorded_files(folder: str) -> frozenset[str]:
    """Returns the files below the folder that installers recorded there, relative to it.

    The source of a project that is installed in place has no such record.
    """
    found: set[str] = set()
    for record in sorted(Path(folder).glob("*.dist-info/RECORD"))[:_DISTRIBUTIONS_MAX]:
        try:
            lines = record.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            continue
        found.update(line.split(",", 1)[0] for line in lines)
    return frozenset(found)
