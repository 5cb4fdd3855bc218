"""Compiled models in a cache folder, each with its hash.

A file is copied while it is hashed, and only the copy is loaded. A flipped bit or a half written
file costs a new build, and never a wrong answer. Nothing here is read with pickle.
"""

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

_MANIFEST = "artifact.json"
_BLOCK_BYTES = 1024**2
# Folders of other models, versions and GPUs that stay. The oldest ones go first.
KEPT_MAX = 16


@dataclass(frozen=True, slots=True)
class Artifacts:
    """A folder with one folder a key."""

    folder: Path

    def put(self, key: str, file: Path) -> None:
        """Stores the file. It appears whole or not at all."""
        self.folder.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=".new-", dir=self.folder))
        try:
            digest = _copy(file, fresh / file.name)
            manifest = {"key": key, "file": file.name, "sha256": digest}
            (fresh / _MANIFEST).write_text(json.dumps(manifest))
            target = self.folder / key
            if target.exists():
                shutil.rmtree(target)
            os.replace(fresh, target)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
        self._forget()

    def take(self, key: str, name: str, into: Path) -> tuple[Path | None, str]:
        """Copies the file of this key and name to a private folder.

        Returns the copy and an empty text, or None and the reason.
        """
        folder = self.folder / key
        if not folder.is_dir():
            return None, "none is stored for this model, torch, device and sizes"
        try:
            manifest = json.loads((folder / _MANIFEST).read_text())
            digest = _copy(folder / name, into / name)
        except (OSError, ValueError) as error:
            return None, f"the stored one cannot be read: {error}"
        wanted = manifest.get("sha256") if isinstance(manifest, dict) else None
        if digest != wanted:
            return None, f"the stored one has the hash {digest[:12]} instead of {str(wanted)[:12]}"
        return into / name, ""

    def _forget(self) -> None:
        """Removes the oldest folders beyond the limit."""
        with contextlib.suppress(OSError):
            kept = [path for path in self.folder.iterdir() if not path.name.startswith(".")]
            kept.sort(key=lambda path: path.stat().st_mtime, reverse=True)
            for path in kept[KEPT_MAX:]:
                shutil.rmtree(path, ignore_errors=True)


def _copy(source: Path, target: Path) -> str:
    """Returns the SHA-256 of what was copied."""
    found = hashlib.sha256()
    with source.open("rb") as reading, target.open("wb") as writing:
        while block := reading.read(_BLOCK_BYTES):
            found.update(block)
            writing.write(block)
    return found.hexdigest()
