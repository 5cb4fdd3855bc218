"""Imports every module of the nouns and the worker, with something of any shape for torch.

Run by an interpreter of any version, with the hook's folder as its argument. Prints how many it
imported, and a line for each that it could not.
"""

import importlib
import pkgutil
import sys
from importlib.machinery import ModuleSpec
from typing import Any

ABSENT = ("aiohttp", "numpy", "safetensors", "torch", "xxhash")


class Anything(type):
    """A class that is called, subscripted, subclassed and asked for attributes."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return made(name)

    def __or__(cls, other: Any) -> Any:
        return cls

    __ror__ = __or__

    def __getitem__(cls, key: Any) -> Any:
        return cls

    def __iter__(cls) -> Any:
        return iter(())


def made(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return Anything(name, (), {"__init__": ignores, "__call__": decorates})


def ignores(*values: Any, **named: Any) -> None: ...


def decorates(_: Any, decorated: Any = None, *values: Any, **named: Any) -> Any:
    """As what a call of a decorator with arguments returns."""
    return decorated


class Absent:
    """Finds what is not installed here."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        absent = name.partition(".")[0] in ABSENT
        return ModuleSpec(name, self, is_package=True) if absent else None  # type: ignore

    def create_module(self, spec: Any) -> Any:
        return None

    def exec_module(self, module: Any) -> None:
        module.__getattr__ = made


def import_all() -> int:
    imported = 0
    for package in ("gpujob_api", "gpujob_worker"):
        folder = importlib.import_module(package).__path__
        for found in pkgutil.walk_packages(folder, package + "."):
            if found.name.endswith("__main__"):
                continue
            try:
                importlib.import_module(found.name)
                imported += 1
            except Exception as error:
                print(found.name, type(error).__name__, error)
    return imported


if __name__ == "__main__":
    sys.path.insert(0, sys.argv[1])
    startup: Any = importlib.import_module("gpujob_startup")
    translation: Any = importlib.import_module("gpujob_translation")
    old = sys.version_info < (3, 10)
    sys.meta_path.append(Absent())  # type: ignore
    sys.meta_path.insert(0, startup.Packages(translation.TranslatingLoader if old else None))
    print(import_all())
