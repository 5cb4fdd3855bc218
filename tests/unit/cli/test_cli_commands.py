"""The command line over a cluster in memory: output, exit codes, who is asked for what."""

import json
from collections.abc import Sequence
from datetime import datetime

import pytest
from typer.testing import CliRunner, Result

import kubectl_gpujob.__main__ as command_line
from kubectl_gpujob.cluster import Target
from kubectl_gpujob.errors import UserError
from tests.harness.cli_jobs import NOW, MemoryCluster, condition, job, succeeded_status


def now() -> datetime:
    return NOW


def invoke(cluster: MemoryCluster, *arguments: str) -> Result:
    return CliRunner().invoke(command_line.build(lambda _: cluster, now), list(arguments))


def test_why_prints_the_headline_the_reason_and_the_place() -> None:
    conditions = [
        condition("Scheduled", "False", "InsufficientCapacity", "needs 20 GiB, 11.2 GiB are free")
    ]
    held = [job(status={"conditions": conditions}), job(name="old", created="2026-11-20T09:00:00Z")]
    result = invoke(MemoryCluster(held), "why", "resnet50")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[0] == "vision/resnet50 is Pending for 10m 00s"
    assert "InsufficientCapacity: needs 20 GiB, 11.2 GiB are free" in result.stdout
    assert "2nd of 2 pending" in result.stdout


def test_why_counts_in_its_own_namespace_when_it_may_not_see_others() -> None:
    cluster = MemoryCluster([job()], may_list_all=False)
    result = invoke(cluster, "why", "resnet50")
    assert "1st of 1 pending" in result.stdout
    assert cluster.asked == ["all", "vision"]


def test_why_as_json_is_json() -> None:
    result = invoke(MemoryCluster([job()]), "why", "resnet50", "--output", "json")
    assert json.loads(result.stdout)["phase"] == "Pending"


def test_report_prints_the_comparison_last() -> None:
    result = invoke(MemoryCluster([job(status=succeeded_status())]), "report", "resnet50")
    lines = [line.split() for line in result.stdout.splitlines()]
    assert ["first", "steps", "latest", "steps"] in lines
    assert lines[-3] == ["step", "time", "412", "ms", "187", "ms"]


def test_report_as_json_is_json() -> None:
    cluster = MemoryCluster([job(status=succeeded_status())])
    result = invoke(cluster, "report", "resnet50", "-o", "json")
    assert json.loads(result.stdout)["speedup"]["ratio"] == 1.84


def list_lines(cluster: MemoryCluster, *arguments: str) -> Sequence[Sequence[str]]:
    return [line.split() for line in invoke(cluster, "list", *arguments).stdout.splitlines()]


def test_list_shows_this_namespace() -> None:
    summary = {"where": "node-a", "speed": "0.19s/step", "memory": "5.4GiB", "cost": "0.12"}
    held = [job(status={"phase": "Running", "summary": summary}), job(namespace="text")]
    lines = list_lines(MemoryCluster(held))
    assert lines[0][:3] == ["NAME", "QUEUE", "PHASE"]
    assert lines[1][:7] == [
        "resnet50",
        "research",
        "Running",
        "node-a",
        "0.19s/step",
        "5.4GiB",
        "0.12",
    ]
    assert len(lines) == 2


def test_list_as_json_has_whole_jobs() -> None:
    found = json.loads(invoke(MemoryCluster([job()]), "list", "-o", "json").stdout)
    assert [(one["kind"], one["metadata"]["name"]) for one in found] == [("GPUJob", "resnet50")]
    assert json.loads(invoke(MemoryCluster(), "list", "-o", "json").stdout) == []


@pytest.mark.parametrize("command", [["list"], ["why", "resnet50"], ["report", "resnet50"]])
def test_no_line_ends_with_blanks(command: list[str]) -> None:
    shown = invoke(MemoryCluster([job(status=succeeded_status())]), *command).stdout
    assert shown
    assert [line for line in shown.splitlines() if line != line.rstrip()] == []


def test_list_of_all_namespaces_names_them() -> None:
    lines = list_lines(MemoryCluster([job(), job(namespace="text")]), "-A")
    assert [line[0] for line in lines] == ["NAMESPACE", "text", "vision"]


def test_a_long_reason_is_not_cut_in_a_pipe() -> None:
    reason = "needs " + "x" * 200
    cluster = MemoryCluster([job(status={"summary": {"reason": reason}})])
    assert reason in invoke(cluster, "list").stdout


def test_a_name_with_brackets_is_no_markup() -> None:
    message = "[red]not a colour[/red]"
    conditions = [condition("Scheduled", "False", "InsufficientCapacity", message)]
    result = invoke(MemoryCluster([job(status={"conditions": conditions})]), "why", "resnet50")
    assert message in result.stdout


def test_an_empty_list_says_so_and_is_no_error() -> None:
    result = invoke(MemoryCluster(), "list")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "no gpujobs in namespace vision\n"


def test_the_short_flag_shows_help_too() -> None:
    for arguments in (("-h",), ("why", "-h")):
        shown = invoke(MemoryCluster(), *arguments)
        assert shown.exit_code == 0, shown.output
        assert "Usage" in shown.output


def test_version_names_the_api() -> None:
    assert invoke(MemoryCluster(), "version").stdout.strip().endswith("(gpujob.dev/v1alpha1)")


@pytest.mark.parametrize(
    "arguments",
    [
        ["why"],
        ["report", "a", "-o", "xml"],
        ["nonsense"],
        # It would change nothing of the answer.
        ["why", "a", "--configuration", "operator.yaml"],
    ],
    ids=" ".join,
)
def test_wrong_usage_exits_with_2(arguments: list[str]) -> None:
    assert invoke(MemoryCluster(), *arguments).exit_code == 2


def test_what_cannot_be_answered_exits_with_1_and_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(_: Target) -> MemoryCluster:
        raise UserError("no usable kubeconfig: none found")

    monkeypatch.setattr(command_line, "connect", refuse)
    monkeypatch.setattr("sys.argv", ["kubectl-gpujob", "why", "resnet50"])
    with pytest.raises(SystemExit) as stopped:
        command_line.main()
    assert stopped.value.code == 1
    assert capsys.readouterr().err == "error: no usable kubeconfig: none found\n"


def test_flags_reach_the_connection() -> None:
    seen: list[Target] = []

    def connect(target: Target) -> MemoryCluster:
        seen.append(target)
        return MemoryCluster([job()])

    arguments = ["why", "resnet50", "-n", "text", "--context", "lab", "--kubeconfig", "/k"]
    CliRunner().invoke(command_line.build(connect, now), arguments)
    assert (str(seen[0].kubeconfig), seen[0].context, seen[0].namespace) == ("/k", "lab", "text")
