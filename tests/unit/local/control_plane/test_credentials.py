"""Certificates of a local cluster are those that strict clients take."""

import socket
import ssl
import threading
from pathlib import Path

import pytest

from gpujob_local.control_plane.credentials import Authority


def test_clients_that_check_all_that_the_standard_asks_for_connect(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    server_files = authority.issue("server", "kube-apiserver", addresses=("10.0.0.1",))
    client_files = authority.issue("client", "operator", "system:masters")
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=authority.path)
    server.verify_mode = ssl.CERT_REQUIRED
    server.load_cert_chain(*server_files)
    client = ssl.create_default_context(cafile=authority.path)
    client.load_cert_chain(*client_files)
    for context in (server, client):
        context.verify_flags |= ssl.VERIFY_X509_STRICT  # the default from Python 3.13 on
    ours, theirs = socket.socketpair()
    accepted: list[bytes | None] = []

    def accept() -> None:
        with server.wrap_socket(theirs, server_side=True) as connection:
            accepted.append(connection.getpeercert(binary_form=True))

    thread = threading.Thread(target=accept)
    thread.start()
    with client.wrap_socket(ours, server_hostname="localhost"):
        thread.join(10)
    assert accepted == [ssl.PEM_cert_to_DER_cert(client_files[0].read_text())]


def test_a_certificate_of_another_authority_is_refused(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    one, other = Authority(tmp_path / "one"), Authority(tmp_path / "other")
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(*other.issue("server", "kube-apiserver"))
    client = ssl.create_default_context(cafile=one.path)
    ours, theirs = ssl.MemoryBIO(), ssl.MemoryBIO()
    near = client.wrap_bio(ours, theirs, server_hostname="localhost")
    far = server.wrap_bio(theirs, ours, server_side=True)
    with pytest.raises(ssl.SSLWantReadError):
        near.do_handshake()
    with pytest.raises(ssl.SSLWantReadError):
        far.do_handshake()
    with pytest.raises(ssl.SSLCertVerificationError):
        near.do_handshake()
