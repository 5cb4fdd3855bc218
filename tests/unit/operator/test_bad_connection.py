"""Operator and agent that cannot know where the API server is: one line that names the option."""

import subprocess
import sys
from pathlib import Path

import pytest

from gpujob_operator.client.connection import BadConnection, load_configuration

USAGE = 2


@pytest.mark.parametrize("content", ["", "text", "[]", "{not yaml: [", "contexts: 5"])
async def test_a_broken_kubeconfig_is_named(content: str, tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(content)
    with pytest.raises(BadConnection, match="--kubeconfig") as raised:
        await load_configuration(str(path))
    assert "\n" not in str(raised.value)


async def test_a_missing_kubeconfig_and_a_folder_are_named(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(BadConnection, match="--kubeconfig"):
            await load_configuration(str(path))


@pytest.mark.parametrize(
    "command", [["gpujob_operator", "run"], ["gpujob_operator.agent", "--node", "n0"]], ids=str
)
def test_outside_of_a_pod_a_kubeconfig_is_asked_for(command: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *command],
        env={},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == USAGE
    assert "--kubeconfig: not given" in done.stderr
    assert "Traceback" not in done.stderr
