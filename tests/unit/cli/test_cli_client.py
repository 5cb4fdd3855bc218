"""GPUJobs from Python: the same rules as the commands, as objects and exceptions."""

import ast
import json
from typing import Any

import pytest

from kubectl_gpujob.client import Client, JobFailedError, JobTimeoutError
from kubectl_gpujob.errors import UsageError, UserError
from tests.harness.cli_jobs import MemoryCluster, job, succeeded_status
from tests.harness.repository import ROOT


def pod() -> dict[str, Any]:
    return {
        "metadata": {
            "name": "resnet50-1-0",
            "namespace": "vision",
            "labels": {"gpujob.dev/attempt": "1", "gpujob.dev/rank": "0"},
        },
        "spec": {"nodeName": "n0", "containers": [{"name": "worker"}]},
        "status": {"containerStatuses": [{"name": "worker", "state": {"terminated": {}}}]},
    }


def test_submit_has_the_options_of_the_command() -> None:
    cluster = MemoryCluster()
    made = Client(cluster=cluster).submit(
        "python train.py --name 'two words'", name="mine", image="i", gpus="2:H100",
        memory="20Gi", claim="c", data={"datasets": "/data"}, env={"A": "b c"}, spot="never",
    )  # fmt: skip
    assert made.name == "mine"
    [manifest] = cluster.created
    spec = manifest["spec"]
    [container] = spec["template"]["spec"]["containers"]
    assert container["command"] == ["python", "train.py", "--name", "two words"]
    assert container["env"] == [{"name": "A", "value": "b c"}]
    assert (spec["gpusPerWorker"], spec["gpu"]["models"]) == (2, ["H100"])


def test_errors_are_exceptions_with_the_whole_message() -> None:
    client = Client(cluster=MemoryCluster(refuses="spec.gpu.memory: Invalid value"))
    with pytest.raises(UserError, match=r"--memory: spec\.gpu\.memory: Invalid value"):
        client.submit(["true"], image="i", memory="1GB")
    with pytest.raises(UsageError, match="--gpus"):
        client.submit(["true"], image="i", gpus="H100:0")
    with pytest.raises(UsageError, match="wrong arguments"):
        client.submit(["true"], image="i", spot="sometimes")
    with pytest.raises(UserError, match="not found: gpujob nix"):
        client.job("nix")


def test_a_jobs_state_is_read_anew() -> None:
    cluster = MemoryCluster([job()])
    found = Client(cluster=cluster).job("resnet50")
    assert (found.status, found.progress, found.succeeded) == ("Pending", "-", False)
    cluster.held = [job(status=succeeded_status())]
    assert (found.status, found.succeeded) == ("Succeeded", True)
    assert found.report()["speedup"]["ratio"] == 1.84
    assert found.why()["phase"] == "Succeeded"
    assert [one.name for one in Client(cluster=cluster).jobs()] == ["resnet50"]


def test_logs_are_lines_as_they_come() -> None:
    held = job(status={"phase": "Succeeded", "attempt": 1})
    logs = {"resnet50-1-0": "one\ntwo\n"}
    cluster = MemoryCluster([held], pod_list=[pod()], logs=logs)
    found = Client(cluster=cluster).job("resnet50")
    assert list(found.logs()) == ["one", "two"]
    assert list(found.logs(follow=False)) == ["one", "two"]
    with pytest.raises(UserError, match="has no log yet"):
        list(Client(cluster=MemoryCluster([job()])).job("resnet50").logs(follow=False))


def test_wait_returns_or_raises() -> None:
    done = Client(cluster=MemoryCluster([job(status=succeeded_status())])).job("resnet50")
    assert done.wait() is done
    failure = {"failureClass": "UserError", "message": "no such file"}
    failed = job(status={"phase": "Failed", "failure": failure})
    with pytest.raises(JobFailedError, match="resnet50: no such file"):
        Client(cluster=MemoryCluster([failed])).job("resnet50").wait()
    with pytest.raises(JobTimeoutError, match="resnet50 is Pending, not running"):
        Client(cluster=MemoryCluster([job()])).job("resnet50").wait("running", 0.01)


def test_jobs_are_changed() -> None:
    cluster = MemoryCluster([job()])
    found = Client(cluster=cluster).job("resnet50")
    found.suspend()
    found.resume()
    found.cancel()
    assert [patch["spec"]["suspend"] for _, _, patch in cluster.patched] == [True, False]
    assert len(cluster.deleted) == 1


def test_the_notebooks_cells_are_python_that_uses_what_there_is() -> None:
    notebook = json.loads((ROOT / "examples" / "submit.ipynb").read_text(encoding="utf-8"))
    cells = ["".join(one["source"]) for one in notebook["cells"] if one["cell_type"] == "code"]
    used = {
        node.attr
        for cell in cells
        for node in ast.walk(ast.parse(cell))
        if isinstance(node, ast.Attribute)
    }
    known = {*dir(Client), *dir(type(Client(cluster=MemoryCluster([job()])).job("resnet50")))}
    assert used - known == {"get"}, "of the report's dictionary"
