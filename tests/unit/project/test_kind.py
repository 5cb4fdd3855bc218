"""What the guide for kind installs fits together: nodes, folder, claim, CPU cards, images, jobs."""

import re
from typing import Any

import pytest
import yaml

from gpujob_api.manifest import gpujob_from_manifest
from gpujob_api.quantities import Memory
from gpujob_operator.agent.cpu.cards import make_cards
from tests.harness.repository import ROOT

GUIDE = (ROOT / "docs" / "guides" / "kind.md").read_text(encoding="utf-8")
KIND = ROOT / "examples" / "kind"
LINES_MAX = 20


def jobs(name: str) -> list[dict[str, Any]]:
    return [found for found in documents(name) if found["kind"] == "GPUJob"]


def documents(name: str) -> list[dict[str, Any]]:
    text = (ROOT / "examples" / name).read_text(encoding="utf-8")
    return [found for found in yaml.safe_load_all(text) if found]


CLUSTER: dict[str, Any] = documents("kind/cluster.yaml")[0]
WORKERS = [node for node in CLUSTER["nodes"] if node["role"] == "worker"]
JOBS = sorted(set(re.findall(r"examples/([a-z]+\.yaml)", GUIDE)))


def test_the_cluster_is_short_and_its_nodes_join() -> None:
    assert len((KIND / "cluster.yaml").read_text(encoding="utf-8").splitlines()) <= LINES_MAX
    assert len(WORKERS) == 2
    assert all(node["labels"]["gpujob.dev/managed"] == "true" for node in WORKERS)
    assert [node["labels"].get("gpujob.dev/spot") for node in WORKERS] == [None, "true"]


def test_the_guide_names_the_cluster_and_its_nodes() -> None:
    name = CLUSTER["name"]
    assert f"kind load docker-image --name {name} " in GUIDE
    assert f"kind delete cluster --name {name}" in GUIDE
    # kind numbers its workers from the second on.
    nodes = {f"{name}-worker", f"{name}-worker2"}
    assert set(re.findall(rf"\b{name}-worker\d*(?![:\w])", GUIDE)) <= nodes


def test_the_volume_is_the_folder_that_all_nodes_share() -> None:
    volume, claim = documents("kind/checkpoints.yaml")
    mounts = [mount for node in WORKERS for mount in node["extraMounts"]]
    assert {mount["containerPath"] for mount in mounts} == {volume["spec"]["local"]["path"]}
    assert len({mount["hostPath"] for mount in mounts}) == 1
    assert volume["spec"]["accessModes"] == claim["spec"]["accessModes"] == ["ReadWriteMany"]
    assert claim["spec"]["volumeName"] == volume["metadata"]["name"]
    reference = volume["spec"]["claimRef"]
    assert reference == {k: claim["metadata"][k] for k in ("namespace", "name")}
    (term,) = volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
    (expression,) = term["matchExpressions"]
    for node in WORKERS:
        assert node["labels"][expression["key"]] in expression["values"]


@pytest.mark.parametrize("name", JOBS)
def test_a_job_of_the_guide_fits_on_a_cpu_card(name: str) -> None:
    values = yaml.safe_load((KIND / "values.yaml").read_text(encoding="utf-8"))
    size = Memory.from_json(values["agent"]["cpu"]["memory"], "memory").bytes
    (card,) = make_cards("n", 1, size, [0])
    claims = [one for one in documents(name) if one["kind"] == "PersistentVolumeClaim"]
    claims.append(documents("kind/checkpoints.yaml")[1])
    for found in jobs(name):
        job = gpujob_from_manifest({**found, "metadata": {**found["metadata"], "uid": "u"}})
        asked = job.spec.gpu.memory
        assert asked is not None
        assert asked.bytes <= card.memory_bytes - card.reserved_bytes
        claim = job.spec.checkpoint.volume_claim_name
        assert claim in (None, *(one["metadata"]["name"] for one in claims))


def test_the_images_that_are_loaded_are_those_of_the_jobs() -> None:
    (line,) = re.findall(r"kind load docker-image .*", GUIDE)
    loaded = set(re.findall(r"gpujob-[a-z]+:[\w.]+", line))
    for name in JOBS:
        for found in jobs(name):
            job = gpujob_from_manifest(found)
            assert job.spec.worker_container()["image"] in loaded
