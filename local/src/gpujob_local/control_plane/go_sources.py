"""Finds the sources of a Go module that a go.mod in `tools/` pins, so that none of its manifests is
copied.
"""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

from gpujob_local.control_plane.go_toolchain import ToolError, find_go, go_settings
from gpujob_local.control_plane.tools import TOOLS_FOLDER, Pins


def source_folder(set_name: str, module: str, say: Callable[[str], None]) -> Path:
    """Returns the folder with the pinned version's sources in the tools' cache, downloaded the
    first time.

    Raises `ToolError` if that fails.
    """
    pins = Pins.read(set_name)
    go = find_go(pins.go_version, TOOLS_FOLDER / "go" / "requirements.txt", say)
    done = subprocess.run(
        [str(go), "mod", "download", "-json", module],
        cwd=pins.folder,
        env=go_settings(pins.cache / "sources"),
        capture_output=True,
        check=False,
    )
    if done.returncode != 0:
        # With -json the reason is in the answer.
        said = (done.stdout + done.stderr).decode(errors="replace")
        raise ToolError(f"the sources of {module} are missing:\n{said[-2000:]}")
    return Path(json.loads(done.stdout)["Dir"])
