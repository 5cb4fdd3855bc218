"""Which labels mean a spot node, and which do not."""

import pytest

from gpujob_operator.read.nodes import cached_node
from gpujob_operator.read.spot_labels import SPOT_LABELS
from tests.harness.manifests import node_manifest

SPOT = [
    ("gpujob.dev/spot", "true"),
    ("karpenter.sh/capacity-type", "spot"),
    ("eks.amazonaws.com/capacityType", "SPOT"),
    ("node.kubernetes.io/lifecycle", "spot"),
    ("cloud.google.com/gke-spot", "true"),
    ("cloud.google.com/gke-preemptible", "true"),
    ("cloud.google.com/gke-provisioning", "spot"),
    ("cloud.google.com/gke-provisioning", "preemptible"),
    ("gke-provisioning", "spot"),
    ("kubernetes.azure.com/scalesetpriority", "spot"),
    ("kubernetes.azure.com/priority", "spot"),
    ("machine.openshift.io/interruptible-instance", ""),
    ("oci.oraclecloud.com/oke-is-preemptible", "true"),
]


def _spot(**labels: str) -> bool:
    return cached_node(node_manifest(labels=labels)).empty.spot


@pytest.mark.parametrize(("key", "value"), SPOT)
def test_the_clouds_labels_mean_spot(key: str, value: str) -> None:
    assert _spot(**{key: value})
    # The operator's own label is an administrator's word, and wins.
    assert not _spot(**{key: value, "gpujob.dev/spot": "false"})


def test_every_label_of_the_table_is_shown() -> None:
    assert {key for key, _ in SPOT} == set(SPOT_LABELS)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("karpenter.sh/capacity-type", "on-demand"),
        ("eks.amazonaws.com/capacityType", "ON_DEMAND"),
        ("kubernetes.azure.com/scalesetpriority", "regular"),
        ("gke-provisioning", "standard"),
        ("node.kubernetes.io/instance-type", "spot"),
    ],
)
def test_other_labels_do_not(key: str, value: str) -> None:
    assert not _spot(**{key: value})
