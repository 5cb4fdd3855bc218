"""Errors for the person at the terminal, and the time limits of requests to the API server."""

from typing import Any, cast

from gpujob_api.meta import GROUP

REQUEST_SECONDS_MAX = 30
PAGE_OBJECTS = 500
PAGES_MAX = 200


class UserError(Exception):
    """An error that the user can act on. The text is the whole message."""


def answered(where: str, method: Any, *values: Any, **arguments: Any) -> Any:
    """The result of a call of the Kubernetes client. Raises `UserError` if it fails."""
    from kubernetes.client.exceptions import ApiException
    from urllib3.exceptions import HTTPError

    try:
        return method(*values, **arguments)
    except ApiException as error:
        raise UserError(explain_status(where, cast("int", error.status))) from None
    except HTTPError as error:
        # urllib3 wraps the reason in the whole request.
        reason = getattr(error, "reason", None) or error
        raise UserError(f"the API server cannot be reached: {reason}") from None


def explain_status(where: str, status: int) -> str:
    match status:
        case 404:
            return f"not found: {where} (is GPUJob installed? kubectl get crd gpujobs.{GROUP})"
        case 401:
            return "Unauthorized (401): check your kubeconfig credentials"
        case 403:
            return f"you may not read {where} (403 Forbidden)"
        case _:
            return f"the API server answered {status} to reading {where}"
