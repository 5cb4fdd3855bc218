"""Mutants of what surrounds the decisions: writes, reads, reports."""

from tests.mutants.mutant import OPERATOR, Mutant

_UNIT = "tests/unit/operator"


def of_operator(name: str, path: str, old: str, new: str, *tests: str) -> Mutant:
    found = tuple(one if one.startswith("tests/") else f"{_UNIT}/{one}" for one in tests)
    return Mutant(name, f"{OPERATOR}/{path}", old, new, found)


_EXECUTOR = ("test_executor.py", "test_executor_lanes.py")

ACTS = (
    of_operator(
        "a job's next plan is written beside the last one",
        "act/executor.py",
        "            if key in self._lanes:\n",
        "            if key in self._lanes and not items:\n",
        *_EXECUTOR,
    ),
    of_operator(
        "a failed write does not stop the lane",
        "act/executor.py",
        "            if result is not WriteResult.DONE:\n"
        "                return False\n"
        "        return True",
        "            if result is None:\n                return False\n        return True",
        *_EXECUTOR,
    ),
    of_operator(
        "a gang's pods are created without their Service",
        "act/executor.py",
        "            result = await self._runner.run_service(first)\n",
        "            result = WriteResult.DONE\n",
        *_EXECUTOR,
    ),
    of_operator(
        "an assumed status hides another writer's",
        "act/executor.py",
        "same = current.status == self.item.job.status",
        "same = True",
        *_EXECUTOR,
    ),
    of_operator(
        "nobody asks for the Lease before a request",
        "act/writer.py",
        "        if not self.may_act():\n",
        "        if False:\n",
        *_EXECUTOR,
    ),
    of_operator(
        "a write without an answer is taken for refused at once",
        "act/item_runner.py",
        "return await self._ask_what_happened(sending.item)",
        "return WriteResult.FAILED",
        *_EXECUTOR,
    ),
    of_operator(
        "a late write is not waited for",
        "act/item_runner.py",
        "late = 0, _counts_once_sent(item)",
        "late = 0, False",
        *_EXECUTOR,
    ),
    of_operator(
        "a refusal is told to nobody",
        "act/item_runner.py",
        "            self._refused(sending.item, error.message or str(error))\n",
        "",
        "test_refused_pods.py",
        *_EXECUTOR,
    ),
    of_operator(
        "a created pod is not remembered",
        "act/item_runner.py",
        "            self._attempts.created(item)\n",
        "",
        "test_own_attempts.py",
    ),
    of_operator(
        "a placement that may be another process's is taken for an own one",
        "act/item_runner.py",
        "            self._attempts.not_placed(item)\n        elif isinstance",
        "            pass\n        elif isinstance",
        "test_own_attempts.py",
    ),
    of_operator(
        "a definite conflict is taken for the end of an own request",
        "act/own_attempts.py",
        "        if own is None or not own.unanswered:\n            self.not_placed(item)\n",
        "",
        "test_own_attempts.py",
    ),
    of_operator(
        "a conflict after a lost answer is taken for another process's write",
        "act/own_attempts.py",
        "            own.unanswered = True\n",
        "            pass\n",
        "test_own_attempts.py",
    ),
    of_operator(
        "a status that was sent is overtaken",
        "act/executor.py",
        "if sending is None or sending.sent or assumed is None:",
        "if sending is None or assumed is None:",
        "test_overtaken_statuses.py",
    ),
    of_operator(
        "a newer status overtakes one on which it does not rest",
        "act/targets.py",
        " or newer.job.status != assumed:",
        ":",
        "test_urgency.py",
    ),
    of_operator(
        "a placement is overtaken",
        "act/targets.py",
        "        and after.attempt == before.attempt\n",
        "",
        "test_urgency.py",
    ),
    of_operator(
        "a pod whose creation is refused is taken for one that is not there",
        "act/writer.py",
        "return self._took(found, item) is WriteResult.DONE",
        "return False",
        *_EXECUTOR,
    ),
    of_operator(
        "a refused write is repeated at once",
        "act/item_runner.py",
        "            self._backoff.failed(target)\n",
        "            pass\n",
        *_EXECUTOR,
    ),
    of_operator(
        "the pause between refusals does not grow",
        "act/backoff.py",
        "failures = 1 if known is None else known.failures + 1",
        "failures = 1",
        "test_backoff.py",
    ),
    of_operator(
        "any pod of the name is the worker",
        "act/writer.py",
        "return not deleting and was_created_for(metadata, item.job, item.rank)",
        "return not deleting",
        *_EXECUTOR,
    ),
    of_operator(
        "a pod that is being deleted is the worker",
        "act/writer.py",
        "return not deleting and was_created_for(",
        "return was_created_for(",
        *_EXECUTOR,
    ),
    of_operator(
        "a pod is deleted in whatever state it is",
        "act/writer.py",
        "                resource_version=item.resource_version,\n",
        "",
        *_EXECUTOR,
    ),
    of_operator(
        "a pod that is not there was created",
        "act/writer.py",
        "                except NotFound:\n                    return WriteResult.FAILED\n",
        "                except NotFound:\n                    return WriteResult.DONE\n",
        *_EXECUTOR,
    ),
    of_operator(
        "a status is written over whatever is there",
        "act/writer.py",
        "        name, namespace = noun.metadata.name, noun.metadata.namespace\n        try:\n",
        "        name, namespace = noun.metadata.name, noun.metadata.namespace\n"
        "        body['metadata'].pop('resourceVersion')\n        try:\n",
        *_EXECUTOR,
    ),
    of_operator(
        "the answer to a write does not reach the cache",
        "act/writer.py",
        "            raise\n        self._feedback.written(kind, answer)\n",
        "            raise\n",
        *_EXECUTOR,
    ),
    of_operator(
        "lists come compressed",
        "client/kube.py",
        ', "Accept-Encoding": "identity"}',
        "}",
        "test_kube_client.py",
    ),
    of_operator(
        "a refusal of a webhook is a doubt",
        "client/api_errors.py",
        "refused = status == 500 and any(words in message for words in _NOT_STORED)",
        "refused = False",
        "test_kube_client.py",
    ),
    of_operator(
        "of a list only the first page is read",
        "client/list_pages.py",
        '            token = metadata.get("continue")\n',
        '            token = ""\n',
        "test_kube_client.py",
    ),
    of_operator(
        "a token for another audience is valid",
        "port/tokens.py",
        'if status.get("authenticated") is not True or TOKEN_AUDIENCE not in (\n'
        '        status.get("audiences") or ()\n    ):',
        'if status.get("authenticated") is not True:',
        "test_tokens_and_events.py",
    ),
    of_operator(
        "refused tokens are asked for without end",
        "port/tokens.py",
        "        return self._refused.seconds_left(now) == 0\n",
        "        return True\n",
        "test_tokens_and_events.py",
    ),
    of_operator(
        "no review is kept for who is expected",
        "port/review_turns.py",
        "    return total, total * 3 // 4, total // 2\n",
        "    return total, total, total\n",
        "test_floods_of_tokens.py",
    ),
    of_operator(
        "a refused token changes no turn",
        "port/tokens.py",
        "        self._turns.refused(source.address)\n",
        "        pass\n",
        "test_floods_of_tokens.py",
    ),
    of_operator(
        "one address takes turn after turn",
        "port/review_turns.py",
        "            self._of[address] = questions\n        return",
        "            self._of[address] = questions\n"
        "            self._of.move_to_end(address, last=False)\n        return",
        "test_floods_of_tokens.py",
    ),
)

OBSERVES = (
    of_operator(
        "a pod that was asked to go is taken over",
        "observe/placement_records.py",
        "    return going | crowded_out(",
        "    return crowded_out(",
        "test_placement_records.py",
    ),
    of_operator(
        "the number of a pod that was asked to go is given again",
        "observe/placement_records.py",
        "if is_new and (in_doubt or uid in passed_over):",
        "if is_new and in_doubt:",
        "test_placement_records.py",
    ),
    of_operator(
        "a pod speaks for any job of its name",
        "observe/listers.py",
        "return job if job is not None and speaks_for(pod, job) else None",
        "return job",
        "test_cache.py",
        "test_reports.py",
        "test_readings_into_usage.py",
    ),
    of_operator(
        "how a pod ended is lost when it goes at once",
        "observe/cache.py",
        "            self._gone.remember(before.view)\n",
        "",
        "test_cache.py",
    ),
    of_operator(
        "pods that ended still use their node",
        "observe/cache.py",
        "if pod is None or pod.node is None or not pod.takes_room:",
        "if pod is None or pod.node is None:",
        "test_cache.py",
        "test_requests_and_nodes.py",
    ),
    of_operator(
        "a delayed reading looks new",
        "observe/freshness.py",
        "known.estimate = min(observed_at + min(known.delays), now)",
        "known.estimate = now",
        "test_readings_into_usage.py",
        "test_cache.py",
    ),
    of_operator(
        "a reading is counted again with every event",
        "observe/usage.py",
        "if observed_at is None or observed_at == before:",
        "if observed_at is None:",
        "test_readings_into_usage.py",
        "test_cache.py",
    ),
    of_operator(
        "memory of anybody's pod is a worker's",
        "observe/cache.py",
        "        if pod is None or job is None:\n            return None\n        uid",
        "        if pod is None or job is None:\n            return pod\n        uid",
        "test_readings_into_usage.py",
        "test_cache.py",
    ),
    of_operator(
        "an error that is not told any more counts on",
        "observe/node_readings.py",
        "        self._by_node.pop(node, None)\n        if faults:",
        "        if faults:",
        "test_program_faults.py",
    ),
    of_operator(
        "a worker reports for another attempt",
        "port/reports.py",
        "    if (report.attempt, report.rank) != (pod.attempt, pod.rank):\n",
        "    if report.rank != pod.rank:\n",
        "test_reports.py",
    ),
    of_operator(
        "a token's claims are not proven",
        "port/pod_requests.py",
        "    if identity is None:\n        raise Refused(401",
        "    if identity is None:\n        return\n        raise Refused(401",
        "test_reports.py",
    ),
    of_operator(
        "a token is another pod's than it claims",
        "port/pod_requests.py",
        "    if identity != claimed:\n",
        "    if identity is None:\n",
        "test_reports.py",
    ),
    of_operator(
        "a late report replaces a newer one",
        "port/reports.py",
        "        if before is not None and _order(before.report) > _order(report):\n"
        "            return\n",
        "",
        "test_reports.py",
    ),
    of_operator(
        "a worker reports as often as it likes",
        "port/reports.py",
        "        if not limit.take(now):\n",
        "        if limit is None:\n",
        "test_reports.py",
    ),
    of_operator(
        "nobody asks when kopf last heard of its kinds",
        "telemetry/life_signs.py",
        "return own | dict(self.kopf.silent_seconds())",
        "return own",
        "test_life_signs.py",
    ),
    of_operator(
        "a follower takes reports",
        "port/pod_requests.py",
        "    if not is_leader:\n",
        "    if False:\n",
        "test_reports.py",
    ),
)
