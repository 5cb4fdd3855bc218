"""Mutants of services without a replica: when the last one stops, and what a gate promises."""

from tests.mutants.shell import of_operator

ZERO = (
    of_operator(
        "a gate that does not report counts as idle",
        "decide/services/gates.py",
        "    if not running or len(fresh) < len(running):\n",
        "    if not fresh:\n",
        "tests/unit/decide/services/test_zero.py",
    ),
    of_operator(
        "a report counts for ever",
        "decide/services/gates.py",
        "        and now - gate.reported_at <= FRESH\n",
        "",
        "tests/unit/decide/services/test_zero.py",
    ),
    of_operator(
        "a replica is stopped before it was ready for the time",
        "decide/services/gates.py",
        "    return now - ready.last_transition_time >= timedelta(seconds=after)\n",
        "    return True\n",
        "tests/unit/decide/services/test_zero.py",
    ),
    of_operator(
        "a replica is stopped while another one starts",
        "decide/services/gates.py",
        "    if not all(one.ready for one in live):\n",
        "    if not any(one.ready for one in live):\n",
        "tests/unit/decide/services/test_zero.py",
    ),
    of_operator(
        "requests past the gate do not count",
        "decide/services/gates.py",
        "one.report.requests_per_second > 0 for one in live",
        "one.report.requests_per_second < 0 for one in live",
        "tests/unit/decide/services/test_zero.py",
    ),
    of_operator(
        "a gate is removed while requests come to it",
        "decide/services/gates.py",
        "        unused = live if inputs.selects_gate is False else []\n",
        "        unused = live\n",
        "tests/unit/decide/services/test_zero.py",
    ),
    of_operator(
        "a gate may be of another namespace than its service",
        "port/gates.py",
        "        if service is None or service.metadata.namespace != pod.namespace:\n",
        "        if service is None:\n",
        "test_gate_reports.py",
    ),
    of_operator(
        "a late report of a gate replaces a newer one",
        "port/gates.py",
        "        if before is None or before[0].sequence < report.sequence:\n",
        "        if True:\n",
        "test_gate_reports.py",
    ),
    of_operator(
        "a request that a replica has read is sent again",
        "gate/proxy.py",
        "                except (ClientConnectorError, ConnectionTimeoutError):\n",
        "                except (ClientError, ConnectionTimeoutError):\n",
        "test_gate.py",
    ),
    of_operator(
        "a request ends at the gate and goes on at the replica",
        "gate/process.py",
        "cancels=True",
        "cancels=False",
        "test_gate.py",
    ),
    of_operator(
        "a gate holds any number of requests",
        "gate/replicas.py",
        "        if traffic.held >= limits.requests_max:\n",
        "        if False:\n",
        "test_gate.py",
    ),
)
