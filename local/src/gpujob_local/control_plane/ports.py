"""Free ports on loopback for servers that cannot choose one themselves."""

import random
import socket

# The range is below the one from which Linux takes ports for outgoing connections (32768 and up). A
# passing connection therefore cannot take a port before the server binds it.
FIRST_PORT, LAST_PORT = 20000, 32000
TRIES = 200


def free_port() -> int:
    """Returns a port on which no process listens now. Raises `OSError` after 200 busy ones."""
    for _ in range(TRIES):
        port = random.randint(FIRST_PORT, LAST_PORT)  # noqa: S311 - spread, not secrecy
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise OSError(f"no free port between {FIRST_PORT} and {LAST_PORT} in {TRIES} tries")
