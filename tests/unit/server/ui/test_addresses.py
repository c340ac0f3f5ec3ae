"""An address that no page can have is answered with a page, and with JSON where a program asks."""

import pytest
from fastapi import FastAPI, Query
from starlette.testclient import TestClient

from ncclwatch_server.ui.pages import tell_of_addresses


@pytest.fixture(name="client")
def _client() -> TestClient:
    app = FastAPI()
    tell_of_addresses(app)

    @app.get("/incidents")
    @app.get("/api/v1/incidents")
    async def found(text: str = Query(max_length=3)) -> str:
        return text

    return TestClient(app)


def test_a_person_reads_what_is_wrong_with_it(client: TestClient):
    answer = client.get("/incidents?text=long", headers={"accept": "text/html"})
    assert answer.status_code == 422
    assert "<h1>" in answer.text and "text: String should have at most 3 characters" in answer.text


@pytest.mark.parametrize(("path", "accept"), [("/incidents", "*/*"), ("/api/v1/incidents", "text/html")])
def test_a_program_gets_json(client: TestClient, path: str, accept: str):
    answer = client.get(f"{path}?text=long", headers={"accept": accept})
    assert answer.status_code == 422
    assert answer.json()["detail"][0]["loc"] == ["query", "text"]
