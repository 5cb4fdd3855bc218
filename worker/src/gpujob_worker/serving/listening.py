"""The socket of the server, made before the model is loaded, so that a port in use is known at
once.
"""

import errno
import socket

from gpujob_api.serving import ENV_SERVING, ENV_SERVING_HOST


class ListenError(OSError):
    """The address cannot be listened on. The message names the setting."""


def bound_socket(host: str, port: int) -> socket.socket:
    """Returns a socket bound to the address, which does not listen yet. Without a host, it is bound
    to all addresses. Port 0 is any free one.
    """
    family = socket.AF_INET
    if not host:
        family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    elif ":" in host:
        family = socket.AF_INET6
    found = socket.socket(family, socket.SOCK_STREAM)
    try:
        # A restarted server may take the port of connections that are not over yet.
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            found.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(bool(host)))
        found.bind((host, port))
    except OSError as error:
        found.close()
        raise _explained(error, host, port) from None
    return found


def _explained(error: OSError, host: str, port: int) -> ListenError:
    if error.errno == errno.EADDRINUSE:
        text = f"port {port} is in use; set another one, {ENV_SERVING}='{{\"port\": 8001}}'"
    elif error.errno == errno.EACCES:
        text = f"port {port} needs privileges; set one above 1023 in {ENV_SERVING}"
    else:
        text = f"cannot listen on {host or 'all addresses'}, port {port}: {error.strerror or error}"
        text += f"; {ENV_SERVING_HOST} has the address" if host else ""
    return ListenError(error.errno, text)
