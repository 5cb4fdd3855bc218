"""Mutants of what is done with data that a restore of the API server's data took away."""

from tests.mutants.shell import of_operator

RESTORES = (
    of_operator(
        "what was decided before a restore is asked for once more",
        "leadership/cache_sync.py",
        "            await executor.ended()\n",
        "",
        "test_cache_sync.py",
    ),
    of_operator(
        "a loss during the list is forgotten",
        "leadership/cache_sync.py",
        "            self.synced = not self._lost.is_set()\n",
        "            self.synced = True\n",
        "test_cache_sync.py",
    ),
    of_operator(
        "a worker of a lost attempt begins where it resumes",
        "port/reports.py",
        "report.step == (report.resumed_from_step or 0)",
        "report.step == 0",
        "test_reports.py",
    ),
    of_operator(
        "how a pod ended counts in another history",
        "observe/gone_pods.py",
        " or pod.uid in self._of_lost_history:",
        ":",
        "test_gone_pods.py",
    ),
    of_operator(
        "no end counts any more after a restore",
        "observe/cache.py",
        "            self._gone.listed()\n",
        "            pass\n",
        "test_cache.py",
    ),
    of_operator(
        "a job does not wait for a pod that lost its owner",
        "decide/model/workers.py",
        "    return not pod.job_uid and records(pod, job)\n",
        "    return False\n",
        "tests/unit/decide/test_recorded_placements.py",
    ),
)
