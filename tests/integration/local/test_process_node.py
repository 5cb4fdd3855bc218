"""Process nodes do with pods what a kubelet does: real scheduler, API server and processes."""

import base64
import json
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from gpujob_api.settings import HOOK_FOLDER
from gpujob_local.cluster.cluster import ClusterOptions, LocalCluster, NodeOptions
from gpujob_local.control_plane.api_client import ApiClient
from gpujob_local.processes.watchdog import marked_processes as processes_with
from tests.harness.cluster import StartCluster
from tests.harness.pods import IGNORE_TERM, IMAGE, Pods, phase, pod, state, wait_log

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

READY_THEN_WAIT = "print('up'); import signal; signal.pause()"


@pytest.fixture(scope="module")
def cluster(local_cluster: StartCluster) -> LocalCluster:
    nodes = (
        NodeOptions("node-1", cards=2),
        NodeOptions("node-2", cards=1, spot=True),
        NodeOptions("node-3", cards=0, gpus=("GPU-a", "GPU-b")),
    )
    return local_cluster(ClusterOptions(nodes=nodes, agents=False, operator=False))


@pytest.fixture
def pods(cluster: LocalCluster) -> Generator[Pods]:
    yield Pods(cluster.client())
    client = cluster.client()
    client.delete("/api/v1/namespaces/default/pods?gracePeriodSeconds=0")


def bound_to(node: str, body: dict[str, Any]) -> dict[str, Any]:
    body["spec"]["nodeName"] = node
    return body


def claim(client: ApiClient, name: str) -> None:
    spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    body = {"metadata": {"name": name}, "spec": spec}
    client.create("/api/v1/namespaces/default/persistentvolumeclaims", body)


def test_nodes_say_what_they_are(cluster: LocalCluster) -> None:
    node = cluster.client().get("/api/v1/nodes/node-2")
    labels = node["metadata"]["labels"]
    assert labels["gpujob.dev/managed"] == "true"
    assert labels["gpujob.dev/spot"] == "true"
    assert labels["kubernetes.io/hostname"] == "node-2"
    assert node["status"]["allocatable"]["pods"] == "110"
    lease = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/node-2"
    assert cluster.client().get(lease)["spec"]["holderIdentity"] == "node-2"


def test_cuda_shows_a_process_the_gpus_of_its_pod_only(cluster: LocalCluster, pods: Pods) -> None:
    script = "import os; print(os.environ['CUDA_VISIBLE_DEVICES'])"

    def shown(name: str, node: str, devices: str) -> str:
        # What a user writes does not reach another pod's GPU.
        values = {"NVIDIA_VISIBLE_DEVICES": devices, "CUDA_VISIBLE_DEVICES": "0"}
        env = [{"name": key, "value": value} for key, value in values.items()]
        pods.create(bound_to(node, pod(name, script, container={"env": env})))
        pods.wait_phase(name, "Succeeded")
        return cluster.kubectl("logs", name).stdout.strip()

    assert cluster.cards("node-3") == ["GPU-a", "GPU-b"]
    assert shown("one-gpu", "node-3", "GPU-b") == "GPU-b"
    assert shown("both-gpus", "node-3", "GPU-a,GPU-b") == "GPU-a,GPU-b"
    assert shown("no-gpu", "node-3", "void") == ""
    assert shown("a-card", "node-1", cluster.cards("node-1")[0]) == ""


def test_exit_code_message_and_logs(cluster: LocalCluster, pods: Pods) -> None:
    script = (
        "import os, sys; print('out', os.environ['GREETING']); print('err', file=sys.stderr);"
        "open(os.environ['FILE'], 'w').write('the end'); sys.exit(7)"
    )
    env = [
        {"name": "WHO", "value": "world"},
        {"name": "GREETING", "value": "hello $(WHO) $$(WHO) $(NOBODY)"},
        {"name": "FILE", "value": "/dev/termination-log"},
    ]
    pods.create(pod("exit-seven", script, container={"env": env}))
    item = pods.wait_phase("exit-seven", "Failed")
    ended = state(item)["terminated"]
    assert (ended["exitCode"], ended["reason"], ended["message"]) == (7, "Error", "the end")
    assert item["status"]["podIP"].startswith("127.")
    lines = cluster.kubectl("logs", "exit-seven").stdout.splitlines()
    assert sorted(lines) == ["err", "out hello world $(WHO) $(NOBODY)"]
    assert cluster.kubectl("logs", "exit-seven", "--tail=1").stdout in ("err\n", lines[0] + "\n")


def test_processes_have_the_environment_of_the_workers_image(
    cluster: LocalCluster, pods: Pods
) -> None:
    """Whatever the command is: the hook is in force where nothing says otherwise."""
    script = "import os; print([os.path.isdir(one) for one in os.environ['PYTHONPATH'].split(':')])"
    hooked = "import sys; print('gpujob_startup' in sys.modules)"
    both = {"name": "PYTHONPATH", "value": f"/elsewhere:{HOOK_FOLDER}"}
    pods.create(pod("as-it-is", script))
    pods.create(pod("with-its-own", script, container={"env": [both]}))
    pods.create(pod("hooked", hooked))
    pods.create(
        pod("without", hooked, container={"env": [{"name": "PYTHONPATH", "value": "/elsewhere"}]})
    )
    said = {"as-it-is": "[True]", "with-its-own": "[False, True]"}
    said |= {"hooked": "True", "without": "False"}
    for name, line in said.items():
        pods.wait_phase(name, "Succeeded")
        assert cluster.kubectl("logs", name).stdout == f"{line}\n"


def test_success_goes_through_running(cluster: LocalCluster, pods: Pods, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    script = f"import os, time\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.01)"
    pods.create(pod("succeeds", script))
    item = pods.wait_phase("succeeds", "Running")
    conditions = {entry["type"]: entry["status"] for entry in item["status"]["conditions"]}
    assert conditions["Ready"] == "True"
    assert conditions["PodScheduled"] == "True"
    gate.touch()
    item = pods.wait_phase("succeeds", "Succeeded")
    assert state(item)["terminated"]["reason"] == "Completed"
    conditions = {entry["type"]: entry for entry in item["status"]["conditions"]}
    assert conditions["Ready"]["reason"] == "PodCompleted"


def test_logs_are_followed_to_the_end(cluster: LocalCluster, pods: Pods) -> None:
    script = "import time\nfor i in range(5): print(i, flush=True); time.sleep(0.1)"
    pods.create(pod("counts", script))
    pods.wait_phase("counts", "Running", "Succeeded")
    assert cluster.kubectl("logs", "--follow", "counts").stdout.split() == list("01234")


def test_delete_sends_term_and_waits_for_the_program(cluster: LocalCluster, pods: Pods) -> None:
    script = (
        "import os, signal, sys\n"
        "def stop(*_):\n"
        "    open('/dev/termination-log', 'w').write('saved'); sys.exit(143)\n"
        "signal.signal(signal.SIGTERM, stop); print('up')\nwhile True: signal.pause()"
    )
    body = pod("stops-well", script)
    # Keeps the object after the node has let it go, so that its last state can be read.
    body["metadata"]["finalizers"] = ["gpujob.dev/test"]
    pods.create(body)
    wait_log(cluster, "stops-well", "up")
    pods.delete("stops-well", grace_seconds=20)
    ended = state(pods.wait_phase("stops-well", "Failed"))["terminated"]
    assert (ended["exitCode"], ended["message"]) == (143, "saved")
    path = "/api/v1/namespaces/default/pods/stops-well"
    cluster.client().merge(path, {"metadata": {"finalizers": None}})
    pods.wait_gone("stops-well")


def test_a_program_that_ignores_term_is_killed_after_its_grace(
    cluster: LocalCluster, pods: Pods
) -> None:
    uid = pods.create(pod("ignores-term", IGNORE_TERM))["metadata"]["uid"]
    wait_log(cluster, "ignores-term", "up")
    begin = time.monotonic()
    pods.delete("ignores-term", grace_seconds=2)
    pods.wait_gone("ignores-term")
    assert time.monotonic() - begin > 1.9
    assert processes_with(f"GPUJOB_LOCAL_CONTAINER={uid}/worker") == []


def test_a_forced_delete_ends_the_process_too(cluster: LocalCluster, pods: Pods) -> None:
    uid = pods.create(pod("forced", IGNORE_TERM))["metadata"]["uid"]
    wait_log(cluster, "forced", "up")
    pods.delete("forced", grace_seconds=0)
    pods.wait_gone("forced")
    deadline = time.monotonic() + 60
    while processes_with(f"GPUJOB_LOCAL_CONTAINER={uid}/worker"):
        assert time.monotonic() < deadline, "the process outlived its pod"
        time.sleep(0.05)


def test_children_end_with_the_main_process(pods: Pods) -> None:
    script = (
        "import subprocess, sys; subprocess.Popen([sys.executable, '-c', "
        "'import signal; signal.pause()'], start_new_session=True)"
    )
    uid = pods.create(pod("leaves-child", script))["metadata"]["uid"]
    pods.wait_phase("leaves-child", "Succeeded")
    assert processes_with(f"GPUJOB_LOCAL_CONTAINER={uid}/worker") == []


def test_a_killed_process_shows_137(cluster: LocalCluster, pods: Pods) -> None:
    pods.create(pod("killed", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"))
    item = pods.wait_phase("killed", "Failed")
    assert state(item)["terminated"]["exitCode"] == 137


def test_the_token_is_for_its_audience_and_its_pod(cluster: LocalCluster, pods: Pods) -> None:
    script = "import os; print(open(os.environ['TOKEN']).read())"
    source = {"path": "token", "audience": "gpujob", "expirationSeconds": 600}
    volume = {"name": "token", "projected": {"sources": [{"serviceAccountToken": source}]}}
    container = {
        "env": [{"name": "TOKEN", "value": "/var/run/gpujob/token"}],
        "volumeMounts": [{"name": "token", "mountPath": "/var/run/gpujob"}],
    }
    pods.create(pod("has-token", script, container=container, volumes=[volume]))
    pods.wait_phase("has-token", "Succeeded")
    token = cluster.kubectl("logs", "has-token").stdout.strip()
    payload = token.split(".")[1]
    claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    assert claims["aud"] == ["gpujob"]
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview"}
    spec = {"token": token, "audiences": ["gpujob"]}
    path = "/apis/authentication.k8s.io/v1/tokenreviews"
    answer = cluster.client().create(path, review | {"spec": spec})
    extra = answer["status"]["user"]["extra"]
    assert answer["status"]["authenticated"]
    assert extra["authentication.kubernetes.io/pod-name"] == ["has-token"]


def test_a_claim_is_one_folder_on_all_nodes(cluster: LocalCluster, pods: Pods) -> None:
    claim(cluster.client(), "shared")
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "shared"}}]
    mounts = {"volumeMounts": [{"name": "data", "mountPath": "/data"}]}
    writer = pod("writes", "open('/data/file', 'w').write('42')", container=mounts, volumes=volumes)
    pods.create(bound_to("node-1", writer))
    pods.wait_phase("writes", "Succeeded")
    reader = pod("reads", "print(open('/data/file').read())", container=mounts, volumes=volumes)
    pods.create(bound_to("node-2", reader))
    pods.wait_phase("reads", "Succeeded")
    assert cluster.kubectl("logs", "reads").stdout == "42\n"
    assert (cluster.volume("shared") / "file").read_text() == "42"


def test_files_from_config_maps_and_the_downward_api(cluster: LocalCluster, pods: Pods) -> None:
    path = "/api/v1/namespaces/default/configmaps"
    body = {
        "metadata": {"name": "settings"},
        "data": {"a.txt": "from a file", "key": "from env"},
        "binaryData": {"bytes": "AP8="},
    }
    cluster.client().create(path, body)
    items = [{"key": "a.txt", "path": "a.txt"}, {"key": "bytes", "path": "bytes", "mode": 0o755}]
    volumes = [
        {"name": "config", "configMap": {"name": "settings", "items": items}},
        {
            "name": "info",
            "downwardAPI": {
                "items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]
            },
        },
    ]
    reference = {"name": "settings", "key": "key"}
    container = {
        "env": [{"name": "KEY", "valueFrom": {"configMapKeyRef": reference}}],
        "volumeMounts": [
            {"name": "config", "mountPath": "/etc/config"},
            {"name": "info", "mountPath": "/etc/info"},
        ],
    }
    script = (
        "import os; print(open('/etc/config/a.txt').read(), '|', os.environ['KEY'], '|',"
        "open('/etc/info/name').read(), '|', list(open('/etc/config/bytes', 'rb').read()), '|',"
        "[oct(os.stat('/etc/config/' + name).st_mode)[-3:] for name in ('a.txt', 'bytes')])"
    )
    pods.create(pod("reads-files", script, container=container, volumes=volumes))
    pods.wait_phase("reads-files", "Succeeded")
    text = cluster.kubectl("logs", "reads-files").stdout
    assert text == "from a file | from env | reads-files | [0, 255] | ['600', '700']\n"


def test_pods_of_a_headless_service_are_found_by_name(cluster: LocalCluster, pods: Pods) -> None:
    """As a cluster's DNS would; it is told where the name can be had, and waited for."""
    name = "worker-0.gang.default.svc"
    script = "import os, sys; print(os.environ['MASTER'], sys.argv[1])"
    body = pod("asks", script, container={"env": [{"name": "MASTER", "value": name}]})
    body["spec"]["containers"][0]["args"] = [f"http://{name}.cluster.local:80/"]
    pods.create(bound_to("node-2", body))

    def waits_for(message: str) -> Any:
        def check(item: dict[str, Any]) -> bool:
            return message in state(item).get("waiting", {}).get("message", "")

        return check

    pods.wait("asks", waits_for('service "gang" not found'), "no service yet")
    spec = {"clusterIP": "None", "selector": {"app": "gang"}, "publishNotReadyAddresses": True}
    path = "/api/v1/namespaces/default/services"
    cluster.client().create(path, {"metadata": {"name": "gang"}, "spec": spec})
    pods.wait("asks", waits_for("has no address yet"), "no such pod yet")
    answers = pod("answers", READY_THEN_WAIT, hostname="worker-0", subdomain="gang")
    answers["metadata"]["labels"] = {"app": "gang"}
    pods.create(bound_to("node-1", answers))
    address = pods.wait_phase("answers", "Running")["status"]["podIP"]
    pods.wait_phase("asks", "Succeeded")
    assert cluster.kubectl("logs", "asks").stdout.split() == [address, f"http://{address}:80/"]
    cluster.client().delete(f"{path}/gang")


def test_gpus_pin_the_process_to_their_core(cluster: LocalCluster, pods: Pods) -> None:
    card = cluster.cards("node-1")[0]
    script = "import os; print(len(os.sched_getaffinity(0)), os.environ['OMP_NUM_THREADS'])"
    env = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": card}]
    pods.create(bound_to("node-1", pod("on-card", script, container={"env": env})))
    pods.wait_phase("on-card", "Succeeded")
    assert cluster.kubectl("logs", "on-card").stdout == "1 1\n"
    env = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "CPU-of-nobody"}]
    pods.create(bound_to("node-1", pod("no-such-card", script, container={"env": env})))
    ended = state(pods.wait_phase("no-such-card", "Failed"))["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (128, "StartError")
    assert "CPU-of-nobody" in ended["message"]


def test_what_cannot_start_says_why(cluster: LocalCluster, pods: Pods) -> None:
    pods.create(pod("no-program", "", container={"command": ["no-such-program"]}))
    ended = state(pods.wait_phase("no-program", "Failed"))["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (128, "StartError")
    assert '"no-such-program": executable file not found' in ended["message"]

    def waits_for(reason: str) -> Any:
        def check(item: dict[str, Any]) -> bool:
            return state(item).get("waiting", {}).get("reason") == reason

        return check

    pods.create(pod("no-image", "", container={"image": "somewhere/else:1"}))
    item = pods.wait("no-image", waits_for("ErrImagePull"), "ErrImagePull")
    assert "somewhere/else:1" in state(item)["waiting"]["message"]
    missing = [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "none", "key": "a"}}}]
    pods.create(pod("no-secret", "", container={"env": missing}))
    reason = "CreateContainerConfigError"
    item = pods.wait("no-secret", waits_for(reason), reason)
    assert state(item)["waiting"]["message"] == 'secret "none" not found'
    assert phase(item) == "Pending"
    probe = {"livenessProbe": {"exec": {"command": ["true"]}}}
    pods.create(pod("has-probe", "", container=probe))
    item = pods.wait_phase("has-probe", "Failed")
    assert "spec.containers[0].livenessProbe" in item["status"]["message"]


def test_init_containers_come_first_and_failures_are_retried(
    cluster: LocalCluster, pods: Pods
) -> None:
    volumes = [{"name": "shared", "emptyDir": {}}]
    mounts = [{"name": "shared", "mountPath": "/shared"}]
    first = {
        "name": "first",
        "image": IMAGE,
        "command": ["python", "-c", "open('/shared/order', 'a').write('init ')"],
        "volumeMounts": mounts,
    }
    script = (
        "import sys; text = open('/shared/order').read(); print(text);"
        "open('/shared/order', 'a').write('try '); sys.exit(0 if 'try' in text else 1)"
    )
    body = pod(
        "retries",
        script,
        container={"volumeMounts": mounts},
        volumes=volumes,
        initContainers=[first],
        restartPolicy="OnFailure",
    )
    pods.create(body)
    item = pods.wait_phase("retries", "Succeeded")
    assert item["status"]["containerStatuses"][0]["restartCount"] == 1
    assert item["status"]["initContainerStatuses"][0]["state"]["terminated"]["exitCode"] == 0
    assert cluster.kubectl("logs", "retries").stdout.split() == ["init", "init", "try"]


def test_active_deadline_ends_the_pod(pods: Pods) -> None:
    pods.create(pod("too-long", READY_THEN_WAIT, activeDeadlineSeconds=1))
    item = pods.wait_phase("too-long", "Failed")
    assert item["status"]["reason"] == "DeadlineExceeded"


def test_a_node_that_restarts_reports_its_lost_pods(cluster: LocalCluster, pods: Pods) -> None:
    pods.create(bound_to("node-1", pod("earlier", "")))
    pods.wait_phase("earlier", "Succeeded")
    pods.create(bound_to("node-1", pod("lost", READY_THEN_WAIT)))
    address = pods.wait_phase("lost", "Running")["status"]["podIP"]
    cluster.kill_node("node-1")
    cluster.start_node("node-1")
    item = pods.wait_phase("lost", "Failed")
    ended = state(item)["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (137, "ContainerStatusUnknown")
    assert item["status"]["podIP"] == address


def test_pods_go_on_while_the_api_server_is_away(
    cluster: LocalCluster, pods: Pods, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    script = (
        f"import os, time; print('up')\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.01)\n"
        "print('done')"
    )
    uid = pods.create(pod("goes-on", script))["metadata"]["uid"]
    wait_log(cluster, "goes-on", "up")
    plane = cluster.control_plane
    plane.stop_component("kube-apiserver")
    gate.touch()
    deadline = time.monotonic() + 60
    while processes_with(f"GPUJOB_LOCAL_CONTAINER={uid}/worker"):
        assert time.monotonic() < deadline, "the program did not end during the outage"
        time.sleep(0.05)
    plane.start_component("kube-apiserver")
    plane.wait_until(plane.ready, "kube-apiserver")
    assert state(pods.wait_phase("goes-on", "Succeeded"))["terminated"]["exitCode"] == 0
    assert cluster.kubectl("logs", "goes-on").stdout == "up\ndone\n"
