"""kopf's handlers, one for each of the project's own kinds.

1. kopf lists and follows the kind with the connection that `login` returns.
2. The kind's handler passes each event to `Memo`, which crosses to the operator's event loop.
3. `observe.cache` parses the object and marks decisions as outdated.
4. `loop` takes a snapshot of the cache and plans.

Handlers are level-triggered. An event that is lost or repeated changes nothing once a later state
or a list has arrived. Nothing is written here.
"""

from typing import Any

import kopf

from gpujob_api.manifest import GPUJOB, GPUNODE, GPUPROFILE, GPUQUEUE, GPUSERVICE
from gpujob_api.meta import GROUP, VERSION
from gpujob_operator.handlers.memo import Memo
from gpujob_operator.handlers.session import kopf_session
from gpujob_operator.handlers.settings import configure
from gpujob_operator.observe.cache import Kind

REGISTRY = kopf.OperatorRegistry()


@kopf.on.startup(registry=REGISTRY)
async def start(settings: kopf.OperatorSettings, **_: Any) -> None:
    configure(settings)


@kopf.on.login(registry=REGISTRY, retries=3, backoff=1.0)
async def login(memo: Memo, **_: Any) -> kopf.AiohttpSession:
    """Returns the operator's own connection. kopf calls it whenever the API server answers 401."""
    connection = await memo.connection()
    session = kopf_session(connection, memo)
    return kopf.AiohttpSession(server=connection.server, aiohttp_session=session)


@kopf.on.event(GROUP, VERSION, GPUJOB.plural, registry=REGISTRY)
async def job_changed(event: kopf.RawEvent, memo: Memo, **_: Any) -> None:
    memo.put(Kind.JOB, event)


@kopf.on.event(GROUP, VERSION, GPUNODE.plural, registry=REGISTRY)
async def gpu_node_changed(event: kopf.RawEvent, memo: Memo, **_: Any) -> None:
    memo.put(Kind.GPU_NODE, event)


@kopf.on.event(GROUP, VERSION, GPUQUEUE.plural, registry=REGISTRY)
async def queue_changed(event: kopf.RawEvent, memo: Memo, **_: Any) -> None:
    memo.put(Kind.QUEUE, event)


@kopf.on.event(GROUP, VERSION, GPUPROFILE.plural, registry=REGISTRY)
async def profile_changed(event: kopf.RawEvent, memo: Memo, **_: Any) -> None:
    memo.put(Kind.PROFILE, event)


@kopf.on.event(GROUP, VERSION, GPUSERVICE.plural, registry=REGISTRY)
async def service_changed(event: kopf.RawEvent, memo: Memo, **_: Any) -> None:
    memo.put(Kind.SERVICE, event)
