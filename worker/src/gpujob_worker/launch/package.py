"""`python -m gpujob_worker.launch.package FOLDER`: copies the worker's packages into a folder.

It runs in an init container, so that pods of any image have the packages. They are pure Python, and
work with the image's own Python from 3.9 on. `FOLDER/hook` is the first folder on PYTHONPATH there.
"""

import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

PACKAGES = ("gpujob_api", "gpujob_worker")
HOOK = "hook"
EXIT_USAGE = 2


def copy_packages(target: Path) -> None:
    """Copies the packages, even over an earlier copy, because an init container may run again."""
    for name in PACKAGES:
        found = find_spec(name)
        assert found is not None
        assert found.origin is not None, f"{name} is no plain package"
        source, copy = Path(found.origin).parent, target / name
        shutil.copytree(
            source, copy, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True
        )
        for folder in (copy, *(path for path in copy.rglob("*") if path.is_dir())):
            # The image's user stores the bytecode of its Python there.
            folder.chmod(0o777)
    hook = target / HOOK
    if not hook.is_symlink():
        hook.symlink_to("gpujob_worker/python_path")


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m gpujob_worker.launch.package FOLDER\n")
        return EXIT_USAGE
    copy_packages(Path(arguments[0]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
