"""What a node's programs are told: rendered from its number alone."""

import tomllib
from pathlib import Path

import pytest
import yaml

from gpujob_local.images.recipes import DNS_IMAGE
from gpujob_local.kubelets import configuration, namespaces
from gpujob_local.kubelets.cluster import ADDONS
from gpujob_local.kubelets.options import DNS_ADDRESS, NODES_MAX, KubeletOptions, NodePlan

FOLDER = Path("/clusters/one/nodes/node-1")
CNI = Path("/usr/lib/cni")


def test_nodes_of_a_cluster_share_nothing() -> None:
    plans = KubeletOptions(nodes=NODES_MAX).plans("one")
    for of in ("name", "address", "pod_range", "link", "cgroup"):
        assert len({getattr(plan, of) for plan in plans}) == NODES_MAX
    # The kernel takes names of interfaces up to 15 characters.
    assert all(len(plan.link) <= 15 for plan in plans)


def test_two_clusters_have_other_control_groups() -> None:
    assert NodePlan("one", 1).cgroup != NodePlan("two", 1).cgroup


@pytest.mark.parametrize("nodes", [0, NODES_MAX + 1])
def test_the_number_of_nodes_is_bounded(nodes: int) -> None:
    with pytest.raises(ValueError, match=rf"1 to {NODES_MAX}; got {nodes}"):
        KubeletOptions(nodes=nodes)


def test_containerd_keeps_all_in_the_nodes_folder_and_torch_comes_from_the_machine() -> None:
    text = configuration.to_toml(configuration.containerd_configuration(FOLDER, CNI))
    read = tomllib.loads(text)
    assert read == configuration.containerd_configuration(FOLDER, CNI)
    paths = [read["root"], read["state"], read["grpc"]["address"], read["ttrpc"]["address"]]
    assert all(path.startswith(f"{FOLDER}/") for path in paths)
    default = {"mounts": [{"destination": "/proc"}]}
    spec = configuration.container_specification(default, Path("/cache/torch"))
    assert [mount["destination"] for mount in spec["mounts"]] == ["/proc", "/torch-packages"]
    assert "ro" in spec["mounts"][1]["options"]
    assert default == {"mounts": [{"destination": "/proc"}]}, "not changed in place"


def test_a_kubelet_asks_the_api_server_who_may_do_what() -> None:
    plan = NodePlan("one", 1)
    serving = (Path("/c.crt"), Path("/c.key"))
    read = configuration.kubelet_configuration(plan, FOLDER, Path("/ca.crt"), serving, 8)
    assert read["authentication"]["anonymous"] == {"enabled": False}
    assert read["authorization"] == {"mode": "Webhook"}
    assert read["cgroupRoot"] == plan.cgroup
    assert read["podLogsDir"].startswith(str(FOLDER)), "kubelets remove logs that they do not know"


def test_pods_of_a_node_have_addresses_of_its_range_and_the_hub_knows_the_way() -> None:
    plan = NodePlan("one", 2)
    network = configuration.network_configuration(plan, FOLDER)
    assert network["plugins"][0]["ipam"]["ranges"] == [[{"subnet": "10.200.2.0/24"}]]
    route = ["ip", "route", "replace", "10.200.2.0/24", "via", "10.199.0.12"]
    assert route in namespaces.cable_commands(plan, 77)
    assert namespaces.cable_commands(plan, 77)[0][-1] == "77"


def test_names_are_served_on_every_node_by_the_image_that_is_built() -> None:
    objects = list(yaml.safe_load_all(ADDONS.read_text()))
    (workload,) = [item for item in objects if item["kind"] == "DaemonSet"]
    assert workload["spec"]["template"]["spec"]["containers"][0]["image"] == DNS_IMAGE
    (service,) = [item for item in objects if item["kind"] == "Service"]
    assert service["spec"]["clusterIP"] == DNS_ADDRESS
