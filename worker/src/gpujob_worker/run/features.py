"""Which settings may be injected: all, except those that the command line switched off."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Features:
    """The settings that may be injected. `--no-batch-split` and the like turn one off;
    `tune.settings` has their names.
    """

    off: frozenset[str] = frozenset()
    # Off unless `--cuda-graphs` requests it.
    cuda_graphs: bool = False

    @classmethod
    def without(cls, *names: str, cuda_graphs: bool = False) -> "Features":
        return cls(frozenset(names), cuda_graphs)

    def less(self, names: Iterable[str]) -> "Features":
        """Returns the features without these."""
        return Features(self.off | frozenset(names), self.cuda_graphs)

    def allows(self, name: str) -> bool:
        return name not in self.off
