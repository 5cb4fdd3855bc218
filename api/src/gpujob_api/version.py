"""The version of the installed package, for `--version`."""

import argparse
import sys
from collections.abc import Sequence
from typing import Any, NoReturn


def installed_version() -> str:
    """Returns the version, or `unknown` if the package was put into an image without its
    metadata.
    """
    # Imported here, because it takes as long as a program's whole start and is rarely needed.
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("gpujob")
    except PackageNotFoundError:
        return "unknown"


class ShowVersion(argparse.Action):
    """An option that prints the version, and ends."""

    def __init__(self, option_strings: Sequence[str], dest: str) -> None:
        super().__init__(option_strings, dest, nargs=0, help="print the version")

    def __call__(self, parser: argparse.ArgumentParser, *values: Any) -> NoReturn:
        del values
        sys.stdout.write(f"{parser.prog} {installed_version()}\n")
        parser.exit()
