"""Shows figures about this server and its jobs in Prometheus' format.

A scrape goes through four files: `moment` takes hold of what changes while the event loop stands still for it,
`summary` makes a few numbers per job of that, `families` gives them their names, and `scrapes` does all but the first
in a thread, once for everybody who asks within a second. How much is said does not depend on the number of ranks,
except in `per_rank`, which is written only where it was asked for.
"""

from ncclwatch_server.metrics.moment import Losses
from ncclwatch_server.metrics.scrapes import PerRank, Scrapes, Wanted

__all__ = ["Losses", "PerRank", "Scrapes", "Wanted"]
