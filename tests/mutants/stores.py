"""Mutants of what is remembered of objects, of those that are gone, and of what memory is for."""

from tests.mutants.mutant import OPERATOR, Mutant
from tests.mutants.shell import of_operator

STORES = (
    of_operator(
        "an old event undoes a newer state",
        "observe/store.py",
        "        if 0 < version <= self._newest(uid):\n            return False\n",
        "",
        "test_store.py",
    ),
    of_operator(
        "a list forgets what was written since",
        "observe/store.py",
        "            changed |= self.remove(uid, limit)\n",
        "            changed |= self.remove(uid)\n",
        "test_store.py",
    ),
    of_operator(
        "an old deletion removes a newer object",
        "observe/store.py",
        "        if entry is not None and entry.version > version:\n            return False\n",
        "",
        "test_store.py",
    ),
    of_operator(
        "a deleted object comes back with a late event",
        "observe/store.py",
        "        self._versions[uid] = max(version, self.version(uid))\n",
        "        self._versions[uid] = 0\n",
        "test_store.py",
    ),
    of_operator(
        "an old deletion lets an older state back",
        "observe/store.py",
        "        self._versions[uid] = max(version, self.version(uid))\n",
        "        self._versions[uid] = version\n",
        "test_store.py",
    ),
    of_operator(
        "an object that cannot be read looks like a change after some minutes",
        "observe/store.py",
        "            self._unread[found.uid] = found.version\n",
        "            self._tombstones.bury(found.uid, found.version)\n",
        "test_store.py",
    ),
    of_operator(
        "one unreadable object ends the process",
        "observe/store.py",
        "            self._ignored(found.key, error)\n        if self._opaque",
        "            raise\n        if self._opaque",
        "test_store.py",
        "test_cache.py",
    ),
    of_operator(
        "TLS connections have buffers as large as Python has them",
        "client/connection.py",
        "    sslproto.SSLProtocol.max_size = READ_BYTES\n",
        "    sslproto.SSLProtocol.max_size = 4 * READ_BYTES\n",
        "test_tls_buffers.py",
    ),
    of_operator(
        "the operator leaves its TLS buffers as they are",
        "run.py",
        "        limit_read_buffers()\n",
        "",
        "test_tls_buffers.py",
    ),
    of_operator(
        "lists go over the connections of the writes",
        "client/kube.py",
        "(self._transient if transient else self._client).rest_client",
        "self._client.rest_client",
        "test_kube_client.py",
    ),
    of_operator(
        "each call of many at a time keeps a connection",
        "client/kube.py",
        "transient = transient or self._kept_in_use >= CONNECTIONS_KEPT",
        "transient = bool(transient)",
        "test_kube_client.py",
    ),
    of_operator(
        "old garbage stays",
        "garbage.py",
        "gc.collect(_OLD)",
        "gc.collect(_YOUNG)",
        "test_garbage.py",
    ),
    of_operator(
        "old objects are looked at every minute, however many there are",
        "garbage.py",
        "(clock() - began) / OLD_TIME_FRACTION",
        "0.0",
        "test_garbage.py",
    ),
    of_operator(
        "what is free stays in the process",
        "garbage.py",
        "        trim(0)\n",
        "        pass\n",
        "test_garbage.py",
    ),
    Mutant(
        "what a pod has sent is counted for ever",
        f"{OPERATOR}/port/reports.py",
        "LIMITED_SECONDS = 300.0\n",
        "LIMITED_SECONDS = 1e9\n",
        ("tests/simulation/test_what_jobs_leave.py",),
    ),
)
