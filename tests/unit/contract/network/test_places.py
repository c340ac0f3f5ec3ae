"""Which jobs may run on several nodes."""

import pytest

from ncclwatch.contract.network.places import may_span


@pytest.mark.parametrize(
    ("world", "local", "host", "spans"),
    [
        (8, 4, "node0", True),
        (8, 4, "127.0.0.1", True),  # a launcher may tell each node another address
        (4, 4, "node0", False),
        (4, 0, "node0", True),
        (4, 0, "10.0.0.1", True),
        (1, 0, "node0", False),
        (4, 0, "127.0.1.1", False),
        (4, 0, "localhost", False),
        (4, 0, "LocalHost", False),
        (4, 0, "::1", False),
        (4, 0, "[::1]", False),
        (4, 0, "::ffff:127.0.0.1", False),
        (4, 0, "0.0.0.0", False),
        (4, 0, "[::]", False),
        (4, 0, "", False),
    ],
)
def test_a_job_may_span_nodes_unless_all_ranks_are_here_or_meet_at_a_loopback_address(
    world: int, local: int, host: str, spans: bool
) -> None:
    assert may_span(world, local, host) is spans
