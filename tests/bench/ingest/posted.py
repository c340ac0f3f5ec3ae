"""The peer: the same rows as JSON, posted to FastAPI and checked by pydantic, as one would write it first.

uvicorn with uvloop and httptools, its fastest. Prints its port; python -m tests.bench.ingest.posted
"""

import asyncio
import socket
from typing import Any

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel, create_model

from ncclwatch.contract import digests


def _model(name: str, fields: tuple[tuple[str, str], ...]) -> type[BaseModel]:
    kinds: dict[str, Any] = {field: (float if code.startswith("f") else int, ...) for field, code in fields}
    return create_model(name, **kinds)


RankRow = _model("RankRow", digests.RANK_FIELDS)
GroupRow = _model("GroupRow", digests.GROUP_FIELDS)


class Digest(BaseModel):
    """One node's report."""

    job: str
    ranks: list[RankRow]  # type: ignore[valid-type]
    groups: list[GroupRow]  # type: ignore[valid-type]


app = FastAPI()
state: dict[tuple[str, int], object] = {}


@app.post("/digest", status_code=204)
async def take(digest: Digest) -> None:
    """Keep the newest rows of each rank."""
    for row in digest.ranks:
        state[digest.job, row.rank] = row  # type: ignore[attr-defined]
    for row in digest.groups:
        state[digest.job, row.group << 20 | row.rank] = row  # type: ignore[attr-defined]


def main() -> None:
    """Serve on a free port of loopback."""
    door = socket.create_server(("127.0.0.1", 0), backlog=4096)
    print(door.getsockname()[1], flush=True)
    config = uvicorn.Config(app, loop="uvloop", http="httptools", log_level="error", access_log=False)
    asyncio.run(uvicorn.Server(config).serve(sockets=[door]))


if __name__ == "__main__":
    main()
