"""Records what a cluster of kubelets is about to change on the machine.

After a crash, the record is enough to remove everything (`cleaning.py`).
"""

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

RECORD_NAME = "kubelets.json"
# A kubelet sets these for the whole machine.
KERNEL_SETTINGS = (
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)


@dataclass(frozen=True, slots=True)
class Record:
    """A cluster's record. `owner` is the id of its process and that process's start in clock ticks.

    `cgroups` are below each controller's root. `settings` are earlier values by path.
    """

    directory: str
    owner: tuple[int, int]
    marker: str
    cgroups: tuple[str, ...]
    settings: Mapping[str, str]

    def write(self) -> None:
        path = Path(self.directory) / RECORD_NAME
        temporary = path.with_suffix(".new")
        temporary.write_text(json.dumps(asdict(self), indent=1))
        os.replace(temporary, path)

    @classmethod
    def read(cls, directory: Path) -> "Record | None":
        """Reads the record. None if no cluster of kubelets was begun. Raises `ValueError` for other
        content.
        """
        path = directory / RECORD_NAME
        try:
            data = json.loads(path.read_text())
            return cls(
                directory=str(directory),
                owner=(int(data["owner"][0]), int(data["owner"][1])),
                marker=data["marker"],
                cgroups=tuple(data["cgroups"]),
                settings=dict(data["settings"]),
            )
        except FileNotFoundError:
            return None
        except (IndexError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path} is not a record of kubelets: {error!r}") from None

    def owned(self) -> bool:
        """Returns whether the very process that made the cluster is running."""
        return process_identity(self.owner[0]) == self.owner


def process_identity(process: int) -> tuple[int, int]:
    """Returns a process id and its start; 0 for a process that does not exist or has ended."""
    try:
        text = Path(f"/proc/{process}/stat").read_text(errors="replace")
    except OSError:
        return process, 0
    fields = text.rpartition(")")[2].split()
    return process, 0 if fields[0] == "Z" else int(fields[19])


def others(directory: Path) -> list[Record]:
    """Returns records of the other clusters next to this one."""
    found = [Record.read(path.parent) for path in directory.parent.glob(f"*/{RECORD_NAME}")]
    return [one for one in found if one is not None and one.directory != str(directory)]


def settings_before(directory: Path, root: Path = Path("/proc/sys")) -> dict[str, str]:
    """Returns the machine's own values: those from before any existing cluster."""
    return next((dict(one.settings) for one in others(directory)), kernel_settings(root))


def kernel_settings(root: Path = Path("/proc/sys")) -> dict[str, str]:
    """Returns the present values of a kubelet's settings. Missing settings are left out."""
    return {name: (root / name).read_text().strip() for name in _present(root, KERNEL_SETTINGS)}


def restore_settings(settings: Mapping[str, str], root: Path = Path("/proc/sys")) -> None:
    for name in _present(root, settings):
        if (root / name).read_text().strip() != settings[name]:
            (root / name).write_text(settings[name])


def _present(root: Path, names: Iterable[str]) -> list[str]:
    return [name for name in names if (root / name).is_file()]
