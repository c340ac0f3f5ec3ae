"""Says whether a job may run on several nodes, by what its launcher told one of its ranks."""

_THIS_NODE = frozenset(("", "localhost", "localhost.localdomain", "ip6-localhost", "::1", "0.0.0.0", "::"))


def may_span(world_size: int, local_world_size: int, store_host: str) -> bool:
    """Whether some ranks of a job may run on other nodes.

    `local_world_size` is how many run on this node, 0 if nobody says so: as where a script starts its processes with
    `mp.spawn`. Then all of them do if the store at which they meet has an address that no other node can reach.
    """
    if local_world_size:
        return local_world_size < world_size
    host = store_host.strip("[]").lower().removeprefix("::ffff:")
    return world_size > 1 and host not in _THIS_NODE and not host.startswith("127.")
