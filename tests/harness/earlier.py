"""What people upgrade from: an earlier state of the repository, its chart and its image."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

from gpujob_local.images.archive import Image
from gpujob_local.images.recipes import DEFAULT_REGISTRY, operator_image
from tests.harness.repository import ROOT

GIT_LIMIT_SECONDS = 60
TAG = "earlier"


@dataclass(frozen=True, slots=True)
class Earlier:
    """`words` say which state it is."""

    words: str
    folder: Path

    @property
    def chart(self) -> Path:
        return self.folder / "charts" / "gpujob"

    def image(self) -> Image:
        """Of the operator and the agent, with a tag of its own; made the first time."""
        return operator_image(self.folder, f"{DEFAULT_REGISTRY}/gpujob-operator:{TAG}")


def check_out_earlier(folder: Path) -> Earlier:
    """The newest release; where there is none, the commit before the newest change of the chart.

    Without the repository's history (an archive, a shallow clone) it is this checkout itself.
    """
    newest = _git("describe", "--tags", "--abbrev=0", "--match=v[0-9]*", "HEAD^")
    before = _git("log", "--max-count=1", "--skip=1", "--format=%H", "HEAD", "--", "charts/gpujob")
    commit = newest or before
    if not commit:
        return Earlier("this checkout under another tag: there is no history", ROOT)
    folder.mkdir(parents=True)
    archive = folder / "archive.tar"
    if _git("archive", f"--output={archive}", commit) is None:
        raise AssertionError(f"git archive {commit} failed")
    subprocess.run(["tar", "--extract", f"--file={archive}", f"--directory={folder}"], check=True)
    archive.unlink()
    return Earlier(f"{'release' if newest else 'commit'} {commit}", folder)


def _git(*arguments: str) -> str | None:
    """What git printed; None where it failed, or there is none."""
    try:
        done = subprocess.run(
            ["git", "-C", str(ROOT), *arguments],
            capture_output=True,
            text=True,
            timeout=GIT_LIMIT_SECONDS,
            check=False,
        )
    except FileNotFoundError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
