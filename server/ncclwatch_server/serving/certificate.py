"""Makes a certificate for a server that lives as long as one job. Its clients know exactly this one."""

import datetime
import os
import ssl

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_YEARS = 10  # nobody checks: it is known by its bytes


def make() -> tuple[ssl.SSLContext, str]:
    """Return a server's context with a new key (P-256) and certificate, and that certificate as PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "ncclwatch-server of one job")])
    now = datetime.datetime.now(datetime.timezone.utc)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=2))
        .not_valid_after(now + datetime.timedelta(days=365 * _YEARS))
        .sign(key, hashes.SHA256())
    )
    shown = certificate.public_bytes(serialization.Encoding.PEM)
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # `ssl` reads keys from files only: this one is in memory, and no other process can open it.
    with open(os.memfd_create("ncclwatch-key", os.MFD_CLOEXEC), "wb", buffering=0) as file:
        file.write(secret + shown)
        context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
    return context, shown.decode()
