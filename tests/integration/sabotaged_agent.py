"""A real agent that fails in one place, as soon as a file appears: python -m tests.integration.sabotaged_agent.

SABOTAGE says where, SABOTAGE_WHEN names the file.
"""

import os
from collections.abc import Callable

from ncclwatch_agent import agent, faults
from ncclwatch_agent.__main__ import main
from ncclwatch_agent.ranks.jobs import LocalJob
from ncclwatch_agent.ranks.rank_rows import LocalRank
from ncclwatch_agent.server_choice import Servers
from ncclwatch_agent.uplink.connection import Uplink
from tests.integration.sabotage import Sabotage, before, cancel, hang_task, raising, stuck

faults.PAUSES_S = (0.2,)
agent.TICK_STILL_S, agent.TICK_ENDS_S = 1.0, 2.0


def fail(owner: type, name: str, of: Callable[..., bool] = lambda *_: True) -> Sabotage:
    """Return what lets a method raise where a condition holds."""
    return before(owner, name, raising(KeyError("sabotaged"), of))


SABOTAGES = {
    "one rank": fail(LocalRank, "observe", lambda rank, _: rank.rank == 1),
    "figures of one rank": fail(LocalRank, "rows", lambda rank, _: rank.rank == 1),
    "one job": fail(LocalJob, "facts", lambda job, *_: job.key.job == "job1"),
    "the search": fail(agent.Agent, "_open_rings"),
    "the line": fail(Uplink, "_dial"),
    "tick hangs": before(agent.Agent, "_open_rings", stuck),
    "tick is cancelled": before(agent.Agent, "_open_rings", cancel),
    "line is cancelled": before(Uplink, "_delay_s", cancel),
    "its end hangs": hang_task(Servers, "close"),
}

if __name__ == "__main__":
    SABOTAGES[os.environ["SABOTAGE"]]()
    main()
