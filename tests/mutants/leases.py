"""Mutants of who leads, and for how long."""

from tests.mutants.shell import of_operator

LEASES = (
    of_operator(
        "another holder's Lease is taken at once",
        "leadership/lease.py",
        "return self._left_seconds <= 0",
        "return True",
        "test_lease.py",
    ),
    of_operator(
        "doubt is not passed on to the next leader",
        "leadership/lease.py",
        'self._settings.identity if in_doubt else ""',
        '""',
        "test_lease_doubt.py",
    ),
    of_operator(
        "a Lease that ends soon is not looked at sooner",
        "leadership/lease.py",
        "due = min(due, started + self._left_seconds)",
        "pass",
        "test_lease_doubt.py",
    ),
    of_operator(
        "agents are refused until an operator leads",
        "port/readings.py",
        "            await self._waiting.wait(wait_seconds)",
        "            pass",
        "test_agents_that_wait.py",
    ),
    of_operator(
        "agents wait for a process that leads no more",
        "port/readings.py",
        "if self._turned.is_set() or self._may_admit():",
        "if self._may_admit():\n            self._turned.set()\n            return\n"
        "        self._turned.clear()\n        if False:",
        "test_agents_that_wait.py",
    ),
    of_operator(
        "agents wait until each has tried again",
        "port/readings.py",
        "        if self._may_admit():\n            self._turned.set()\n",
        "        pass\n",
        "test_agents_that_wait.py",
    ),
    of_operator(
        "a Lease is as old as the try that found it",
        "leadership/lease.py",
        "self._observed = (version, self._monotonic())",
        "self._observed = (version, now)",
        "test_lease_renewals.py",
    ),
    of_operator(
        "the Lease is held for longer than it lasts",
        "leadership/lease.py",
        "HOLD_FRACTION = 2 / 3",
        "HOLD_FRACTION = 2.0",
        "test_lease.py",
    ),
    of_operator(
        "the Lease is counted from its answer",
        "leadership/lease.py",
        "self._held_until = started + self._settings",
        "self._held_until = self._monotonic() + self._settings",
        "test_lease.py",
    ),
    of_operator(
        "one renewal that hangs ends the lead",
        "leadership/lease.py",
        "RENEWAL_FRACTION = 1 / 5",
        "RENEWAL_FRACTION = 1 / 3",
        "test_lease_renewals.py",
    ),
    of_operator(
        "the pause after a slow renewal is as long as any",
        "leadership/lease.py",
        "max(due - self._monotonic(), seconds * PAUSE_FRACTION_MIN)",
        "seconds * RENEWAL_FRACTION",
        "test_lease_renewals.py",
    ),
    of_operator(
        "the Lease of a race is both's",
        "leadership/lease.py",
        "        except (Conflict, NotFound):\n            return False\n",
        "        except (Conflict, NotFound):\n            return True\n",
        "test_lease.py",
    ),
    of_operator(
        "leading again is said only after another holder",
        "leadership/lease.py",
        "            # Another process may have led since",
        "            if not acquires:\n                return True\n"
        "            # Another process may have led since",
        "test_lease.py",
    ),
    of_operator(
        "a status that waited is new where its agent's clock was set forward",
        "observe/freshness.py",
        "return ahead > timedelta(seconds=CLOCKS_DIFFER_SECONDS)",
        "return ahead > timedelta.max",
        "test_readings_into_usage.py",
    ),
)
