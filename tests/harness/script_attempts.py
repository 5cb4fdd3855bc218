"""Processes of a script that writes files, one after another in the process of the test."""

import bz2
import io
import json
import os
import shutil
import tarfile
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from gpujob_worker.checkpoint.tree import decode_tree, encode_tree
from gpujob_worker.resume.script_files import ScriptFiles

PATCHED = (
    *((__import__("builtins"), "open"), (io, "open"), (bz2, "_builtin_open")),
    *((tarfile, "bltn_open"), (torch, "save"), (safetensors.torch, "save_file")),
    *((os, name) for name in ("link", "mkdir", "open", "remove", "rename", "replace")),
    *((os, name) for name in ("rmdir", "symlink", "truncate", "unlink")),
    (shutil, "rmtree"),
    *((tempfile, name) for name in ("mkdtemp", "mkstemp", "NamedTemporaryFile")),
)


@contextmanager
def attempt(journal: Path | None = None, *, resumes: bool = False) -> Generator[ScriptFiles]:
    """One process of a script."""
    plain = [(module, name, getattr(module, name)) for module, name in PATCHED]
    files = ScriptFiles()
    files.install()
    if journal is not None:
        files.journal.keep(journal)
    if resumes:
        files.hold()
    try:
        yield files
    finally:
        for module, name, value in plain:
            setattr(module, name, value)


def saved(files: ScriptFiles) -> dict[str, Any]:
    """A snapshot as it comes back from a checkpoint."""
    text, tensors = encode_tree(files.snapshot())
    return decode_tree(text, tensors)


def append(log: Path, line: object) -> None:
    with open(log, "a") as stream:
        stream.write(f"{json.dumps(line)}\n")
