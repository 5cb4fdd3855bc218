"""kubectl gpujob submit: from a command line to an object, with nothing half-made."""

import base64
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gpujob_api.gpujob import GPUJob
from gpujob_api.manifest import from_manifest
from kubectl_gpujob import source
from kubectl_gpujob.errors import UsageError, UserError
from kubectl_gpujob.names import check_name
from tests.harness.cli_jobs import Clock, MemoryCluster, Ran, job, run_command

COMMAND = ("--", "python", "train.py", "--lr", "3e-4")


@pytest.fixture(autouse=True)
def without_image(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GPUJOB_IMAGE", raising=False)


def submit(*arguments: str, cluster: MemoryCluster | None = None) -> Ran:
    return run_command(cluster or MemoryCluster(), "submit", *arguments)


def made(*arguments: str) -> dict[str, Any]:
    cluster = MemoryCluster()
    ran = submit("--image", "i", *arguments, cluster=cluster)
    assert ran.exit_code == 0, ran.exception
    [manifest] = [one for one in cluster.created if one["kind"] == "GPUJob"]
    from_manifest(GPUJob, manifest)
    return manifest


def test_the_smallest_job_has_a_name_of_its_script_and_defaults_alone() -> None:
    manifest = made(*COMMAND)
    assert manifest["metadata"]["name"].startswith("train-")
    assert manifest["metadata"]["namespace"] == "vision"
    container = {"name": "worker", "image": "i", "command": list(COMMAND[1:])}
    assert manifest["spec"] == {"template": {"spec": {"containers": [container]}}}


def test_every_option_reaches_the_object() -> None:
    spec = made(
        *("mine", "--gpus", "2:H100", "--memory", "20Gi", "--workers", "3", "--queue", "vision"),
        *("--priority", "5", "--claim", "checkpoints", "--spot", "require"),
        *("--data", "datasets:/data", "--env", "A=b=c", "--secret", "wandb", *COMMAND),
    )["spec"]
    assert spec["gpusPerWorker"] == 2
    assert spec["gpu"] == {"memory": "20Gi", "models": ["H100"]}
    assert (spec["workers"], spec["queue"], spec["priority"]) == (3, "vision", 5)
    assert spec["checkpoint"] == {"volumeClaimName": "checkpoints"}
    assert spec["spot"] == {"policy": "Require"}
    pod = spec["template"]["spec"]
    [container] = pod["containers"]
    assert container["env"] == [{"name": "A", "value": "b=c"}]
    assert container["envFrom"] == [{"secretRef": {"name": "wandb"}}]
    assert container["volumeMounts"] == [{"name": "data-0", "mountPath": "/data"}]
    assert pod["volumes"][0]["persistentVolumeClaim"] == {"claimName": "datasets"}


def test_the_kubelet_changes_no_word_of_the_command() -> None:
    words = ("sh", "-c", "echo $HOME $(date) $$ $$(A) $")
    spec = made("--env", "A=$(B)", "--", *words)["spec"]
    [container] = spec["template"]["spec"]["containers"]
    # The kubelet makes one $ of two.
    assert container["command"][2] == "echo $HOME $$(date) $$$ $$$$(A) $"
    assert container["env"] == [{"name": "A", "value": "$$(B)"}]


@pytest.mark.parametrize(
    ("given", "gpus", "models"),
    [
        ("1", 1, None),
        ("4", 4, None),
        ("H100", 1, ["H100"]),
        ("H100:2", 2, ["H100"]),
        ("1:A10", 1, ["A10"]),
        ("2:RTX 4090", 2, ["RTX 4090"]),
    ],
)
def test_gpus_are_those_of_the_short_form_or_turned(
    given: str, gpus: int, models: list[str] | None
) -> None:
    spec = made("--gpus", given, *COMMAND)["spec"]
    assert spec.get("gpusPerWorker", 1) == gpus
    assert spec.get("gpu", {}).get("models") == models


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (("--gpus", "H100:0", *COMMAND), "--gpus: must be a number from 1 to 16, a model, or both"),
        (("--gpus", "17:H100", *COMMAND), "--gpus"),
        (("--gpus", "H100:", *COMMAND), "--gpus"),
        (("--gpus", "1:", *COMMAND), "got '1:'"),
        (("--gpus", "0", *COMMAND), "--gpus"),
        (("--gpus", "1:2:3", *COMMAND), "--gpus"),
        (("--data", "claim", *COMMAND), "--data"),
        (("--data", "claim:data", *COMMAND), "--data"),
        (("--env", "A", *COMMAND), "--env"),
        (("--env", "1A=x", *COMMAND), "--env"),
        (("--env", "A=1", "--env", "A=2", *COMMAND), "--env: A is given twice"),
        (("My_Job", *COMMAND), "NAME: must have at most 52 lower case"),
        (("a", "b", *COMMAND), "NAME"),
        ((), "command"),
        (("--",), "command"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else value,
)
def test_a_wrong_option_is_named_and_nothing_is_made(
    arguments: tuple[str, ...], option: str
) -> None:
    cluster = MemoryCluster()
    ran = submit("--image", "i", *arguments, cluster=cluster)
    assert ran.exit_code == 2
    assert option in str(ran.exception)
    assert cluster.created == []


@pytest.mark.parametrize(
    ("name", "like"),
    [
        ("My_Job", "my-job"),
        ("a.b", "a-b"),
        ("x" * 53, "x" * 52),
        ("-a-", "a"),
        ("_", ""),
    ],
)
def test_a_bad_name_is_answered_with_a_good_one(name: str, like: str) -> None:
    with pytest.raises(UsageError, match="because pod names append the attempt") as caught:
        check_name(name, "NAME")
    assert str(caught.value).endswith(f", try {like}") == bool(like)


@given(st.text("aB9-_. é", max_size=60))
def test_the_other_name_can_always_be_given(name: str) -> None:
    try:
        check_name(name, "NAME")
    except UsageError as error:
        _, found, like = str(error).rpartition(", try ")
        if found:
            check_name(like, "NAME")
    else:
        job(name=name)


CLAIMS = ("--claim", "checkpoints", "--data", "datasets:/data")


def test_claims_and_secrets_that_do_not_exist_are_warned_of() -> None:
    cluster = MemoryCluster(claim_names=["datasets"], secret_names=["other"])
    words = ("mine", "--image", "i", *CLAIMS, "--secret", "wandb", *COMMAND)
    ran = submit(*words, cluster=cluster)
    assert ran.exit_code == 0
    assert ran.stderr.splitlines() == [
        'warning: persistentvolumeclaim "checkpoints" does not exist in the namespace vision: '
        "create it, or create the job again with another one (kubectl get pvc -n vision lists the "
        "existing ones)",
        'warning: secret "wandb" does not exist in the namespace vision (kubectl get secrets '
        "-n vision lists the existing ones)",
    ]
    assert len(cluster.created) == 1


def test_a_claim_that_is_being_deleted_is_warned_of() -> None:
    names = ["checkpoints", "datasets"]
    cluster = MemoryCluster(claim_names=names, secret_names=[], going=["datasets"])
    (warning,) = submit(
        "mine", "--image", "i", *CLAIMS, *COMMAND, cluster=cluster
    ).stderr.splitlines()
    assert warning.startswith('warning: persistentvolumeclaim "datasets" is being deleted: once')


@pytest.mark.parametrize(
    "there",
    [
        {"claim_names": ["checkpoints", "datasets"], "secret_names": ["wandb"]},
        {"claim_names": None, "secret_names": None},
    ],
)
def test_what_exists_or_may_not_be_read_is_no_warning(there: dict[str, Any]) -> None:
    ran = submit(
        "--image", "i", *CLAIMS, "--secret", "wandb", *COMMAND, cluster=MemoryCluster(**there)
    )
    assert "warning" not in ran.stderr


def test_the_decision_about_a_job_without_its_claim_is_the_operators() -> None:
    cluster = MemoryCluster(claim_names=[], now=Clock().at)
    ran = submit("--image", "i", "--dry-run", *CLAIMS, *COMMAND, cluster=cluster)
    said = 'Pending: ClaimNotFound: persistentvolumeclaim "checkpoints" does not exist in the '
    assert ran.stderr.splitlines()[-1].startswith(said)
    cluster.claim_names = ["checkpoints", "datasets"]
    ran = submit("--image", "i", "--dry-run", *CLAIMS, *COMMAND, cluster=cluster)
    assert "Unsatisfiable" in ran.stderr


def test_the_image_comes_from_the_environment_too(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "--image" in str(submit(*COMMAND).exception)
    monkeypatch.setenv("GPUJOB_IMAGE", "mine:1")
    cluster = MemoryCluster()
    submit(*COMMAND, cluster=cluster)
    pod = cluster.created[0]["spec"]["template"]["spec"]
    assert pod["containers"][0]["image"] == "mine:1"


def test_a_refusal_of_the_api_server_names_the_option() -> None:
    cluster = MemoryCluster(refuses="spec.gpu.memory: Invalid value: must be a quantity")
    ran = submit("--image", "i", "--memory", "1GB", *COMMAND, cluster=cluster)
    assert str(ran.exception) == "--memory: spec.gpu.memory: Invalid value: must be a quantity"
    assert cluster.created == []


def test_an_unchecked_object_is_noted_and_created() -> None:
    cluster = MemoryCluster(not_checked="you may not create gpujobs")
    ran = submit("--image", "i", *COMMAND, cluster=cluster)
    assert "not checked by the API server: you may not create" in ran.stderr
    assert len(cluster.created) == 1


def test_a_dry_run_prints_the_object_and_the_decision_and_creates_nothing() -> None:
    cluster = MemoryCluster(now=Clock().at)
    ran = submit("--image", "i", "--dry-run", *COMMAND, cluster=cluster)
    assert yaml.safe_load(ran.stdout)["kind"] == "GPUJob"
    assert "Unsatisfiable" in ran.stderr, "there are no nodes"
    assert cluster.created == []
    as_json = submit("--image", "i", "--dry-run", "-o", "json", *COMMAND)
    assert json.loads(as_json.stdout)["kind"] == "GPUJob"


def test_the_operators_first_word_is_printed() -> None:
    def answer(cluster: MemoryCluster, reads: int) -> None:
        if reads == 2:
            status = {"summary": {"reason": "InsufficientCapacity: needs 20 GiB"}}
            cluster.held = [job(name="mine", status=status)]

    cluster = MemoryCluster(before_read=answer)
    ran = submit("mine", "--image", "i", *COMMAND, cluster=cluster)
    assert ran.stdout.splitlines() == [
        "gpujob/mine created: InsufficientCapacity: needs 20 GiB",
        "log: kubectl gpujob logs -f mine -n vision",
    ]


def test_the_place_is_known_from_the_pod_before_the_status() -> None:
    metadata = {"name": "mine-1-0", "annotations": {"gpujob.dev/gpus": "GPU-1"}}
    pod = {"metadata": metadata, "spec": {"nodeName": "n0"}}
    ran = submit("mine", "--image", "i", *COMMAND, cluster=MemoryCluster(pod_list=[pod]))
    assert "gpujob/mine created: starts on n0 (GPU-1)" in ran.stdout


def test_an_operator_that_does_not_answer_is_told() -> None:
    ran = submit("mine", "--image", "i", *COMMAND)
    assert "has not answered within 5 s; is it running?" in ran.stdout
    assert ran.exit_code == 0


def test_wait_has_the_exit_code_of_the_job() -> None:
    def fail(cluster: MemoryCluster, reads: int) -> None:
        if reads > 2:
            cluster.held = [job(name="mine", status={"phase": "Failed"})]

    cluster = MemoryCluster(before_read=fail)
    assert submit("mine", "--image", "i", "--wait", *COMMAND, cluster=cluster).exit_code == 3


# -- a folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    (tmp_path / "train.py").write_text("print(1)")
    (tmp_path / "data" / "a.bin").write_bytes(b"\x00\xff")
    (tmp_path / ".secret").write_text("x")
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "train.pyc").write_bytes(b"x")
    return tmp_path


def test_a_folder_is_read_without_hidden_files_and_caches(folder: Path) -> None:
    found = source.read_folder(folder)
    assert dict(found.files) == {"data/a.bin": b"\x00\xff", "train.py": b"print(1)"}
    assert (found.hidden, found.size_bytes) == (2, 10)


def test_an_executable_stays_executable(folder: Path) -> None:
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    spec = made("--dir", str(folder), *COMMAND)["spec"]
    [volume] = [one for one in spec["template"]["spec"]["volumes"] if "configMap" in one]
    modes = {item["path"]: item.get("mode") for item in volume["configMap"]["items"]}
    assert modes == {"data/a.bin": None, "run.sh": 0o755, "train.py": None}


def test_a_link_that_stays_behind_is_named(folder: Path) -> None:
    (folder / "link.py").symlink_to("train.py")
    (folder / "linked").symlink_to("data")
    (folder / "broken").symlink_to("nothing")
    (folder / "outside").symlink_to("/etc/hostname")
    ran = submit("--image", "i", "--dir", str(folder), *COMMAND)
    assert ran.exit_code == 0
    words = "links to folders, to nothing and out of --dir stay behind: broken, linked, outside\n"
    assert words in ran.stderr
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    found = source.read_folder(folder)
    assert found.links == ("broken", "linked", "outside")
    assert found.files["link.py"] == b"print(1)"


def test_a_repository_leaves_out_what_git_ignores(folder: Path) -> None:
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    (folder / ".gitignore").write_text("data/\n")
    assert list(source.read_folder(folder).files) == ["train.py"]


def test_the_folder_becomes_the_jobs_own_config_map(folder: Path) -> None:
    cluster = MemoryCluster()
    ran = submit("mine", "--image", "i", "--dir", str(folder), *COMMAND, cluster=cluster)
    assert ran.exit_code == 0
    files, manifest = cluster.created
    assert (files["kind"], files["metadata"]["name"]) == ("ConfigMap", "mine")
    pod = manifest["spec"]["template"]["spec"]
    [volume] = [one for one in pod["volumes"] if "configMap" in one]
    paths = {item["path"]: item["key"] for item in volume["configMap"]["items"]}
    assert base64.b64decode(files["binaryData"][paths["data/a.bin"]]) == b"\x00\xff"
    assert pod["containers"][0]["workingDir"] == source.WORKSPACE
    [(kind, name, patch)] = cluster.patched
    owner = {"apiVersion": "gpujob.dev/v1alpha1", "kind": "GPUJob", "name": "mine", "uid": "uid-1"}
    assert (kind, name, patch) == (
        "configmap",
        "mine",
        {"metadata": {"ownerReferences": [owner]}},
    )
    assert "2 hidden files" in ran.stderr


MAPS = "/api/v1/namespaces/vision/configmaps/mine"
JOBS = "/apis/gpujob.dev/v1alpha1/namespaces/vision/gpujobs/mine"


@pytest.mark.parametrize(
    ("fails_at", "left"), [("configmaps", []), ("gpujobs", [MAPS]), ("configmap", [JOBS, MAPS])]
)
def test_nothing_stays_behind_when_a_step_fails(
    fails_at: str, left: list[str], folder: Path
) -> None:
    cluster = MemoryCluster(fails_at=fails_at)
    if fails_at == "configmap":
        cluster.fails_at = ""
        cluster.patch = refuse  # type: ignore[method-assign]
    ran = submit("mine", "--image", "i", "--dir", str(folder), *COMMAND, cluster=cluster)
    assert ran.exit_code == 1
    assert cluster.deleted == left


def refuse(kind: str, name: str, patch: Any) -> Any:
    del patch
    raise UserError(f"{kind} {name}: forbidden")


def test_a_large_folder_is_refused_with_its_numbers(folder: Path) -> None:
    (folder / "model.bin").write_bytes(b"x" * 1024 * 1024)
    with pytest.raises(UserError, match=r"1024 KiB, more than 900; .* model.bin, 1024 KiB.*--data"):
        source.read_folder(folder)
    (folder / "model.bin").unlink()
    for number in range(source.FILES_MAX):
        (folder / f"f{number}").touch()
    with pytest.raises(UserError, match="has 502 files, more than 500"):
        source.read_folder(folder)


def test_an_empty_folder_and_a_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no files"):
        source.read_folder(tmp_path)
    (tmp_path / "a").touch()
    with pytest.raises(UserError, match="is not a folder"):
        source.read_folder(tmp_path / "a")
