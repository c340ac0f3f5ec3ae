"""Under which name the host of an agent is shown."""

from ncclwatch.contract.network.tokens import Bounds
from ncclwatch_server.evidence.agent_link import Link
from ncclwatch_server.ingest.host_names import HostNames
from ncclwatch_server.security.scopes import Caller

BOUND = Caller(name="a", holder="a", bounds=Bounds(hosts=("gpu-a-*",)))
ONE, OTHER = Caller(name="b", holder="b"), Caller(name="c", holder="c")


def link(caller: Caller, host: str, machine: str) -> Link:
    return Link(number=1, agent="x", host=host, version="1", machine=machine, caller=caller)


def test_a_name_to_which_a_token_is_bound_is_shown_of_that_token_only() -> None:
    names = HostNames([("a", BOUND.bounds)])
    names.enter(link(ONE, "gpu-a-1~b", "m"))
    assert names.shown(BOUND, "gpu-a-1", "") == "gpu-a-1"
    assert names.shown(ONE, "gpu-a-1", "m") == "gpu-a-1~b"
    assert names.shown(ONE, "gpu-a-1~a", "m") == "gpu-a-1~a~b"


def test_a_free_name_belongs_to_the_token_whose_living_agent_uses_it_and_to_that_machine() -> None:
    names, first = HostNames(), link(ONE, "pod-0", "m")
    names.enter(first)
    assert [names.shown(each, "pod-0", "n") for each in (ONE, OTHER)] == ["pod-0", "pod-0~c"]
    assert names.shown(OTHER, "pod-0", "m") == "pod-0"
    assert names.shown(OTHER, "pod-0", "") == "pod-0~c"
    names.leave(first)
    assert names.shown(OTHER, "pod-0", "n") == "pod-0"


def test_without_tokens_every_host_is_called_as_it_says() -> None:
    names, anyone = HostNames(), Caller(name="anyone")
    names.enter(link(anyone, "h", "m"))
    assert [names.shown(anyone, host, "n") for host in ("h", "h~x", "")] == ["h", "h~x", ""]
