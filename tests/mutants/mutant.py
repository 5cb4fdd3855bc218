"""A mutant: one wrong line in the product's sources, and the tests that have to notice it."""

from dataclasses import dataclass
from pathlib import Path

OPERATOR = "operator/src/gpujob_operator"
WORKER = "worker/src/gpujob_worker"


@dataclass(frozen=True, slots=True)
class Mutant:
    """`old` stands exactly once in `path`, and `new` in its place breaks a promise.

    `tests` are what pytest is given. They are the nearest ones, so that a mutant costs seconds.
    """

    name: str
    path: str
    old: str
    new: str
    tests: tuple[str, ...]

    @property
    def area(self) -> str:
        """The package that is mutated: `decide`, `act`, `observe`, `handlers`, `worker` ..."""
        if self.path.startswith(WORKER):
            return "worker"
        return self.path.removeprefix(f"{OPERATOR}/").partition("/")[0]

    def mutated(self, source: str) -> str:
        """The source with the mutant in it. Raises `ValueError` where it no longer fits."""
        found = source.count(self.old)
        if found != 1:
            raise ValueError(f"mutant {self.name}: {self.path} has its text {found} times, not 1")
        return source.replace(self.old, self.new)

    def fits(self, root: Path) -> None:
        """Raises what `mutated` does for the sources below `root`, or `OSError`."""
        changed = self.mutated((root / self.path).read_text())
        compile(changed, self.path, "exec")
        for test in self.tests:
            path = root / test.partition("::")[0]
            if not path.exists():
                raise ValueError(f"mutant {self.name}: there is no {path}")
