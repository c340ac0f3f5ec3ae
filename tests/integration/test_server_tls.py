"""https:// and wss:// with a certificate of an authority of our own: server, agent and command line."""

import asyncio
import os
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from ncclwatch.cli.client.http import Client, ServerUnreachable
from ncclwatch.contract import config, wire
from ncclwatch.contract.errors import ConfigError
from ncclwatch_agent.uplink.connection import Callbacks, Failure, Uplink
from ncclwatch_agent.uplink.local_server import Answer
from tests.integration.server_process import ROOT
from tests.integration.test_server_command import first_line, refused, start

trustme = pytest.importorskip("trustme")
pytestmark = pytest.mark.integration

TOKEN = "s3-Kq81vXyTz04mWbRc"

HELLO = wire.Hello(protocol=config.PROTOCOL, agent="a", host="h", version="1")


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The address of a server for which a token and TLS are wanted, and the directory of its certificates."""
    directory = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(directory / "ca.pem"))
    trustme.CA().cert_pem.write_to_path(str(directory / "other.pem"))
    certificate = authority.issue_cert("localhost")
    for blob in certificate.cert_chain_pems:
        blob.write_to_path(str(directory / "cert.pem"), append=True)
    certificate.private_key_pem.write_to_path(str(directory / "key.pem"))
    certificate.private_key_and_cert_chain_pem.write_to_path(str(directory / "both.pem"))
    flags = ("--tls-cert", str(directory / "cert.pem"), "--tls-key", str(directory / "key.pem"))
    with start("--port", "0", "--ephemeral", *flags, NCCLWATCH_TOKEN=TOKEN) as process:
        said = first_line(process)
        assert "listens on https://127.0.0.1:" in said
        yield said.split()[-1].replace("127.0.0.1", "localhost"), directory
        process.terminate()


async def attempt(url: str) -> Failure | None:
    """Let a real uplink dial once. Returns why it failed, None if it was welcomed."""
    failures: list[Failure] = []
    uplink = Uplink(url, HELLO, TOKEN, config.NAMED)
    callbacks = Callbacks(picture=lambda: (), command=lambda _: None, failed=failures.append)
    running = asyncio.create_task(uplink.run(callbacks))
    while not failures and not uplink.connected:
        await asyncio.sleep(0.02)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    return failures[0] if failures else None


def test_agents_and_readers_talk_to_it_when_they_trust_its_authority(
    secure: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, directory = secure
    monkeypatch.setenv("NCCLWATCH_CA_FILE", str(directory / "ca.pem"))
    assert asyncio.run(attempt(url)) is None
    client = Client(url, TOKEN)
    client.check()
    assert client.jobs() == ()


@pytest.mark.parametrize("authority", ["", "other.pem"])
def test_who_does_not_trust_it_is_told_what_to_do_and_tells_it_nothing(
    secure: tuple[str, Path], authority: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, directory = secure
    monkeypatch.setenv("NCCLWATCH_CA_FILE", str(directory / authority) if authority else "")
    failure = asyncio.run(attempt(url))
    assert failure is not None
    assert failure.answer is Answer.REFUSAL  # and no server of our own is started in its place
    assert "is not trusted" in failure.sentence
    assert "NCCLWATCH_CA_FILE" in failure.sentence
    with pytest.raises(ServerUnreachable, match=r"is not trusted .*NCCLWATCH_CA_FILE"):
        Client(url, TOKEN).check()


def test_a_name_that_the_certificate_does_not_have_is_not_trusted(
    secure: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, directory = secure
    url = url.replace("localhost", "127.0.0.1")
    monkeypatch.setenv("NCCLWATCH_CA_FILE", str(directory / "ca.pem"))
    failure = asyncio.run(attempt(url))
    assert failure is not None
    assert "IP address mismatch" in failure.sentence
    with pytest.raises(ServerUnreachable, match="is not trusted"):
        Client(url, TOKEN).check()


def test_a_file_of_authorities_that_cannot_be_read_is_a_sentence(
    secure: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, directory = secure
    for name in ("none.pem", "key.pem"):
        monkeypatch.setenv("NCCLWATCH_CA_FILE", str(directory / name))
        with pytest.raises(ConfigError, match="cannot read certificates"):
            Client(url)
        failure = asyncio.run(attempt(url))
        assert failure is not None
        assert (failure.answer, "cannot read certificates" in failure.sentence) == (Answer.REFUSAL, True)


def test_who_dials_http_where_https_is_spoken_gets_no_answer_and_no_harm(secure: tuple[str, Path]) -> None:
    url = secure[0].replace("https", "http")
    failure = asyncio.run(attempt(url))
    assert failure is not None
    with pytest.raises(ServerUnreachable):
        Client(url).check()


def test_a_browser_is_told_to_show_its_token_over_tls_only(secure: tuple[str, Path]) -> None:
    url, directory = secure
    trust = ssl.create_default_context(cafile=str(directory / "ca.pem"))
    answer = httpx2.post(f"{url}/login", data={"token": TOKEN}, headers={"Origin": url}, verify=trust, timeout=10)
    assert answer.status_code == 303
    assert "Secure" in answer.headers["set-cookie"].split("; ")


def test_the_command_line_reads_its_authority_from_the_environment(secure: tuple[str, Path]) -> None:
    url, directory = secure
    environ = {k: v for k, v in os.environ.items() if not k.startswith("NCCLWATCH_")}
    environ |= {"NCCLWATCH_SERVER": url, "NCCLWATCH_TOKEN": TOKEN, "NCCLWATCH_CA_FILE": str(directory / "ca.pem")}
    done = subprocess.run(
        [sys.executable, "-m", "ncclwatch", "status", "--text"],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "no job reports" in done.stdout


def test_certificates_that_cannot_be_served_are_a_sentence(secure: tuple[str, Path], tmp_path: Path) -> None:
    directory = secure[1]
    key, other = str(directory / "key.pem"), str(directory / "other.pem")
    for flags in (("--tls-cert", "/none.pem"), ("--tls-key", key), ("--tls-cert", other, "--tls-key", key)):
        assert "--tls-cert" in refused("--port", "0", "--ephemeral", *flags)


def test_a_certificate_and_its_key_may_be_one_file(secure: tuple[str, Path]) -> None:
    with start("--port", "0", "--ephemeral", "--tls-cert", str(secure[1] / "both.pem")) as process:
        assert "https://" in first_line(process)
        process.terminate()
        assert process.wait(20) == 0
