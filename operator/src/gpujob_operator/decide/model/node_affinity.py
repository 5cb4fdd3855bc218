"""The node affinity that a pod template or a volume requires or prefers, read as kube-scheduler
reads it.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, cast

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
# The only field of a node that a term may name.
_NAME = "metadata.name"
_TERMS_SHOWN = 3


class NodeRequirement(NamedTuple):
    """One expression of a term, on a label or on the node's name."""

    key: str
    # In, NotIn, Exists, DoesNotExist, Gt or Lt.
    operator: str
    values: tuple[str, ...]

    def holds(self, found: Mapping[str, str]) -> bool:
        """Returns whether a node with these labels meets the requirement.

        An operator that Kubernetes does not know is met, because the API server refuses the pod.
        """
        value = found.get(self.key)
        match self.operator:
            case "In":
                return value in self.values
            case "NotIn":
                return value not in self.values
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
            case "Gt" | "Lt":
                return self._compares(value)
            case _:
                return True

    def _compares(self, value: str | None) -> bool:
        """Compares integers. The API server requires an integer in the expression."""
        try:
            label, (bound,) = int(value or ""), map(int, self.values)
        except ValueError:
            return False
        return label > bound if self.operator == "Gt" else label < bound

    @property
    def text(self) -> str:
        values = f" ({', '.join(self.values)})" if self.values else ""
        return f"{self.key} {self.operator}{values}"


class NodeSelectorTerm(NamedTuple):
    """Requirements that all have to hold. A term without requirements matches no node."""

    of_labels: tuple[NodeRequirement, ...]
    of_name: tuple[NodeRequirement, ...]

    def first_unmet(self, name: str, labels: Mapping[str, str]) -> NodeRequirement | None:
        """Returns the first requirement that the node does not meet, or None."""
        unmet = [one for one in self.of_labels if not one.holds(labels)]
        unmet += [one for one in self.of_name if not one.holds({_NAME: name})]
        return unmet[0] if unmet else None


# At least one of the terms has to match. No terms match any node.
NodeAffinity = tuple[NodeSelectorTerm, ...]


def required_affinity(pod_spec: Mapping[str, Any]) -> NodeAffinity:
    """Returns what the pod requires of its node's labels and name.

    A part that cannot be read makes the requirement empty, because rendering and the API server
    refuse such a pod and name the field.
    """
    if not pod_spec.get("affinity"):
        return ()
    try:
        return _terms(pod_spec["affinity"]["nodeAffinity"][_REQUIRED])
    except (AttributeError, KeyError, TypeError):
        return ()


def preferred_affinity(pod_spec: Mapping[str, Any]) -> NodeAffinity:
    """Returns what the pod prefers of its node. Weights are not read.

    A part that cannot be read makes the preference empty.
    """
    if not pod_spec.get("affinity"):
        return ()
    try:
        listed = pod_spec["affinity"]["nodeAffinity"][PREFERRED]
        return tuple(_term(one["preference"]) for one in listed)
    except (AttributeError, KeyError, TypeError):
        return ()


def with_preferences(required: NodeAffinity, preferred: NodeAffinity) -> NodeAffinity:
    """Returns the affinity of a node that meets the requirement and all preferences."""
    labels = tuple(one for term in preferred for one in term.of_labels)
    names = tuple(one for term in preferred for one in term.of_name)
    terms = required or (NodeSelectorTerm((), ()),)
    return tuple(
        NodeSelectorTerm((*term.of_labels, *labels), (*term.of_name, *names)) for term in terms
    )


def volume_affinity(node_selector: Mapping[str, Any]) -> NodeAffinity:
    """Returns what a volume requires of the node that uses it (`spec.nodeAffinity.required`).

    A part that cannot be read makes the requirement empty. kube-scheduler's refusal reports it.
    """
    try:
        return _terms(node_selector)
    except (AttributeError, KeyError, TypeError):
        return ()


def affinity_mismatch(affinity: NodeAffinity, name: str, labels: Mapping[str, str]) -> str:
    """Returns why no term matches the node, or "" if one does."""
    if not affinity:
        return ""
    found: list[str] = []
    for term in affinity:
        if not (term.of_labels or term.of_name):
            found.append("an empty term")
            continue
        unmet = term.first_unmet(name, labels)
        if unmet is None:
            return ""
        found.append(unmet.text)
    more = f" and {len(found) - _TERMS_SHOWN} more" if len(found) > _TERMS_SHOWN else ""
    return f"nodeAffinity {' or '.join(dict.fromkeys(found[:_TERMS_SHOWN]))}{more} does not match"


def _terms(node_selector: Mapping[str, Any]) -> NodeAffinity:
    return tuple(_term(one) for one in node_selector["nodeSelectorTerms"])


def _term(term: Mapping[str, Any]) -> NodeSelectorTerm:
    return NodeSelectorTerm(
        _requirements(term.get("matchExpressions")), _requirements(term.get("matchFields"))
    )


def _requirements(listed: object) -> tuple[NodeRequirement, ...]:
    rows = cast("list[Mapping[str, Any]]", listed or [])
    return tuple(
        NodeRequirement(
            str(row["key"]), str(row["operator"]), tuple(map(str, row.get("values") or ()))
        )
        for row in rows
    )
