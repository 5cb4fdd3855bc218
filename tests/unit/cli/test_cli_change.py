"""kubectl gpujob cancel, suspend, resume, rerun and wait."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpujob_api.gpujob import GPUJob, JobPhase
from kubectl_gpujob.errors import UserError
from kubectl_gpujob.kubectl import Kubectl, Target
from kubectl_gpujob.names import new_name
from tests.harness.cli_jobs import Clock, MemoryCluster, condition, job, manifest, run_command

PATH = "/apis/gpujob.dev/v1alpha1/namespaces/vision/gpujobs"


def with_phase(held: GPUJob, phase: JobPhase, **status: Any) -> GPUJob:
    return replace(held, status=replace(held.status, phase=phase, **status))


def test_one_job_is_cancelled_without_a_question() -> None:
    cluster = MemoryCluster([job()])
    ran = run_command(cluster, "cancel", "resnet50")
    assert (ran.exit_code, ran.stdout) == (0, "gpujob/resnet50 is being deleted\n")
    assert cluster.deleted == [f"{PATH}/resnet50"]


@pytest.mark.parametrize(("answer", "deleted"), [("y", 2), ("", 0), ("n", 0), ("YES", 2)])
def test_several_jobs_are_cancelled_after_a_yes(answer: str, deleted: int) -> None:
    cluster = MemoryCluster([job(name="a"), job(name="b")])
    ran = run_command(cluster, "cancel", "a", "b", answer=answer)
    assert (ran.exit_code, len(cluster.deleted)) == (0 if deleted else 1, deleted)


def test_the_failed_ones_of_a_namespace_are_cancelled_at_once() -> None:
    failed = [with_phase(job(name=name), JobPhase.FAILED) for name in ("a", "b")]
    cluster = MemoryCluster([*failed, job(name="runs")])
    assert run_command(cluster, "cancel", "--all", "--failed", "-y").exit_code == 0
    assert cluster.deleted == [f"{PATH}/a", f"{PATH}/b"]


@pytest.mark.parametrize(
    "arguments", [("cancel",), ("cancel", "a", "--all"), ("suspend", "a", "--failed")]
)
def test_unclear_targets_are_wrong_usage(arguments: tuple[str, ...]) -> None:
    cluster = MemoryCluster([job(name="a")])
    assert run_command(cluster, *arguments).exit_code == 2
    assert cluster.deleted == []
    assert cluster.patched == []


@pytest.mark.parametrize("name", ["", "..", "a/status", "a?x=1", "A", "a\n"])
def test_a_text_that_is_no_name_deletes_nothing(name: str) -> None:
    cluster = MemoryCluster([job(name="a"), job(name="b")])
    ran = run_command(cluster, "cancel", name)
    assert ran.exit_code == 1
    assert "is no name of a gpujob" in ran.stderr
    assert cluster.deleted == [], "an empty name would delete all jobs"


@pytest.mark.parametrize("namespace", ["a/../b", "?", "A"])
def test_a_text_that_is_no_namespace_is_refused(namespace: str) -> None:
    with pytest.raises(UserError, match="is no name of a namespace"):
        Kubectl(Target(namespace=namespace))
    assert Kubectl(Target(namespace="b")).namespace == "b"


@pytest.mark.parametrize(("verb", "value"), [("suspend", True), ("resume", False)])
def test_suspend_and_resume_patch_the_spec(verb: str, *, value: bool) -> None:
    cluster = MemoryCluster([job()])
    assert run_command(cluster, verb, "resnet50").exit_code == 0
    assert cluster.patched == [("gpujobs.gpujob.dev", "resnet50", {"spec": {"suspend": value}})]


def test_a_finished_job_cannot_be_suspended_and_the_others_are() -> None:
    cluster = MemoryCluster([with_phase(job(name="a"), JobPhase.SUCCEEDED), job(name="b")])
    ran = run_command(cluster, "suspend", "a", "b")
    assert ran.exit_code == 1
    assert "gpujob a has Succeeded: it cannot be suspended" in ran.stderr
    assert [name for _, name, _ in cluster.patched] == ["b"]


def test_a_change_that_changes_nothing_is_told() -> None:
    resumed = run_command(MemoryCluster([job()]), "resume", "resnet50")
    assert (resumed.exit_code, resumed.stdout) == (0, "gpujob/resnet50 is not suspended\n")
    cluster = MemoryCluster([job(spec={"suspend": True})])
    again = run_command(cluster, "suspend", "resnet50")
    assert (again.exit_code, again.stdout) == (0, "gpujob/resnet50 is already suspended\n")


def test_all_jobs_to_resume_are_the_suspended_ones() -> None:
    cluster = MemoryCluster([job(name="a", spec={"suspend": True}), job(name="b")])
    assert run_command(cluster, "resume", "--all").exit_code == 0
    assert [name for _, name, _ in cluster.patched] == ["a"]
    none = run_command(MemoryCluster([job(name="b")]), "resume", "--all")
    assert (none.exit_code, none.stderr) == (0, "no gpujobs to resume in namespace vision\n")


# -- rerun


def template(*command: str) -> dict[str, Any]:
    container = {"name": "worker", "image": "i", "command": list(command)}
    return {"template": {"spec": {"containers": [container]}}, "suspend": True}


def test_a_rerun_has_a_new_name_and_nothing_of_the_status() -> None:
    cluster = MemoryCluster([job(spec=template("python", "train.py"))])
    ran = run_command(cluster, "rerun", "resnet50", "--name", "again")
    assert ran.stdout == "gpujob/again created, like resnet50\n"
    [made] = cluster.created
    assert set(made) == {"apiVersion", "kind", "metadata", "spec"}
    assert made["metadata"]["name"] == "again"
    assert "suspend" not in made["spec"], "whoever repeats a job wants it to run"


def test_a_rerun_belongs_to_no_tool_that_applied_the_first_job() -> None:
    """Argo CD deletes what carries its labels and is not in its repository."""
    marks = {"app.kubernetes.io/instance": "team", "argocd.argoproj.io/tracking-id": "team:x"}
    held = job(spec=template("python", "train.py"))
    held = replace(held, metadata=replace(held.metadata, labels={"owner": "ann", **marks}))
    cluster = MemoryCluster([held])
    run_command(cluster, "rerun", "resnet50")
    [made] = cluster.created
    assert made["metadata"]["labels"] == {"owner": "ann"}


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["train.py", "--lr", "1"], ["train.py", "--lr", "2"]),
        (["train.py", "--lr=1", "--n", "3"], ["train.py", "--lr=2", "--n", "3"]),
        (["train.py"], ["train.py", "--lr=2"]),
        (["train.py", "--lr", "--n", "3"], ["train.py", "--lr=2", "--n", "3"]),
        (["train.py", "--lrate", "1"], ["train.py", "--lrate", "1", "--lr=2"]),
    ],
)
def test_a_flag_is_set_in_its_own_spelling(command: list[str], expected: list[str]) -> None:
    cluster = MemoryCluster([job(spec=template(*command))])
    ran = run_command(cluster, "rerun", "resnet50", "--set", "lr=2", "-o", "json")
    made = json.loads(ran.stdout)
    assert made["spec"]["template"]["spec"]["containers"][0]["command"] == expected


def test_a_rerun_under_a_bad_name_reads_and_makes_nothing() -> None:
    cluster = MemoryCluster([job(spec=template("x"))])
    ran = run_command(cluster, "rerun", "resnet50", "--name", "Again_2")
    assert ran.exit_code == 2
    assert str(ran.exception).startswith("--name: must have at most 52 lower case letters")
    assert str(ran.exception).endswith("got 'Again_2', try again-2")
    assert (cluster.created, cluster.asked) == ([], [])


def test_a_job_in_the_short_form_is_repeated_in_it() -> None:
    class Stored(MemoryCluster):
        def manifest(self, name: str) -> Mapping[str, Any]:
            spec = {"image": "i", "command": ["train.py", "--lr", "1"], "gpus": "A10:2"}
            return {**manifest(name), "spec": spec}

    ran = run_command(Stored(), "rerun", "resnet50", "--set", "lr=2", "-o", "json")
    spec = json.loads(ran.stdout)["spec"]
    assert spec == {"image": "i", "command": ["train.py", "--lr", "2"], "gpus": "A10:2"}


@pytest.mark.parametrize("text", ["lr", "=3", "--lr=3"])
def test_a_setting_without_a_value_is_wrong_usage(text: str) -> None:
    cluster = MemoryCluster([job(spec=template("x"))])
    assert run_command(cluster, "rerun", "resnet50", f"--set={text}").exit_code == 2


@pytest.mark.parametrize("like", ["train", "Train_Big.Model", "x" * 80, "-", "9lives", "a-bcdfg"])
def test_new_names_are_valid_and_do_not_grow(like: str) -> None:
    name = new_name(like)
    assert job(name=name).metadata.name == name
    again = new_name(name)
    assert (len(again), again[:-5]) == (len(name), name[:-5])
    assert again != name


def test_the_folder_of_a_job_belongs_to_its_rerun_too(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    cluster = MemoryCluster()
    words = ("--image", "i", "--dir", str(tmp_path), "--", "python", "train.py")
    assert run_command(cluster, "submit", "first", *words).exit_code == 0
    first = {"kind": "GPUJob", "name": "first", "uid": "uid-1"}
    cluster.created[0]["metadata"]["ownerReferences"] = [first]
    assert run_command(cluster, "rerun", "first", "--name", "second").exit_code == 0
    kind, name, patch = cluster.patched[-1]
    assert (kind, name) == ("configmap", "first")
    owners = [owner["name"] for owner in patch["metadata"]["ownerReferences"]]
    assert owners == ["first", "second"]

    cluster.created.clear()
    ran = run_command(cluster, "rerun", "first", "--name", "third")
    assert ran.exit_code == 1
    assert "the folder of first is gone" in str(ran.exception)
    assert cluster.created == [], "without its folder a job would wait without end"


# -- wait


@pytest.mark.parametrize(
    ("phase", "code"), [(JobPhase.SUCCEEDED, 0), (JobPhase.FAILED, 3), (JobPhase.RUNNING, 4)]
)
def test_wait_ends_with_the_job(phase: JobPhase, code: int) -> None:
    def change(cluster: MemoryCluster, reads: int) -> None:
        if reads == 3:
            cluster.held = [with_phase(job(), phase)]

    cluster = MemoryCluster([job()], before_read=change)
    ran = run_command(cluster, "wait", "resnet50", "--timeout", "60s")
    assert ran.exit_code == code
    assert ran.stdout == ""
    assert ran.stderr.splitlines()[0] == "gpujob/resnet50: Pending"


def test_wait_for_a_step_or_for_the_start() -> None:
    running = job(
        status={
            "phase": "Running",
            "measurement": {"memoryBytes": 1, "utilizationPercent": 1, "samples": 1, "step": 50},
        }
    )
    cluster = MemoryCluster([running])
    for event, code in (("step=50", 0), ("running", 0), ("step=51", 4), ("succeeded", 4)):
        ran = run_command(cluster, "wait", "resnet50", "--for", event, "--timeout", "5s")
        assert ran.exit_code == code, event
    assert run_command(cluster, "wait", "resnet50", "--for", "soon").exit_code == 2
    assert run_command(cluster, "wait", "resnet50", "--timeout", "soon").exit_code == 1


def test_waiting_takes_as_long_as_asked() -> None:
    clock = Clock()
    run_command(MemoryCluster([job()]), "wait", "resnet50", "--timeout", "61s", clock=clock)
    assert (clock.at - Clock().at).total_seconds() == 61


def test_a_job_that_is_deleted_ends_the_waiting() -> None:
    def delete(cluster: MemoryCluster, reads: int) -> None:
        if reads == 1:
            cluster.held = []

    ran = run_command(MemoryCluster([job()], before_read=delete), "wait", "resnet50")
    assert ran.exit_code == 1
    assert str(ran.exception) == "gpujob resnet50 was deleted before it was finished"


def test_suspending_a_job_that_loses_work_says_so() -> None:
    words = "no persistent volume keeps the job's checkpoints"
    conditions = [condition("Unprotected", "True", "NoDurablePlace", words)]
    cluster = MemoryCluster([job(name="a", status={"conditions": conditions}), job(name="b")])
    ran = run_command(cluster, "suspend", "a", "b")
    assert ran.stderr == f"note: a loses work: {words}\n"
    assert "checkpoint" not in ran.stdout
