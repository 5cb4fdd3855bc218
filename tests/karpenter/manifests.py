"""What Karpenter is given: two sizes of nodes, a pool a case, and the pods of each case.

Every case has a node of its own, large enough for a worker and for a pod that fills it. Once that
pod has gone, a node of a quarter of the price would do for the worker.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from gpujob_api.gpujob import DisruptionPolicy
from gpujob_operator.decide.lifecycle.settings import settings_for
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.plan import CreatePod
from gpujob_operator.render.pod import worker_pod
from tests.harness.builders import make_job, make_template, placed

LABEL_CASE = "gpujob.dev/karpenter-case"
NAMESPACE = "team"
FILLER_CPU = "12"
ZONE = "zone-a"
Json = dict[str, Any]


class Named(Enum):
    """How a pod names its node: as the operator renders it, or with less."""

    BY_NOTHING = "nothing"
    BY_NAME = "name"
    BY_NAME_AND_LABEL = "name and label"


@dataclass(frozen=True, slots=True)
class Case:
    """A worker's pod as rendered with this policy, but for how it names its node."""

    name: str
    disruption: DisruptionPolicy
    named: Named


CASES = (
    Case("plain", DisruptionPolicy.ALLOW, Named.BY_NOTHING),
    Case("plain-kept", DisruptionPolicy.AVOID, Named.BY_NOTHING),
    Case("name-only", DisruptionPolicy.ALLOW, Named.BY_NAME),
    Case("worker-allow", DisruptionPolicy.ALLOW, Named.BY_NAME_AND_LABEL),
    Case("worker-avoid", DisruptionPolicy.AVOID, Named.BY_NAME_AND_LABEL),
)


def instance_types() -> list[Json]:
    return [_instance_type("small", 4, 0.25), _instance_type("large", 16, 1.0)]


def _instance_type(name: str, cpu: int, price: float) -> Json:
    resources = {"cpu": str(cpu), "memory": f"{4 * cpu}Gi", "pods": "110"}
    resources["ephemeral-storage"] = "100Gi"
    where = {"karpenter.sh/capacity-type": "on-demand", "topology.kubernetes.io/zone": ZONE}
    requirements = [_is(key, value) for key, value in where.items()]
    offering = {"Price": price, "Available": True, "Requirements": requirements}
    return {
        "name": name,
        "architecture": "amd64",
        "operatingSystems": ["linux"],
        "resources": resources,
        "offerings": [offering],
    }


def _is(key: str, value: str) -> Json:
    return {"key": key, "operator": "In", "values": [value]}


def node_class() -> Json:
    head = {"apiVersion": "karpenter.kwok.sh/v1alpha1", "kind": "KWOKNodeClass"}
    return head | {"metadata": {"name": "default"}, "spec": {}}


def node_pool(case: Case) -> Json:
    reference = {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"}
    return {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodePool",
        "metadata": {"name": case.name},
        "spec": {
            "disruption": {
                "consolidationPolicy": "WhenEmptyOrUnderutilized",
                "consolidateAfter": "5s",
                "budgets": [{"nodes": "100%"}],
            },
            "template": {
                "metadata": {"labels": {LABEL_CASE: case.name}},
                "spec": {
                    "expireAfter": "Never",
                    "requirements": [_is("karpenter.sh/capacity-type", "on-demand")],
                    "nodeClassRef": reference,
                },
            },
        },
    }


def filler(case: Case) -> Json:
    """Names no node, so that Karpenter makes one for it."""
    resources = {"requests": {"cpu": FILLER_CPU, "memory": "1Gi"}}
    container = {"name": "filler", "image": "image:1", "resources": resources}
    metadata = {"name": f"filler-{case.name}", "namespace": NAMESPACE}
    spec = {"containers": [container], "nodeSelector": {LABEL_CASE: case.name}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def worker(case: Case, node: str, hostname: str) -> Json:
    """The pod that the operator creates for a job on this node, which has this label."""
    template = make_template()
    template["spec"]["nodeSelector"] = {LABEL_CASE: case.name}
    made = make_job(case.name, claim=None, template=template, disruption=case.disruption)
    job = placed(made, (node, ("GPU-0",)))
    label = hostname if case.named is Named.BY_NAME_AND_LABEL else None
    pod = worker_pod(CreatePod(job, 0, settings_for(job, None), label), Configuration())
    if case.named is Named.BY_NOTHING:
        del pod["spec"]["affinity"]
    return pod


def keeps_node(pod: Mapping[str, Any]) -> bool:
    return "karpenter.sh/do-not-disrupt" in pod["metadata"].get("annotations", {})
