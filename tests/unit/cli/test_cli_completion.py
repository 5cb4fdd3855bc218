"""Completion: one list of candidates for bash, zsh, fish and kubectl."""

import os
import subprocess
from pathlib import Path

import pytest

from kubectl_gpujob.errors import UserError
from kubectl_gpujob.grammar import VERBS, World, run
from kubectl_gpujob.kubectl import Target
from kubectl_gpujob.screen import Screen
from kubectl_gpujob.verbs.completion import NO_FILES, candidates
from tests.harness.cli_jobs import MemoryCluster, job, run_command

JOBS = MemoryCluster([job(name="train-a"), job(name="train-b"), job(name="other")])


def completed(*words: str, cluster: MemoryCluster = JOBS) -> list[str]:
    *found, last = run_command(cluster, "__complete", *words).stdout.splitlines()
    assert last == NO_FILES, "kubectl would offer files"
    return found


def test_the_commands() -> None:
    assert completed("") == [verb.name for verb in VERBS]
    assert completed("lo") == ["logs"]


def test_names_of_jobs_after_commands_that_take_one() -> None:
    assert completed("why", "train") == ["train-a", "train-b"]
    assert completed("cancel", "train-a", "") == ["other", "train-a", "train-b"]
    assert completed("list", "") == []
    assert completed("submit", "--", "tr") == []


def test_options_and_their_values() -> None:
    assert completed("logs", "--all") == ["--all-attempts", "--all-ranks"]
    assert completed("list", "-o", "w") == ["wide"]
    assert completed("submit", "--spot", "") == ["prefer", "never", "require"]
    assert completed("wait", "--timeout", "") == []


def test_what_cannot_be_read_completes_to_nothing() -> None:
    class Away(MemoryCluster):
        def jobs(self, **_: object) -> list[object]:  # type: ignore[override]
            raise UserError("refused")

    assert completed("why", "", cluster=Away()) == []
    assert completed("nonsense", "") == []


@pytest.mark.parametrize(
    ("words", "namespace", "context"),
    [
        (["why", "-n", "vision", "--context", "lab", ""], "vision", "lab"),
        (["why", "--namespace=vision", ""], "vision", None),
        (["why", ""], None, None),
    ],
)
def test_names_come_from_the_namespace_that_was_typed(
    words: list[str], namespace: str | None, context: str | None
) -> None:
    seen: list[Target] = []

    def connect(target: Target) -> MemoryCluster:
        seen.append(target)
        return JOBS

    import io
    from datetime import UTC, datetime

    screen = Screen(io.StringIO(), io.StringIO())
    world = World(screen, connect, lambda: datetime.now(UTC), lambda _: None)
    assert "train-a" in candidates(words, world)
    assert (seen[0].namespace, seen[0].context) == (namespace, context)
    assert run(["completion", "zsh"], world) == 0


def test_bash_and_kubectl_ask_the_program(tmp_path: Path) -> None:
    program = tmp_path / "kubectl-gpujob"
    program.write_text('#!/bin/sh\nprintf "%s\\n" list logs "asked:$1,$2" :4\n')
    program.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}

    def shell(script: str) -> list[str]:
        command = ["bash", "-c", script]
        ran = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        return ran.stdout.split()

    bash = run_command(MemoryCluster(), "completion", "bash").stdout
    asked = "COMP_WORDS=(kubectl-gpujob l) COMP_CWORD=1; _kubectl_gpujob; echo ${COMPREPLY[@]}"
    assert shell(f"{bash}\n{asked}") == ["list", "logs"]
    kubectl = run_command(MemoryCluster(), "completion", "kubectl").stdout
    found = shell(f"set -- why tr\n{kubectl}")
    assert found[2] == "asked:__complete,why"
    assert found[-1] == ":4"
