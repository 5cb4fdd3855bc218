"""The environment that the worker's image gives every process, for process nodes.

Each folder there stands for an image that was made from the worker's.
"""

from functools import cache
from importlib.util import find_spec
from pathlib import Path

from gpujob_api.settings import HOOK_FOLDER, PYTHON_PATH_VARIABLE
from gpujob_local.processes.launch import FIRST_PROCESS


@cache
def local_paths() -> dict[str, str]:
    """Returns paths of the image with the local folders that stand for them."""
    found = find_spec("gpujob_worker")
    assert found is not None, "it comes with this package"
    assert found.origin is not None
    return {HOOK_FOLDER: str(Path(found.origin).parent / "python_path")}


def image_environment() -> dict[str, str]:
    """Returns variables with which every process that trains is hooked, whatever a container's
    command is, and with which the container's own process is known as its first one.
    """
    return {
        PYTHON_PATH_VARIABLE: local_paths()[HOOK_FOLDER],
        "PYTHONUNBUFFERED": "1",
        FIRST_PROCESS: "",  # its number is known once it is started
    }
