"""Mutants of how statuses wait and overtake each other."""

from tests.mutants.shell import of_operator

_STATUSES = ("test_overtaken_statuses.py",)

STATUSES = (
    of_operator(
        "an end waits as long as the start that it overtakes",
        "act/item_runner.py",
        "        if not only_tells(item):\n            self.hurry()\n",
        "",
        *_STATUSES,
    ),
    of_operator(
        "what later items wait for stays patient",
        "act/executor.py",
        "                    self._lanes[key].hurry()\n",
        "",
        *_STATUSES,
    ),
)
