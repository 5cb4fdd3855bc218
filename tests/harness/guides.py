"""The commands of a guide, and a shell that plays them on a cluster as they are written."""

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

from gpujob_local.kubelets.cluster import KubeletCluster
from tests.harness.repository import ROOT

COMMAND_LIMIT_SECONDS = 660
_BLOCK = re.compile(r"^ *```console\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r" +# .*$")


def commands(document: Path) -> list[str]:
    """What stands behind a prompt in the console blocks; continued lines are one, comments go."""
    found: list[str] = []
    for block in _BLOCK.findall(document.read_text(encoding="utf-8")):
        for line in block.replace("\\\n", " ").splitlines():
            prompt, _, command = line.strip().partition(" ")
            if prompt in ("$", "#"):
                found.append(" ".join(_COMMENT.sub("", command).split()))
    return found


class Shell:
    """Plays commands in the repository, in a user's environment with kubectl, helm and our plugin.

    `words` are replaced in every command: what a reader has to put in of one's own.
    """

    def __init__(self, cluster: KubeletCluster, words: Mapping[str, str]) -> None:
        self._environment = os.environ | cluster.user_environment()
        self._words = words

    def play(self, command: str) -> str:
        """What was printed. Fails with it where the command does."""
        for word, ours in self._words.items():
            command = command.replace(word, ours)
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=ROOT,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=COMMAND_LIMIT_SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}"
        return done.stdout
