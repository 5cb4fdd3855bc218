"""What a worker sends to the report port: requests with its token, and those of a hostile one."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.harness.pod_tokens import pod_token
from tests.simulation.hostile import ODD_MESSAGES
from tests.simulation.lies import WorkerLie

if TYPE_CHECKING:
    from tests.simulation.worker import Worker

FLOOD = 60


@dataclass(frozen=True, slots=True)
class Post:
    """As much of `aiohttp.web.Request` as the report server reads."""

    headers: dict[str, str]
    body: bytes
    remote: str

    async def read(self) -> bytes:
        return self.body


def post_of(worker: "Worker", body: str, *, signature: str = "true") -> Post:
    """With the worker's own token, or one that it claims to be its own."""
    token = pod_token(worker.namespace, worker.name, worker.pod_uid, signature=signature)
    authorization = {"Authorization": f"Bearer {token}"}
    return Post(authorization, body.encode("utf-8", "replace"), worker.machine.name)


def odd_posts(worker: "Worker", body: str, peers: "list[Worker]") -> list[Post]:
    """What a worker that was taken over sends beside its reports."""
    match worker.lie:
        case WorkerLie.FLOOD:
            return [post_of(worker, body)] * FLOOD
        case WorkerLie.ODD_BODIES:
            return [post_of(worker, text) for text in (*ODD_MESSAGES, "", "null", "[]")]
        case WorkerLie.FORGED_TOKENS:
            return [post_of(peer, body, signature="forged") for peer in peers[:8]]
        case _:
            return []
