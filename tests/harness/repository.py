"""The repository as data: its files and what is in them, for tests that guard the house rules."""

import subprocess
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_GENERATED = {".venv", ".git", "__pycache__", ".pytest_cache", ".ruff_cache", "build", "dist"}


@cache
def tracked_files() -> tuple[Path, ...]:
    """Files under version control; in an unpacked archive every file that is not generated."""
    if (ROOT / ".git").exists():
        listing = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
        ).stdout
        found = [ROOT / name for name in listing.split("\0") if name]
    else:
        found = [
            path for path in ROOT.rglob("*") if not _GENERATED & set(path.relative_to(ROOT).parts)
        ]
    return tuple(sorted(path for path in found if path.is_file()))


def tracked(*patterns: str) -> list[Path]:
    """Tracked files whose path from the root fits one of the patterns; `*` crosses folders."""
    return [
        path
        for path in tracked_files()
        if any(fnmatchcase(relative(path), pattern) for pattern in patterns)
    ]


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def text_of(path: Path) -> str | None:
    """The file's text, or None for a binary file."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return None
