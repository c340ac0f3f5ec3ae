"""A real server that keeps ended jobs and incidents for a minute only, and says at /held what it holds.

python -m tests.soak.server PORT STORE
"""

import asyncio
import gc
import logging
import sys

from ncclwatch_server import limits
from ncclwatch_server.app import create_app
from ncclwatch_server.incidents import event_stream
from ncclwatch_server.notify.targets import read_targets
from ncclwatch_server.serving.uvicorn_server import Serving, listen, serve
from ncclwatch_server.settings import Keeping, Settings, read_grants
from ncclwatch_server.store import incident_store

KEPT_S = 60.0
HOUSE_S = 10.0
CLOSED_KEPT_MAX = 5  # incidents in memory; one in 25 of two jobs a second is four in a minute
NEWS_KEPT_MAX = 16  # for readers that come back, each with its incident
DAY_S = 86_400.0


def held() -> dict[str, int]:
    """Return how many objects, memory blocks of Python and tasks there are once what can be freed is freed.

    The blocks count what the collector does not: strings, numbers, and what holds only these.
    """
    gc.collect()
    blocks = sys.getallocatedblocks()
    return {"objects": len(gc.get_objects()), "blocks": blocks, "tasks": len(asyncio.all_tasks())}


async def answer() -> dict[str, int]:
    """Return the same, in the loop whose tasks are counted."""
    return held()


def main() -> None:
    """Serve until SIGTERM."""
    logging.basicConfig(level=logging.INFO)
    limits.ENDED_KEPT_S = limits.RESTART_S = limits.ABANDONED_S = KEPT_S
    limits.CLOSED_KEPT_MAX = CLOSED_KEPT_MAX
    event_stream.KEPT_MAX = NEWS_KEPT_MAX
    incident_store.HOUSE_S = HOUSE_S
    listener = listen("127.0.0.1", int(sys.argv[1]))
    settings = Settings(store=sys.argv[2], grants=read_grants(), keeping=Keeping(days=KEPT_S / DAY_S))
    app = create_app(settings, targets=read_targets())
    app.add_api_route("/held", answer)
    serve(app, Serving(host="127.0.0.1", port=0, ephemeral=True, ready_fd=1, parent=None), listener)


if __name__ == "__main__":
    main()
