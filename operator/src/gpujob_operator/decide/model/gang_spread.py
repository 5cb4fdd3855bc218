"""How the workers of a gang must be spread, read from their template.

kube-scheduler or a kubelet enforces these rules. They are read before placement, because otherwise
each attempt would be refused.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

from gpujob_api.gpujob import GPUJob
from gpujob_api.meta import LABEL_JOB, LABEL_JOB_UID
from gpujob_operator.decide.model.pod_template import pod_spec
from gpujob_operator.decide.model.snapshot import LABEL_HOSTNAME

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


class SpreadRule(NamedTuple):
    """Limits how many workers share one value of a node label.

    At most `most` workers share a value, or at most `skew` more than the value with the fewest
    workers has. Each node is its own value of `kubernetes.io/hostname`, by its name.
    """

    topology_key: str
    most: int | None
    skew: int | None
    text: str


def one_on_a_node(text: str) -> SpreadRule:
    return SpreadRule(LABEL_HOSTNAME, 1, None, text)


def spread_rules(job: GPUJob) -> tuple[SpreadRule, ...]:
    """Returns the template's rules on how workers share nodes.

    A part that cannot be read adds no rule, because rendering and the API server refuse such a pod
    and name the field.
    """
    if job.spec.workers < 2:
        return ()
    spec, found = pod_spec(job), list[SpreadRule]()
    for read in (_anti_affinity, _topology_spread, _host_ports):
        try:
            found += read(job, spec)
        except (AttributeError, KeyError, TypeError, ValueError):
            continue
    return tuple(dict.fromkeys(found))


def _anti_affinity(job: GPUJob, spec: Mapping[str, Any]) -> list[SpreadRule]:
    affinity = (spec.get("affinity") or {}).get("podAntiAffinity") or {}
    return [
        SpreadRule(term["topologyKey"], 1, None, f"podAntiAffinity by {term['topologyKey']}")
        for term in affinity.get(_REQUIRED) or ()
        if _means_its_own_namespace(job, term) and _selects_its_own(job, term)
    ]


def _topology_spread(job: GPUJob, spec: Mapping[str, Any]) -> list[SpreadRule]:
    return [
        SpreadRule(
            one["topologyKey"],
            None,
            max(int(one["maxSkew"]), 1),
            f"topologySpreadConstraints by {one['topologyKey']}, maxSkew {one['maxSkew']}",
        )
        for one in spec.get("topologySpreadConstraints") or ()
        if one.get("whenUnsatisfiable", "DoNotSchedule") == "DoNotSchedule"
        and _selects_its_own(job, one)
    ]


def _host_ports(job: GPUJob, spec: Mapping[str, Any]) -> list[SpreadRule]:
    """Each port of a node belongs to one pod. With `hostNetwork`, every container port is a node
    port.
    """
    sidecars = [
        one for one in spec.get("initContainers") or () if one.get("restartPolicy") == "Always"
    ]
    containers: Sequence[Mapping[str, Any]] = [*(spec.get("containers") or ()), *sidecars]
    ports = [port for one in containers for port in one.get("ports") or ()]
    key = "containerPort" if spec.get("hostNetwork") else "hostPort"
    taken = sorted({int(port[key]) for port in ports if port.get(key)})
    return [one_on_a_node(f"host port {taken[0]}")] if taken else []


def _means_its_own_namespace(job: GPUJob, term: Mapping[str, Any]) -> bool:
    names, selector = term.get("namespaces") or (), term.get("namespaceSelector")
    if not names and selector is None:
        return True
    return job.metadata.namespace in names or selector == {}


def _selects_its_own(job: GPUJob, term: Mapping[str, Any]) -> bool:
    """Returns whether the selector matches every worker of the gang."""
    selector = cast("Mapping[str, Any] | None", term.get("labelSelector"))
    if selector is None:
        return False
    labels = _labels(job)
    if any(key in labels for key in term.get("mismatchLabelKeys") or ()):
        return False
    wanted: Mapping[str, Any] = selector.get("matchLabels") or {}
    return all(labels.get(key) == value for key, value in wanted.items()) and all(
        _holds(labels.get(one["key"]), one["operator"], one.get("values") or ())
        for one in selector.get("matchExpressions") or ()
    )


def _holds(value: str | None, operator: str, values: Sequence[str]) -> bool:
    match operator:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case _:
            return False


def _labels(job: GPUJob) -> Mapping[str, str]:
    """Returns the labels of every worker. Labels that differ by rank are left out."""
    own = (job.spec.template.get("metadata") or {}).get("labels") or {}
    return {**own, LABEL_JOB: job.metadata.name[:63], LABEL_JOB_UID: job.metadata.uid}
