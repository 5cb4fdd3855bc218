"""Finds the API server and the operator's credentials, in a kubeconfig file or in the pod's service
account.

Also bounds the read buffers of TLS connections.
"""

from asyncio import sslproto
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import yaml
from kubernetes.aio import client, config

from gpujob_api.codec import FieldError

# Four TLS records, which hold at most 16 KiB each (RFC 8446, 5.1).
READ_BYTES = 64 * 1024


class BadConnection(FieldError):  # noqa: N818 - an answer for who started us
    """The address of the API server or the credentials are missing or unusable."""


async def load_configuration(kubeconfig: str | None) -> client.Configuration:
    """Returns the connection from a kubeconfig file or, without one, from the pod's service
    account.

    Raises `BadConnection` with the name of the option.
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
        hint = "" if kubeconfig else "not given, and not running in a pod with a service account: "
        raise BadConnection("--kubeconfig", f"{hint}{error}") from None
    except (AttributeError, KeyError, OSError, TypeError, ValueError, yaml.YAMLError) as error:
        # The client's loader does not check the file's structure.
        problem = " ".join(str(error).split())
        raise BadConnection(
            "--kubeconfig", f"{kubeconfig} is not a kubeconfig: {problem}"
        ) from None
    configuration.retries = None
    configuration.proxy = configuration.proxy or _proxy_for(configuration.host)
    # Without this, aiohttp looks for proxies and a .netrc in a thread for every request, which
    # doubles the CPU time of a write (0.6 ms without).
    configuration.client_session_kwargs = {"trust_env": False}
    return configuration


def _proxy_for(server: str) -> str | None:
    """Returns the proxy from HTTPS_PROXY and the like, unless NO_PROXY names the server."""
    address = urlsplit(server)
    if address.hostname is None or proxy_bypass(address.netloc):
        return None
    return getproxies().get(address.scheme)


def limit_read_buffers() -> None:
    """Limits the read buffer of every TLS connection that this process opens from now on.

    asyncio gives each connection 256 KiB, all resident. The operator keeps as many connections as
    it ever had writes in flight at once.
    """
    sslproto.SSLProtocol.max_size = READ_BYTES
