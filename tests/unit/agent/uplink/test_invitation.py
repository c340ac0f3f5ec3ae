"""What agents pass each other through a job's store, where any rank may write."""

import contextlib
import json
import ssl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclwatch.contract import config
from ncclwatch.contract.errors import WireError
from ncclwatch_agent.shared_servers import _pattern
from ncclwatch_agent.uplink.invitation import Invitation, decode, encode, hosts_of_this_node
from ncclwatch_server.serving.certificate import make

GOOD = Invitation(
    hosts=("head", "10.0.0.1", "fe80::1"), port=43721, certificate=ssl.DER_cert_to_PEM_cert(b"x"), token="t"
)


def test_an_invitation_comes_back_as_it_was_sent() -> None:
    assert decode(encode(GOOD)) == GOOD


def test_the_longest_one_is_carried_whole() -> None:
    longest = Invitation(hosts=("h" * 255,) * 8, port=65535, certificate=make()[1], token="t" * 43)
    assert len(encode(longest)) <= config.OFFER_BYTES_MAX


def test_its_addresses_are_tried_in_turn() -> None:
    assert [GOOD.url(turn) for turn in range(4)] == [
        "https://head:43721", "https://10.0.0.1:43721", "https://[fe80::1]:43721", "https://head:43721",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\xff\x00", b"{}", b"[]", b'{"hosts":[],"port":1,"certificate":"","token":""}',
        b'{"hosts":["a\\n"],"port":1,"certificate":"","token":""}',
        b'{"hosts":["a"],"port":0,"certificate":"","token":""}',
        b'{"hosts":["a"],"port":65536,"certificate":"","token":""}',
        b'{"hosts":["a","a","a","a","a","a","a","a","a"],"port":1,"certificate":"","token":""}',
    ],
)  # fmt: skip
def test_what_is_none_is_refused(data: bytes) -> None:
    with pytest.raises(WireError, match="the job's store has no address of a server"):
        decode(data)


@given(st.binary(max_size=200))
def test_nothing_in_the_store_ends_an_agent(data: bytes) -> None:
    with contextlib.suppress(WireError):
        decode(data)


def test_the_name_by_which_the_store_is_reached_comes_first_and_no_loopback_address() -> None:
    found = hosts_of_this_node("head")
    assert found[0] == "head"
    assert not [host for host in found if host.startswith("127.")]


@pytest.mark.parametrize("name", ["plain", "team-a/run-1", "odd *?[name], job=x"])
def test_the_token_is_for_a_job_of_that_name(name: str) -> None:
    from ncclwatch.contract.network.tokens import parse

    (token,) = parse(f"{'s' * 20} name=this-job job={_pattern(name)}", "here")
    assert token.bounds.allow_job(name)
    assert not token.bounds.allow_job(f"{name}x")
    assert token.bounds.jobs_max is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"certificate": "nope"},
        {"hosts": ["[::"]},
        {"hosts": ["a b"]},
        {"hosts": ["u@h"]},
        {"hosts": ["h/x"]},
        {"token": "a\r\nb: c"},
    ],
)
def test_what_could_be_no_address_or_certificate_is_no_invitation(wrong: dict[str, object]) -> None:
    pem = ssl.DER_cert_to_PEM_cert(b"bytes")
    right = {"hosts": ["10.0.0.1", "fe80::1%eth0", "node-0.x_y"], "port": 1, "certificate": pem, "token": "t"}
    assert decode(json.dumps(right).encode()).port == 1
    with pytest.raises(WireError, match="no address of a server"):
        decode(json.dumps(right | wrong).encode())
