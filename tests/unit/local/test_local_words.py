"""What gpujob-local says to whoever called it."""

import shlex
import sys

import pytest
from typer.testing import CliRunner

from gpujob_local import __main__ as command


@pytest.mark.parametrize(
    ("called", "on_path", "line"),
    [
        ("/opt/tools/bin/gpujob-local", False, "/opt/tools/bin/gpujob-local env"),
        (".venv/bin/gpujob-local", False, ".venv/bin/gpujob-local env"),
        ("/opt/my code/gpujob-local", False, "'/opt/my code/gpujob-local' env"),
        ("/opt/tools/bin/gpujob-local", True, "gpujob-local env"),
        ("gpujob-local", True, "gpujob-local env"),
    ],
)
def test_the_command_for_the_shell_works_in_the_shell_that_called(
    monkeypatch: pytest.MonkeyPatch, called: str, on_path: bool, line: str
) -> None:
    monkeypatch.setattr(sys, "argv", [called, "up"])
    monkeypatch.setattr("shutil.which", {"gpujob-local": "/bin/it" if on_path else None}.get)
    assert command.env_command("default") == f'eval "$({line})"'
    assert command.env_command("two") == f'eval "$({line} --name two)"'


def test_as_a_module_it_is_called_as_a_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [command.__file__, "up"])
    assert f"{shlex.quote(sys.executable)} -m gpujob_local env" in command.env_command("default")


@pytest.mark.parametrize("nodes", ["kubelet:0", "kubelet:99", "0", "some"])
def test_too_many_nodes_are_refused_in_a_sentence(nodes: str) -> None:
    result = CliRunner().invoke(command.app, ["up", "--nodes", nodes])
    assert result.exit_code == 2
    assert "must be 1 to" in " ".join(result.stderr.split())
