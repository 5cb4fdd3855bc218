"""Mutants of the handlers: kopf's front, watches and lists."""

from tests.mutants.shell import of_operator

_WATCHES = ("test_watches_and_lists.py",)

HANDLERS = (
    of_operator(
        "a version that is too old is asked for again",
        "observe/watch/watches.py",
        '            except Gone:\n                self._version, reason = "", "gone"\n',
        '            except Gone:\n                reason = "gone"\n',
        *_WATCHES,
    ),
    of_operator(
        "a stream goes on from where it began",
        "observe/watch/watches.py",
        "                self._version = _resource_version(manifest) or self._version\n",
        "",
        *_WATCHES,
    ),
    of_operator(
        "after many errors nothing is listed",
        "observe/watch/watches.py",
        "if refused and self._failures >= 3:",
        "if False:",
        *_WATCHES,
    ),
    of_operator(
        "an overloaded server is asked for lists, too",
        "observe/watch/watches.py",
        "refused = not isinstance(error, Throttled | Unavailable)",
        "refused = True",
        *_WATCHES,
    ),
    of_operator(
        "a stream that works does not end a row of failures",
        "observe/watch/watches.py",
        "self.alive_at, self._failures = time.monotonic(), 0",
        "self.alive_at = time.monotonic()",
        *_WATCHES,
    ),
    of_operator(
        "an event of an unknown type is applied",
        "observe/watch/watches.py",
        "                if kind in _CHANGES:\n",
        "                if True:\n",
        *_WATCHES,
        "test_streams.py",
    ),
    of_operator(
        "the pauses between broken streams do not grow",
        "observe/watch/watches.py",
        "BACKOFF_SECONDS * 2 ** min(self._failures, 16))",
        "BACKOFF_SECONDS)",
        *_WATCHES,
    ),
    of_operator(
        "a watch that missed events goes on as before",
        "observe/watch/watches.py",
        "        _end(self._limit)\n",
        "",
        *_WATCHES,
    ),
    of_operator(
        "a new leader lists pods first",
        "observe/watch/relist.py",
        "            for listed in LISTED:\n",
        "            for listed in reversed(LISTED):\n",
        *_WATCHES,
    ),
    of_operator(
        "agents wait until the jobs are listed",
        "observe/watch/relist.py",
        "    NODES_WATCHED,\n    WatchedKind(Kind.GPU_NODE, GPU_NODES),\n",
        "    WatchedKind(Kind.JOB, JOBS),\n    NODES_WATCHED,\n",
        *_WATCHES,
        "test_agents_of_a_new_leader.py",
    ),
    of_operator(
        "missed events are nobody's business",
        "observe/watch/relist.py",
        "            self._silent(kind)\n",
        "            pass\n",
        *_WATCHES,
    ),
    of_operator(
        "a list that failed was a list",
        "observe/watch/relist.py",
        "                failures += 1\n",
        "                return\n",
        *_WATCHES,
    ),
    of_operator(
        "kopf keeps its own marks on objects",
        "handlers/settings.py",
        "    settings.persistence.progress_storage = NothingStored()\n",
        "",
        "test_kopf_door.py",
    ),
    of_operator(
        "events are not handed on",
        "handlers/memo.py",
        '        self._call(self._cache.apply, kind, event["type"], event["object"])\n',
        "",
        "test_kopf_door.py",
    ),
    of_operator(
        "what vanished between kopf's watches stays",
        "handlers/session.py",
        "            self.shared.listed(kind, whole.found, version, whole.mark)\n",
        "            self.shared.listed(kind, [], '0', whole.mark)\n",
        "test_kopf_door.py",
    ),
    of_operator(
        "kopf is given what the cache has",
        "handlers/session.py",
        "                if not self.shared.knows(kind, found):\n",
        "                if True:\n",
        "test_kopf_door.py",
    ),
)
