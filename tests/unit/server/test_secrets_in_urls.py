"""Passwords in the address of a store and secrets in the address of a hook are in no sentence of the server."""

import asyncio

import httpx
import pytest
from sqlalchemy.exc import OperationalError

from ncclwatch.contract.errors import ConfigError, NcclwatchError
from ncclwatch_server.notify.posting import post
from ncclwatch_server.store import database

STORES = [
    "postgresql://me:hunter2@db:5432/w", "postgresql://me@db/w?password=hunter2", "postgresql://me:hunter2@db:port/w",
    "postgresql://me:hunter2", "oracle://me:hunter2@db/w", "postgresql://hunter2:x@db/w", "hunter2://",
    "sqlite:///w.db?key=hunter2",
]  # fmt: skip
HOOK = "https://hooks.example/services/T0000/B0000/hunter2hunter2?key=hunter2"


@pytest.mark.parametrize("url", STORES)
def test_a_store_is_shown_without_what_may_be_secret(url: str) -> None:
    error = OperationalError("", None, Exception(f"cannot use {url}: bad password hunter2"))
    assert "hunter2" not in database.shown(url) or url == "hunter2://"
    if not url.startswith(("postgresql://hunter2", "hunter2")):
        assert "hunter2" not in database.cannot("open", url, error)


@pytest.mark.parametrize("url", [url for url in STORES if url.startswith(("postgresql://me:hunter2", "oracle"))])
def test_a_store_that_cannot_be_opened_is_a_sentence_without_its_password(url: str) -> None:
    try:
        database.connect(url).dispose()
    except ConfigError as error:
        assert "hunter2" not in str(error)


def test_a_password_that_is_quoted_in_the_address_is_hidden_in_both_forms() -> None:
    error = OperationalError("", None, Exception("bad password p@hunter2 (p%40hunter2)"))
    assert "hunter2" not in database.cannot("open", "postgresql://me:p%40hunter2@db/w", error)


def test_where_a_store_is_can_still_be_read() -> None:
    assert database.shown("postgresql://me:x@db:5432/w?sslmode=require") == "postgresql://db:5432/w"
    assert database.shown("sqlite:////var/lib/w.db") == "sqlite:////var/lib/w.db"


@pytest.mark.parametrize("status", [400, 404, 500])
def test_an_answer_that_repeats_the_address_of_a_hook_is_told_without_its_secret(status: int) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(
            status, stream=httpx.ByteStream(f"no such hook: {request.url} or {request.url.path}".encode())
        )

    async def send() -> None:
        async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
            await post(client, HOOK, b"{}")

    with pytest.raises(NcclwatchError, match=f"HTTP {status}") as refused:
        asyncio.run(send())
    assert "hunter2" not in str(refused.value)


def test_an_error_of_the_network_is_told_without_it_too() -> None:
    def fail(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError(f"cannot reach {request.url}")

    async def send() -> None:
        async with httpx.AsyncClient(transport=httpx.MockTransport(fail)) as client:
            await post(client, HOOK, b"{}")

    with pytest.raises(NcclwatchError, match="ConnectError") as refused:
        asyncio.run(send())
    assert "hunter2" not in str(refused.value)
