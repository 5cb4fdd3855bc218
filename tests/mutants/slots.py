"""Mutants of the order in which writes are sent."""

from tests.mutants.shell import of_operator

SLOTS = (
    of_operator(
        "patient writes wait for ever",
        "act/slots.py",
        "return bool(self.patient) and now - self.patient[0].since >= PATIENT_SECONDS",
        "return False",
        "test_write_slots.py",
    ),
    of_operator(
        "a slow API server gets all patient writes",
        "act/slots.py",
        "burst = now < self._burst_until or self._urgent_in_use > BURST_SLOTS",
        "burst = now < self._burst_until",
        "test_write_slots.py",
    ),
    of_operator(
        "urgent writes allow no patient ones",
        "act/slots.py",
        "        self._patient_limit.earn(PATIENT_PER_URGENT)\n",
        "",
        "test_write_slots.py",
    ),
    of_operator(
        "one namespace takes all slots",
        "act/slots.py",
        "or entry.in_use >= self._of_a_namespace",
        "or entry.in_use >= self._total",
        "test_write_slots.py",
    ),
    of_operator(
        "a server that asks to slow down gets as much as before",
        "act/slots.py",
        "self._slow_until = max(self._slow_until, self._monotonic() + seconds)",
        "pass",
        "test_write_slots.py",
    ),
    of_operator(
        "the slots do not hear of a 429",
        "act/slots.py",
        "            self.slow_down(error.pause_seconds)\n",
        "",
        "test_executor_lanes.py",
        "test_executor.py",
    ),
    of_operator(
        "one namespace takes all lanes",
        "act/executor.py",
        "        if self._lanes_left(namespace_of(items[0])) <= 0:\n",
        "        if False:\n",
        "test_executor_lanes.py",
    ),
    of_operator(
        "a cycle places however many there are",
        "decide/admission/admit.py",
        "            if not self._budget.may_place:\n",
        "            if False:\n",
        "tests/unit/decide/admission/test_order_of_placements.py",
    ),
    of_operator(
        "a listed object that is known is held whole",
        "observe/store.py",
        "            return found, False\n        if self._listed",
        "            return manifest, False\n        if self._listed",
        "test_condensed_lists.py",
    ),
    of_operator(
        "placements are written in the order of their UIDs",
        "decide/planner.py",
        "key=lambda uid: (placed.get(uid, -1), uid)",
        "key=lambda uid: (uid in placed, uid)",
        "tests/unit/decide/admission/test_order_of_placements.py",
    ),
)
