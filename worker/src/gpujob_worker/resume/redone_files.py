"""What a resumed script finds of its own future: files that it wrote, moved or removed after the
save.

It does all of that once more. What is gone needs no second removal, and a folder that is there is
made. A small file is put back; a larger one that is not as it was at the save must not be read
before it is written again.
"""

import os
from collections.abc import Callable, Iterable
from typing import Any

from gpujob_worker.resume.written_files import WRITE, mark_of, put_content


class RedoneFiles:
    """`saved` has the files of the save by their paths. `leaves` is called with why the script
    cannot go on, and does not return.
    """

    def __init__(
        self, saved: dict[str, Any], folders: Iterable[str], leaves: Callable[[str], Any]
    ) -> None:
        self._folders, self._leaves = set(folders), leaves
        written = {path: entry for path, entry in saved.items() if entry["mode"] == WRITE}
        self._gone = {path for path in written if not os.path.lexists(path)}
        self._other = {
            path
            for path, entry in written.items()
            if entry.get("mark") is not None
            and path not in self._gone
            and mark_of(path) != entry["mark"]
        }
        for path in self._gone | self._other:
            content = written[path].get("content")
            if content is not None and put_content(path, content):
                self.writes(path)

    def is_removed(self, path: str) -> bool:
        """Whether a removal of the file or folder was made already."""
        found = {each for each in self._gone if each == path or each.startswith(path + os.sep)}
        if not found or os.path.lexists(path):
            return False
        self._gone -= found
        return True

    def is_made(self, folder: str) -> bool:
        """Whether the folder was made after the save; asked once, when it is made."""
        if folder in self._folders:
            return False
        self._folders.add(folder)
        return os.path.isdir(folder)

    def reads(self, path: str) -> None:
        if path in self._gone or path in self._other:
            self._leaves(f"{path} was changed after the run was saved, and is read again")

    def writes(self, path: str) -> None:
        self._gone.discard(path)
        self._other.discard(path)
