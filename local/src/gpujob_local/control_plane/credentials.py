"""Secrets of a local cluster: a certificate authority, certificates, tokens."""

import datetime
import ipaddress
import secrets
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from gpujob_local.control_plane.identity import write_private

VALID_DAYS = 30


def new_token() -> str:
    return secrets.token_urlsafe(32)


def write_service_account_keys(folder: Path) -> tuple[Path, Path]:
    """Writes the private and public key that sign and check service account tokens, and returns
    their paths.
    """
    private = ec.generate_private_key(ec.SECP256R1())
    private_path, public_path = folder / "service-account.key", folder / "service-account.pub"
    write_private(private_path, _private_bytes(private))
    public = private.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    public_path.write_bytes(public)
    return private_path, public_path


class Authority:
    """A certificate authority for one cluster; `issue` writes NAME.crt and NAME.key."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        name = _name("gpujob-local")
        self._key_identifier = x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())
        builder = (
            _builder(name, name, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_signs_certificates(), critical=True)
            .add_extension(self._key_identifier, critical=False)
        )
        self._certificate = builder.sign(self._key, hashes.SHA256())
        self.path = folder / "ca.crt"
        self.path.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))

    def issue(
        self,
        file_name: str,
        common_name: str,
        organization: str = "",
        addresses: Sequence[str] = (),
    ) -> tuple[Path, Path]:
        """Issues one certificate for a client and for a server on loopback and these addresses."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = _name(common_name, organization)
        usage = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        names: list[x509.GeneralName] = [
            *(x509.IPAddress(ipaddress.ip_address(each)) for each in ("127.0.0.1", *addresses)),
            x509.DNSName("localhost"),
            x509.DNSName("kubernetes.default.svc"),
        ]
        builder = (
            _builder(subject, self._certificate.subject, key.public_key())
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usage), critical=False)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(self._of_authority, critical=False)
        )
        certificate = builder.sign(self._key, hashes.SHA256())
        certificate_path = self._folder / f"{file_name}.crt"
        key_path = self._folder / f"{file_name}.key"
        certificate_path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        write_private(key_path, _private_bytes(key))
        return certificate_path, key_path

    @property
    def _of_authority(self) -> x509.AuthorityKeyIdentifier:
        """The extension without which Python 3.13 and later reject a certificate (RFC 5280,
        4.2.1.1).
        """
        return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(self._key_identifier)


def _signs_certificates() -> x509.KeyUsage:
    """Returns an authority's key usage. Strict clients reject its certificates without that."""
    return x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )


def _private_bytes(key: ec.EllipticCurvePrivateKey) -> bytes:
    # SEC1 ("EC PRIVATE KEY"), which every Kubernetes component can read.
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    )


def _name(common_name: str, organization: str = "") -> x509.Name:
    parts = [x509.NameAttribute(NameOID.COMMON_NAME, common_name)]
    if organization:
        parts.append(x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization))
    return x509.Name(parts)


def _builder(
    subject: x509.Name, issuer: x509.Name, public_key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=VALID_DAYS))
    )
