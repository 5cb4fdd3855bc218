"""kubectl gpujob's questions against a real API server, beside the operator that it speaks for."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpujob_api.quantities import GIB
from tests.harness.operator_process import account_kubeconfig
from tests.harness.stage import OURS, Stage

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("kubectl_in_path")]
Json = dict[str, Any]


def simulate(stage: Stage, *arguments: str, kubeconfig: Path | None = None) -> tuple[int, str, str]:
    return ask(stage, "simulate", *arguments, kubeconfig=kubeconfig)


def ask(stage: Stage, *arguments: str, kubeconfig: Path | None = None) -> tuple[int, str, str]:
    """Exit code, standard output, standard error."""
    command = [sys.executable, "-m", "kubectl_gpujob", *arguments]
    place = ["-n", stage.namespace, "--kubeconfig", str(kubeconfig or stage.plane.kubeconfig)]
    done = subprocess.run([*command, *place], capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout, done.stderr


def answered(stage: Stage, processes: list[Json], *arguments: str) -> Json:
    # The agent of this stage is the test: its last reading must not be old.
    stage.measure(processes)
    code, output, errors = simulate(stage, *arguments, "-o", "json")
    assert code == 0, errors
    return json.loads(output)


def job_file(stage: Stage, name: str, **spec: Any) -> str:
    worker = {"name": "worker", "image": "image:1", "command": ["train", name]}
    body: Json = {
        "apiVersion": "gpujob.dev/v1alpha1",
        "kind": "GPUJob",
        "metadata": {"name": name},
        "spec": {"template": {"spec": {"containers": [worker]}}, **spec},
    }
    path = stage.folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(body))
    return str(path)


def versions(stage: Stage) -> list[tuple[str, str]]:
    """Of everything that simulate reads and could have written. The namespaces of other tests may
    still be on their way out."""
    paths = [stage.jobs_path, stage.pods_path, f"{OURS}/gpuqueues", f"{OURS}/gpuprofiles"]
    items = [item for path in paths for item in stage.client.get(path)["items"]]
    found = [item["metadata"] for item in items]
    here = [one for one in found if one.get("namespace", stage.namespace) == stage.namespace]
    return [(one["name"], one["resourceVersion"]) for one in here]


def test_what_is_simulated_is_what_the_operator_then_does(stage: Stage) -> None:
    """A job that fits: the same node, GPU and words. One that does not: the same reason."""
    operator = stage.operator()
    operator.wait_for("leadership changed", leads=True)
    whole = {"sharing": {"mode": "Exclusive"}}
    first = answered(stage, [], "-f", job_file(stage, "first", **whole))["jobs"][0]
    stage.apply_job("first", **whole)
    stage.wait(lambda: stage.pod_names() == ["first-1-0"], "the pod exists")
    stage.wait(lambda: "status" in stage.job("first"), "the job says where")
    status = stage.job("first")["status"]
    assert first["startsSeconds"] == 0
    assert places(first["placements"][0]["placement"]) == places(status["placement"])
    assert first["placements"][0]["reservation"] == status["reservation"]
    assert first["placements"][0]["message"] == _scheduled(status)["message"]

    stage.run_pod("first-1-0")
    stage.wait_phase("Running", "first")
    pod = stage.pods()[0]["metadata"]["uid"]
    work = [{"pid": 7, "memoryBytes": 2 * GIB, "podUid": pod}]
    stage.measure(work)
    stage.wait(lambda: "measurement" in stage.job("first")["status"], "the job is measured")
    # Nobody else writes meanwhile.
    assert operator.stop() == 0
    before = versions(stage)
    path = job_file(stage, "second", **whole)
    found = answered(stage, work, "-f", path, "--horizon", "10m")
    second = found["jobs"][0]
    assert second["startsSeconds"] is None
    assert found["others"] == []
    more = answered(stage, work, "-f", path, "--add-nodes", f"{stage.node}=1")["jobs"][0]
    added = more["placements"][0]["placement"]["workers"][0]
    assert added["node"] == f"{stage.node}-what-if-0"
    assert versions(stage) == before, "a question was written"
    operator = stage.operator()
    operator.wait_for("leadership changed", leads=True)
    stage.apply_job("second", **whole)
    stage.wait(lambda: bool(stage.job("second").get("status")), "the operator has answered")
    condition = _scheduled(stage.job("second")["status"])
    assert second["waits"][0]["reason"] == condition["reason"] == "InsufficientCapacity"
    assert second["waits"][0]["message"] == condition["message"]
    assert operator.stop() == 0


def _scheduled(status: Json) -> Json:
    return next(one for one in status["conditions"] if one["type"] == "Scheduled")


def test_a_place_is_accounted_for_from_its_cycle_and_from_the_cluster(stage: Stage) -> None:
    dumps = stage.folder / "dumps"
    operator = stage.operator(f"--dump-directory={dumps}", "--dump-every")
    operator.wait_for("leadership changed", leads=True)
    stage.apply_job("here")
    stage.wait(lambda: stage.pod_names() == ["here-1-0"], "the pod exists")
    stage.run_pod("here-1-0")
    stage.wait_phase("Running", "here")
    assert operator.stop() == 0
    placement = places(stage.job("here")["status"]["placement"])
    dump = next(path for path in sorted(dumps.iterdir()) if placed_in(path, "here"))
    then = answer_of(stage, "why", "here", "--from", str(dump))
    assert (then["decidedHere"], places(then["chosen"]["placement"])) == (True, placement)
    assert then["chosen"]["costs"][0]["total"] > 0
    stage.measure([])
    now = answer_of(stage, "why", "here", "--places")
    assert (now["decidedHere"], places(now["chosen"]["placement"])) == (False, placement)
    assert places(now["best"][0]["placement"]) == placement
    again = answer_of(stage, "simulate", "--from", str(dump))
    assert places(again["jobs"][0]["placements"][0]["placement"]) == placement


def places(placement: Json) -> Json:
    """A placement with its defaults, and without the UIDs of its pods, which come later."""
    workers = [
        {name: one for name, one in worker.items() if name != "podUid"}
        for worker in placement["workers"]
    ]
    return {"spot": False, **placement, "workers": workers}


def placed_in(dump: Path, name: str) -> bool:
    """Whether the dumped cycle gives the job its place."""
    items = json.loads(dump.read_text())["plan"]["items"]
    mine = [one for one in items if one.get("job", {}).get("metadata", {}).get("name") == name]
    return any(one["status"].get("placement") for one in mine if one["kind"] == "WriteStatus")


def answer_of(stage: Stage, *arguments: str) -> Json:
    code, output, errors = ask(stage, *arguments, "-o", "json")
    assert code == 0, errors
    return json.loads(output)


def test_the_operators_configuration_is_that_of_the_charts_configmap(stage: Stage) -> None:
    """As the chart writes it; without it, and once it is there."""
    assert "(all defaults: no operator's configuration was found)" in simulate(stage)[1]
    path = "/api/v1/namespaces/default/configmaps"
    labels = {"app.kubernetes.io/name": "gpujob", "app.kubernetes.io/component": "operator"}
    metadata = {"name": "gpujob-configuration", "labels": labels}
    data = {"configuration.yaml": "queueOrder: none"}
    stage.client.create(path, {"metadata": metadata, "data": data})
    try:
        code, _, errors = simulate(stage)
    finally:
        stage.client.delete(f"{path}/gpujob-configuration")
    assert code == 1
    assert "default/gpujob-configuration: configuration.queueOrder: is an unknown" in errors


def test_what_may_not_be_read_or_is_wrong_is_one_line(stage: Stage) -> None:
    code, output, errors = simulate(stage, "-f", job_file(stage, "bad", workers=0))
    assert (code, output) == (1, "")
    assert errors.startswith(f"error: {stage.folder}/bad.yaml: spec.workers: ")
    code, output, errors = simulate(stage, "nobody")
    assert (code, output) == (1, "")
    assert errors == f"error: not found: gpujob nobody in namespace {stage.namespace}\n"
    # An agent may read next to nothing.
    agent = account_kubeconfig(stage.plane, "agent", stage.folder)
    code, output, errors = simulate(stage, kubeconfig=agent)
    assert (code, output) == (1, "")
    assert errors.startswith("error: you may not use gpujobs of all namespaces (403 Forbidden): ")
    code, output, errors = simulate(stage, kubeconfig=stage.folder / "nowhere")
    assert (code, output) == (1, "")
    assert "nowhere" in errors
    assert len(errors.splitlines()) == 1


def test_what_the_api_server_refuses_is_refused_with_its_words(stage: Stage) -> None:
    """And asking writes nothing."""
    before = versions(stage)
    for number, (field, value, words) in enumerate(
        (
            ("gpuMemory", "1Gi", 'strict decoding error: unknown field "spec.gpuMemory"'),
            ("priority", 10**7, "spec.priority: Invalid value: 10000000"),
            ("sharing", {"mode": "Off"}, "spec.sharing.mode: Unsupported value"),
        )
    ):
        path = job_file(stage, f"refused-{number}", **{field: value})
        code, output, errors = simulate(stage, "-f", path)
        assert (code, output) == (1, "")
        assert errors.startswith(f"error: {path}: ")
        assert words in errors
        applied = stage.plane.kubectl(
            *("apply", "-n", stage.namespace, "--dry-run=server", "-f", path), check=False
        )
        assert words in applied.stderr
    path = job_file(stage, "template")
    text = Path(path).read_text().replace("command:", "comand:")
    Path(path).write_text(text)
    unknown = 'unknown field "spec.template.spec.containers[0].comand"'
    assert unknown in simulate(stage, "-f", path)[2]
    assert simulate(stage, "-f", job_file(stage, "good"))[0] == 0
    assert versions(stage) == before
