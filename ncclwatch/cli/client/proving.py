"""Opens HTTP connections for the command line, some of which prove whose server it is.

A server that nobody named must be this user's, or root's, before the request is sent.
"""

import http.client
import ipaddress
import time
import urllib.parse
import urllib.request

from ncclwatch.contract import config
from ncclwatch.contract.network import peer_uid, tls
from ncclwatch.contract.network.direct_http import DirectHttp
from ncclwatch.contract.network.peer_uid import NotOurs


def opener(url: str, *, proven: bool) -> urllib.request.OpenerDirector:
    """Return what opens the URLs of one server. Raises `ConfigError` if its certificates cannot be checked."""
    handlers: list[urllib.request.BaseHandler] = [DirectHttp()]
    # A cluster's proxy cannot reach this machine's loopback, and would itself be at the other end.
    if proven or is_local(url):
        handlers.append(urllib.request.ProxyHandler({}))
    if proven:
        handlers.append(_Proven())
    elif tls.is_secure(url):
        handlers.append(urllib.request.HTTPSHandler(context=tls.trust()))
    return urllib.request.build_opener(*handlers)


def is_local(url: str) -> bool:
    """Whether a URL means this machine's loopback."""
    try:
        host = urllib.parse.urlsplit(url).hostname or ""
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class _Proven(urllib.request.HTTPHandler):
    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        """Open a connection that is proven before the request goes out."""
        return self.do_open(_ProvenConnection, req)


class _ProvenConnection(http.client.HTTPConnection):
    def connect(self) -> None:
        """Connect. Raises `NotOurs`, with the connection closed."""
        super().connect()
        try:
            self._prove()
        except BaseException:
            self.close()
            raise

    def _prove(self) -> None:
        url = f"http://{self.host}:{self.port}"
        local, peer = peer_uid.addresses(self.sock)
        end = peer_uid.other_end(local, peer)
        for pause_s in peer_uid.pauses():
            if end is None or end.held:
                break
            time.sleep(pause_s)
            end = peer_uid.other_end(local, peer)
        if end is None and local[0] != peer[0]:
            raise NotOurs(f"nobody named a server, and the one at {url}, on another host, cannot prove whose it is")
        peer_uid.check(url, end)


def how_to_name(error: NotOurs) -> str:
    """Return the sentence for a server that was not believed."""
    return f"{error}: it was asked nothing. Name the server that is meant with --server or {config.ENV_SERVER}"
