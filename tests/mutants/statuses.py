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
        "            lane.hurry()\n",
        "            pass\n",
        *_STATUSES,
    ),
    of_operator(
        "why a job waits is written although it waits no longer",
        "act/executor.py",
        "is_outdated_by(lane.items[0], items) and lane.withdraw()",
        "False",
        *_STATUSES,
    ),
    of_operator(
        "figures are given up for what comes next",
        "act/targets.py",
        "isinstance(older, WriteStatus) and older.status.phase is JobPhase.PENDING",
        "isinstance(older, WriteStatus)",
        "test_urgency.py",
    ),
    of_operator(
        "why a job waits is given up for another reason to wait",
        "act/targets.py",
        "says_why and only_tells(older) and not all(map(only_tells, newer))",
        "says_why and only_tells(older)",
        "test_urgency.py",
    ),
    of_operator(
        "a lane of several items ends without its first",
        "act/executor.py",
        "return len(self.items) == 1 and self.sending",
        "return self.sending",
        *_STATUSES,
    ),
    of_operator(
        "a write that has its slot is given up",
        "act/slots.py",
        "if turn not in entry.patient or turn.granted.done():",
        "if turn.granted.done() and False:",
        "test_write_slots.py",
    ),
)
