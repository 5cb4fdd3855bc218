"""Where the API server is, and who we are to it: from a kubeconfig file or a pod's account."""

from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import yaml
from kubernetes.aio import client, config

from gpujob_api.codec import FieldError


class BadConnection(FieldError):  # noqa: N818 - an answer for who started us
    """There is no telling where the API server is, or who we are."""


async def load_configuration(kubeconfig: str | None) -> client.Configuration:
    """The connection from a kubeconfig file, or from the pod's service account without one.

    Raises `BadConnection` naming the option.
    """
    configuration = client.Configuration()
    try:
        if kubeconfig is None:
            config.load_incluster_config(client_configuration=configuration)
        else:
            await config.load_kube_config(
                config_file=kubeconfig, client_configuration=configuration
            )
    except config.ConfigException as error:
        hint = "" if kubeconfig else "not given, and this is no pod with a service account: "
        raise BadConnection("--kubeconfig", f"{hint}{error}") from None
    except (AttributeError, KeyError, OSError, TypeError, ValueError, yaml.YAMLError) as error:
        # The client's loader takes the file's shape for granted.
        problem = " ".join(str(error).split())
        raise BadConnection(
            "--kubeconfig", f"{kubeconfig} is not a kubeconfig: {problem}"
        ) from None
    configuration.retries = None
    configuration.proxy = configuration.proxy or _proxy_for(configuration.host)
    # Or else aiohttp looks for proxies and a .netrc again, in a thread and for every request: that
    # doubles the processor time of a write (0.6 ms without).
    configuration.client_session_kwargs = {"trust_env": False}
    return configuration


def _proxy_for(server: str) -> str | None:
    """HTTPS_PROXY and its like, unless NO_PROXY names the server."""
    address = urlsplit(server)
    if address.hostname is None or proxy_bypass(address.netloc):
        return None
    return getproxies().get(address.scheme)
