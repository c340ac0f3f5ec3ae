"""What operators ask of a database that is halted keeps no thread from the judge."""

import asyncio
import threading

import httpx
from fastapi import FastAPI

from ncclwatch_server.http.operator_routes import add_operating_routes
from ncclwatch_server.http.queries import Reader
from ncclwatch_server.incidents.book import IncidentBook
from ncclwatch_server.security.audit import AuditEntry, AuditTrail
from ncclwatch_server.security.scopes import Access
from ncclwatch_server.store.no_store import NoStore
from ncclwatch_server.store.retention import Removed
from ncclwatch_server.watch.tick import Watch

READERS = 64  # more than the event loop has threads, on any machine


class Halted(NoStore):
    """A store whose database answers when it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = threading.Event()

    def audit_log(self, limit: int, before: str = "", job: str = "") -> list[AuditEntry]:
        self.answers.wait(60)
        return super().audit_log(limit, before, job)

    def delete_job(self, job: str) -> Removed:
        self.answers.wait(60)
        return super().delete_job(job)


def test_questions_to_a_halted_database_leave_the_judge_its_threads() -> None:
    async def ask() -> list[int]:
        store, app = Halted(), FastAPI()
        reader = Reader(Watch(lambda snapshot: (), IncidentBook(), store), store)
        add_operating_routes(app, reader, store, Access(), AuditTrail(store))
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            asked = [asyncio.ensure_future(client.get("/api/v1/audit")) for _ in range(READERS)]
            asked += [asyncio.ensure_future(client.delete(f"/api/v1/jobs/{number}")) for number in range(READERS)]
            await asyncio.sleep(0)
            done, _ = await asyncio.wait(asked, timeout=0.5)
            assert not done
            await asyncio.wait_for(asyncio.to_thread(lambda: None), 30)
            store.answers.set()
            codes = [answer.status_code for answer in await asyncio.gather(*asked)]
        reader.close()
        return codes

    assert asyncio.run(ask()) == [200] * READERS + [404] * READERS
