"""What the two kinds of requests at the report port have in common: refusals and bearer tokens."""

from aiohttp import web

from gpujob_operator.rate_limit import RateLimit

RETRY_AFTER_SECONDS = 1
# Who gets a status above this one may try again.
_FINAL_STATUS_MAX = 428
# Requests of one client: how many a second for long, and how many at once.
PER_SECOND_MAX = 10.0
BURST_MAX = 20.0


class TokenCheckFailed(Exception):  # noqa: N818 - it is an answer, not a fault of the program
    """The API server could not be asked, or must not be asked now; the client may try again."""


class Refused(Exception):  # noqa: N818 - it is an answer, not a fault of the program
    """`result` is a word for the metric, from a closed set."""

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
    """That of the requests of one client."""
    return RateLimit(now, per_second=PER_SECOND_MAX, burst=BURST_MAX)


def bearer_token(header: str) -> str:
    """Raises `Refused`."""
    scheme, _, token = header.partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise Refused(401, "no_token", "Authorization: Bearer <token> is required")
    return token.strip()


def sender(request: web.Request) -> str:
    """The address that a request comes from, written as in the status of a pod; "" if unknown."""
    # A socket for both versions of IP names an IPv4 address so.
    return (request.remote or "").removeprefix("::ffff:")
