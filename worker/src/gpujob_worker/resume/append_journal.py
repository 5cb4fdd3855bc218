"""Records files to which a script began to append, at once and with their sizes before.

A process that is killed leaves lines that it appended after its last checkpoint. The journal names
files that the checkpoint does not have yet.
"""

import json
import os
from pathlib import Path
from typing import Any

LINES_MAX = 10_000


class AppendJournal:
    """Entries may be made before `keep` names the file. They are written then."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._lines: list[bytes] = []
        self.full = False

    def keep(self, path: Path) -> None:
        self._path = path
        lines, self._lines = self._lines, []
        for line in lines:
            self._write(line)

    def note(self, path: str, size: int | None, saves: int) -> None:
        """Records that the script appends to `path`, of `size` bytes (None if it does not exist),
        after `saves` saves.
        """
        entry = {"path": path, "size": size, "saves": saves}
        line = json.dumps(entry).encode() + b"\n"
        if self._path is not None:
            self._write(line)
        elif len(self._lines) < LINES_MAX:
            self._lines.append(line)
        else:
            self.full = True

    def _write(self, line: bytes) -> None:
        assert self._path is not None
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        try:
            descriptor = os.open(self._path, flags, 0o600)
            try:
                self.full = self.full or os.fstat(descriptor).st_size > LINES_MAX * 1000
                if not self.full:
                    os.write(descriptor, line)
            finally:
                os.close(descriptor)
        except OSError:
            self.full = True

    def sizes_since(self, saves: int) -> dict[str, int | None]:
        """Returns, by path, the size before the first entry that followed that save."""
        if self._path is None or not self._path.exists():
            return {}
        found: dict[str, int | None] = {}
        for line in self._path.read_bytes().splitlines():
            try:
                entry: dict[str, Any] = json.loads(line)
            except ValueError:
                continue  # the process was killed while it wrote the line
            if entry["saves"] >= saves:
                found.setdefault(entry["path"], entry["size"])
        return found
