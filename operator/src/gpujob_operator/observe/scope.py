"""The namespaces whose jobs an operator manages."""

from collections.abc import Iterable
from dataclasses import dataclass

from gpujob_operator.read.shapes import Identity, mapping, text


@dataclass(frozen=True, slots=True)
class Scope:
    """All namespaces, unless some are named. Pods of other namespaces still use their nodes."""

    namespaces: frozenset[str] = frozenset()

    def covers(self, manifest: object) -> bool:
        """Returns whether the object is in one of the namespaces."""
        if not self.namespaces:
            return True
        if isinstance(manifest, Identity):
            return manifest.namespace in self.namespaces
        metadata = mapping(mapping(manifest).get("metadata"))
        return text(metadata.get("namespace")) in self.namespaces

    def only(self, manifests: Iterable[object]) -> Iterable[object]:
        """Returns the objects in the namespaces."""
        return [one for one in manifests if self.covers(one)] if self.namespaces else manifests


EVERYWHERE = Scope()
