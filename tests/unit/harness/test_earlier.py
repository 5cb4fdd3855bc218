"""What an upgrade begins with: a release, else a commit that is known to be whole."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.harness.earlier import WHOLE_COMMIT, check_out_earlier, newest_whole
from tests.harness.repository import ROOT

PERSON = {"NAME": "somebody", "EMAIL": "somebody@example.org"}
AS_SOMEBODY = {f"GIT_{role}_{k}": v for role in ("AUTHOR", "COMMITTER") for k, v in PERSON.items()}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Three commits; the file `state` has the number of each."""
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "--quiet")
    for number in range(3):
        commit(folder, str(number))
    return folder


def git(folder: Path, *arguments: str) -> None:
    command = ["git", "-c", "commit.gpgsign=false", "-c", "tag.gpgsign=false", *arguments]
    subprocess.run(command, cwd=folder, check=True, env=os.environ | AS_SOMEBODY)


def commit(folder: Path, state: str) -> None:
    (folder / "state").write_text(state)
    git(folder, "add", "state")
    git(folder, "commit", "--quiet", "--message", state)


def test_the_newest_release_before_this_state(repository: Path, tmp_path: Path) -> None:
    git(repository, "tag", "v0.1.0", "HEAD~2")
    git(repository, "tag", "v0.2.0", "HEAD~1")
    git(repository, "tag", "v0.3.0", "HEAD")
    git(repository, "tag", "draft", "HEAD~1")
    earlier = check_out_earlier(tmp_path / "earlier", repository)
    assert earlier.words == "release v0.2.0"
    assert (earlier.folder / "state").read_text() == "1"
    assert [path.name for path in earlier.folder.iterdir()] == ["state"]


def test_without_a_release_no_commit_is_guessed(repository: Path, tmp_path: Path) -> None:
    earlier = check_out_earlier(tmp_path / "earlier", repository)
    assert earlier.folder == repository
    assert WHOLE_COMMIT in earlier.words


def test_without_history_it_is_this_checkout(tmp_path: Path) -> None:
    assert check_out_earlier(tmp_path / "earlier", tmp_path).folder == tmp_path


def test_this_repository_has_something_to_upgrade_from() -> None:
    if not (ROOT / ".git").exists() or (ROOT / ".git" / "shallow").exists():
        pytest.skip("a checkout without its history")
    words, found = newest_whole(ROOT)
    assert found is not None, words
