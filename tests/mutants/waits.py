"""Mutants of what bounds a wait and a preemption."""

from tests.mutants.decisions import of_decide

_USE = "preemption/test_use_of_preemption.py"
_STOPS = "preemption/test_awaited_stops.py"
_APART = "placement/test_gangs_apart.py"

WAITS = (
    of_decide(
        "of a start at an unknown time its lower bound is not used",
        "backfill/nomination.py",
        "    known = max([one for one in starts if one < inf], default=0.0)\n",
        "    known = 0.0\n",
        "preemption/test_victims.py",
    ),
    of_decide(
        "a job that does not end is waited for without end",
        "model/grace.py",
        "    return until is not None and now < until\n",
        "    return until is not None\n",
        _STOPS,
    ),
    of_decide(
        "jobs on a dead node are stopped for others",
        "preemption/preemptor.py",
        "in self.stops or not self._answers(job):\n",
        "in self.stops:\n",
        _STOPS,
    ),
    of_decide(
        "a job that was stopped often never gives back",
        "preemption/preemptor.py",
        "            return is_at_work(job)\n",
        "            return is_preemptible(job, self.configuration)\n",
        "preemption/test_victims.py",
    ),
    of_decide(
        "a gang is overtaken by another queue's stream",
        "admission/admit.py",
        "                queues.hold_shared_quota(lacking)\n",
        "                pass\n",
        "queue/test_starved_gangs.py",
    ),
    of_decide(
        "a gang keeps what is promised to another queue",
        "queue/quota.py",
        "            if is_held and not self._is_firm(one, below, kind, job, memory_bytes):\n",
        "            if is_held:\n",
        "queue/test_starved_gangs.py",
    ),
    of_decide(
        "others are stopped again for a job that did not start",
        "preemption/use.py",
        "    return pause - (now - stopped.at).total_seconds()\n",
        "    return 0.0 * pause\n",
        _USE,
    ),
    of_decide(
        "an edit does not end the pause of a job that did not start",
        "preemption/use.py",
        "    if stopped.generation != job.metadata.generation:\n",
        "    if stopped.generation < 0:\n",
        _USE,
    ),
    of_decide(
        "a GPU that is gone is passed over",
        "lifecycle/stops.py",
        "    if gone is not None:\n        return gone\n",
        "",
        "lifecycle/test_gone_gpus.py",
    ),
    of_decide(
        "a gang's host ports are met at its start only",
        "model/gang_spread.py",
        '    return [one_on_a_node(f"host port {taken[0]}")] if taken else []\n',
        "    return []\n",
        _APART,
    ),
    of_decide(
        "a combination of nodes that was refused is tried again",
        "placement/assign.py",
        "        if nodes not in refused:\n",
        "        if nodes:\n",
        _APART,
    ),
)
