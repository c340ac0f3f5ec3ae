"""TLS with one known certificate: the peer is who showed exactly that one, whatever its names and dates are.

For a server that was started for one job, and whose certificate came with its address. No authority has signed it, and
clocks of nodes may differ by more than such a certificate is old.
"""

import ssl


def trusting(certificate: str) -> ssl.SSLContext:
    """Return a client's context that takes only this certificate (PEM). Raises ValueError if it is none.

    A handshake with another one fails with `ssl.SSLCertVerificationError`, before any data is sent.
    """
    wanted = ssl.PEM_cert_to_DER_cert(certificate)

    def check(peer: ssl.SSLObject | ssl.SSLSocket) -> None:
        if peer.getpeercert(binary_form=True) != wanted:
            raise ssl.SSLCertVerificationError("the server has shown another certificate than the one it was known by")

    class PinnedObject(ssl.SSLObject):  # of asyncio
        def do_handshake(self) -> None:
            super().do_handshake()
            check(self)

    class PinnedSocket(ssl.SSLSocket):
        def do_handshake(self, block: bool = False) -> None:
            super().do_handshake(block)
            check(self)

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # each handshake compares it
    context.sslobject_class, context.sslsocket_class = PinnedObject, PinnedSocket
    return context
