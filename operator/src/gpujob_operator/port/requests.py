"""What both kinds of requests at the report port have in common: refusals and bearer tokens."""

from aiohttp import web

from gpujob_operator.rate_limit import RateLimit

RETRY_AFTER_SECONDS = 1
# A client that gets a status above this one may try again.
_FINAL_STATUS_MAX = 428
# Limits for one client: the sustained rate of requests per second, and the burst.
PER_SECOND_MAX = 10.0
BURST_MAX = 20.0


class TokenCheckFailed(Exception):  # noqa: N818 - it is an answer, not a fault of the program
    """The API server could not be asked, or must not be asked now. The client may try again."""


class Refused(Exception):  # noqa: N818 - it is an answer, not a fault of the program
    """A refused request. `result` is a word for the metric, from a closed set."""

    def __init__(self, status: int, result: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.result = result

    def response(self) -> web.Response:
        headers = {"Retry-After": str(RETRY_AFTER_SECONDS)}
        return web.json_response(
            {"error": str(self)},
            status=self.status,
            headers=headers if self.status > _FINAL_STATUS_MAX else None,
        )


def client_limit(now: float) -> RateLimit:
    """Returns a new limit for the requests of one client."""
    return RateLimit(now, per_second=PER_SECOND_MAX, burst=BURST_MAX)


def bearer_token(header: str) -> str:
    """Returns the token of the header. Raises `Refused`."""
    scheme, _, token = header.partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise Refused(401, "no_token", "Authorization: Bearer <token> is required")
    return token.strip()


def sender(request: web.Request) -> str:
    """Returns the sender's address in the form of a pod's status, or "" if unknown."""
    # A dual-stack socket writes IPv4 addresses with this prefix.
    return (request.remote or "").removeprefix("::ffff:")
