"""Says whether a job may run on several nodes, by what its launcher told one of its ranks."""

_THIS_NODE = frozenset(("", "localhost", "localhost.localdomain", "ip6-localhost", "::1", "[::1]"))


def may_span(world_size: int, local_world_size: int, store_host: str) -> bool:
    """Whether some ranks of a job may run on other nodes.

    `local_world_size` is how many run on this node, 0 if nobody says so: as where a script starts its processes with
    `mp.spawn`. Then all of them do if the store at which they meet is at a loopback address.
    """
    if local_world_size:
        return local_world_size < world_size
    return world_size > 1 and store_host not in _THIS_NODE and not store_host.startswith("127.")
