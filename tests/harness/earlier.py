"""What people upgrade from: an earlier state of the repository, its chart and its image."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

from gpujob_local.images.archive import Image
from gpujob_local.images.recipes import DEFAULT_REGISTRY, operator_image
from tests.harness.repository import ROOT

GIT_LIMIT_SECONDS = 60
TAG = "earlier"
# Until there is a release: a commit whose chart and operator work on real kubelets. Any other one,
# above all inside a merged branch, may hold a chart or an operator that never worked.
WHOLE_COMMIT = "31c3dbf42f90f34feecaf8ae474c25747e5cf61e"


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


def check_out_earlier(folder: Path, repository: Path = ROOT) -> Earlier:
    """The newest release before HEAD; where there is none, `WHOLE_COMMIT`.

    Without the repository's history (an archive, a shallow clone) it is this checkout itself.
    """
    words, commit = newest_whole(repository)
    if commit is None:
        return Earlier(words, repository)
    folder.mkdir(parents=True)
    archive = folder / "archive.tar"
    if _git(repository, "archive", f"--output={archive}", commit) is None:
        raise AssertionError(f"git archive {commit} failed")
    subprocess.run(["tar", "--extract", f"--file={archive}", f"--directory={folder}"], check=True)
    archive.unlink()
    return Earlier(words, folder)


def newest_whole(repository: Path) -> tuple[str, str | None]:
    """Words for the newest state that was played, and what git calls it; None without history."""
    tags = _git(repository, "describe", "--tags", "--abbrev=0", "--match=v[0-9]*", "HEAD^")
    if tags:
        return f"release {tags}", tags
    if _git(repository, "cat-file", "-e", f"{WHOLE_COMMIT}^{{commit}}") is not None:
        return f"commit {WHOLE_COMMIT}", WHOLE_COMMIT
    return f"this checkout under another tag: it has no release, nor commit {WHOLE_COMMIT}", None


def _git(repository: Path, *arguments: str) -> str | None:
    """What git printed; None where it failed, or there is none."""
    try:
        done = subprocess.run(
            ["git", "-C", str(repository), *arguments],
            capture_output=True,
            text=True,
            timeout=GIT_LIMIT_SECONDS,
            check=False,
        )
    except FileNotFoundError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
