"""Opens that fail as a volume in trouble makes them fail, a number of times or always."""

import io
import os
from pathlib import Path
from typing import Any

import pytest

ALWAYS = 1 << 30


class FailingReads:
    """Opening a file whose path ends with `ending` to read it fails with `number`."""

    def __init__(self, patch: pytest.MonkeyPatch, ending: str, number: int, times: int) -> None:
        self.failed = 0
        plain = io.open

        def opened(file: Any, mode: str = "r", *arguments: Any, **keywords: Any) -> Any:
            text = os.fspath(file) if isinstance(file, (str, Path)) else ""
            if mode[0] == "r" and text.endswith(ending) and self.failed < times:
                self.failed += 1
                raise OSError(number, os.strerror(number), text)
            return plain(file, mode, *arguments, **keywords)

        patch.setattr(io, "open", opened)
