"""What the reports of workers and of gates have in common: proof of the pod, bodies, refusals."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Protocol

from aiohttp import web

from gpujob_operator.port.pod_tokens import PodIdentity, claimed_identity
from gpujob_operator.port.requests import Refused, TokenCheckFailed, bearer_token
from gpujob_operator.telemetry.logs import Log
from gpujob_operator.telemetry.metrics import Metrics

log = Log(__name__)

BODY_SECONDS_MAX = 5.0


class Encoded(Protocol):
    def to_text(self) -> str: ...


class TokenChecker(Protocol):
    async def check(self, token: str, source: str, *, from_its_pod: bool) -> PodIdentity | None:
        """Returns the pod that the token was issued for, or None if the token is not valid for us.

        `source` is the address that sent the token. `from_its_pod` means that the claimed pod has
        this address. Raises `TokenCheckFailed`.
        """
        ...


async def answered(
    request: web.Request, receive: Callable[[web.Request], Awaitable[Encoded]], metrics: Metrics
) -> web.Response:
    """Returns the reply of `receive` as JSON, or its refusal. Counts both."""
    try:
        reply = await receive(request)
    except Exception as error:
        refused = refusal(error)
        metrics.reports.labels(refused.result).inc()
        return refused.response()
    metrics.reports.labels("accepted").inc()
    return web.Response(text=reply.to_text(), content_type="application/json")


def claim(
    request: web.Request, clock: Callable[[], datetime], *, is_leader: bool
) -> tuple[str, PodIdentity]:
    """Returns the token, and the pod that it claims to be of. Raises `Refused`."""
    if not is_leader:
        raise Refused(503, "not_leader", "this replica is not the leader; try again")
    token = bearer_token(request.headers.get("Authorization", ""))
    claimed = claimed_identity(token, clock().timestamp())
    if claimed is None:
        raise Refused(401, "bad_token", "the token is not one of a pod for audience gpujob")
    return token, claimed


async def prove(
    tokens: TokenChecker, token: str, claimed: PodIdentity, source: str, *, from_its_pod: bool
) -> None:
    """Raises `Refused` unless the token was issued for the claimed pod."""
    try:
        identity = await tokens.check(token, source, from_its_pod=from_its_pod)
    except TokenCheckFailed as error:
        text = f"the token could not be checked: {error}"
        raise Refused(503, "check_failed", text) from None
    if identity is None:
        raise Refused(401, "bad_token", "the token is not valid for audience gpujob")
    if identity != claimed:
        raise Refused(403, "wrong_pod", "the token is of another pod than it claims")


async def read_body(request: web.Request, bytes_max: int) -> bytes:
    """Returns the body. Raises `Refused` if it is too large, too slow or incomplete.

    `bytes_max` is the application's own limit, for the message.
    """
    try:
        async with asyncio.timeout(BODY_SECONDS_MAX):
            return await request.read()
    except TimeoutError:
        text = f"the report did not arrive within {BODY_SECONDS_MAX:g} s"
        raise Refused(408, "too_slow", text) from None
    except web.HTTPRequestEntityTooLarge:
        text = f"the report is larger than {bytes_max} bytes"
        raise Refused(413, "too_large", text) from None
    except (ConnectionError, web.RequestPayloadError) as error:
        raise Refused(400, "bad_report", f"the report ended early: {error}") from None


def refusal(error: Exception) -> Refused:
    """Returns the answer to a failed report. An internal error is logged and does not end the
    server.
    """
    if isinstance(error, Refused):
        return error
    log.error(
        "report handling failed", problem=f"{type(error).__name__}: {error}", with_traceback=True
    )
    return Refused(500, "error", "the report cannot be read; see the operator's log")
