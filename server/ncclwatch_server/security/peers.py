"""Says where a connection comes from: as the kernel says, or as a proxy does that the operator has named."""

import ipaddress
from collections.abc import Iterable

from ncclwatch.contract.errors import ConfigError

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def proxies(named: Iterable[str]) -> tuple[Network, ...]:
    """Return the addresses of proxies. Raises `ConfigError`."""
    try:
        return tuple(ipaddress.ip_network(each) for each in named)
    except ValueError as error:
        raise ConfigError(
            f"--trusted-proxy wants an address or a network such as 10.0.0.7 or 10.0.0.0/24: {error}"
        ) from error


def origin(peer: str, forwarded: str, trusted: tuple[Network, ...]) -> str:
    """Return from where somebody comes who is seen as `peer` and has, or whose proxy has, sent X-Forwarded-For."""
    hops = [hop.strip() for hop in forwarded.split(",") if hop.strip()] if trusted else []
    while hops and _among(peer, trusted):
        peer = hops.pop()
    return peer


def _among(address: str, networks: tuple[Network, ...]) -> bool:
    try:
        return any(ipaddress.ip_address(address) in network for network in networks)
    except ValueError:
        return False
