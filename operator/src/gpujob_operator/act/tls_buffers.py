"""What a TLS connection holds for what it reads.

asyncio gives each one a buffer of 256 KiB, all of which is resident, and asks OpenSSL for as many
bytes at a time. The operator has a connection for each write that is under way, and keeps it: the
more writes were ever under way at once, the more memory it held.
"""

from asyncio import sslproto

# Four TLS records, which hold at most 16 KiB each (RFC 8446, 5.1).
READ_BYTES = 64 * 1024


def limit_read_buffers() -> None:
    """Limits the buffers of all connections of this process that are made from now on."""
    sslproto.SSLProtocol.max_size = READ_BYTES
