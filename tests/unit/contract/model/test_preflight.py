"""What a rank says of its setup is read as far as it makes sense, and no further."""

import json

import pytest

from ncclwatch.contract import config
from ncclwatch.contract.machine import resources
from ncclwatch.contract.model import preflight
from ncclwatch.contract.model.preflight import RankFacts, parse, parse_parameters
from ncclwatch.contract.words.text import host_words

MODEL = {
    "kind": "DDP", "members": "0-1", "units": ["aa", "bb"], "order": "cc", "names": "dd", "count": 2, "used": 0,
    "site": ["/u/train.py", 20, "main"], "parameters": ["w float32 4x4", "b float32 4"],
}  # fmt: skip


def test_facts_are_sorted_and_what_is_no_fact_is_left_out():
    said = {"torch": "2.13.0", "NCCL_ALGO": "Ring", "HOME": "/root", "python": 3.11, "AWS_SECRET_ACCESS_KEY": "x"}
    assert parse(json.dumps({"values": said})).values == (("NCCL_ALGO", "Ring"), ("torch", "2.13.0"))


def test_a_value_is_cut_to_its_bound():
    assert len(parse(json.dumps({"values": {"torch": "x" * 9999}})).get(preflight.TORCH)) == config.FACT_CHARS_MAX


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"values": [1], "models": 7}', "[" * 100_000])
def test_any_other_text_says_nothing(text: str):
    assert parse(text) == RankFacts()
    assert parse_parameters(text, ("DDP", "0-1")) == ()


@pytest.mark.parametrize("change", [{"units": 7}, {"units": [1]}, {"units": None}])
def test_a_model_without_digests_is_none(change: dict[str, object]):
    assert parse(json.dumps({"models": [MODEL | change]})).models == ()


def test_a_model_is_read_with_its_line_and_its_parameters_apart():
    text = json.dumps({"models": [MODEL, MODEL | {"kind": "FSDP", "site": ["", "x"]}]})
    ddp, fsdp = parse(text).models
    assert (ddp.key, ddp.units, ddp.site) == (("DDP", "0-1"), ("aa", "bb"), ("/u/train.py", 20, "main"))
    assert fsdp.site is None
    assert parse_parameters(text, ("DDP", "0-1")) == ("w float32 4x4", "b float32 4")
    assert parse_parameters(text, ("DDP", "0-3")) == ()


def test_models_units_and_parameters_are_bounded():
    too_many = ["p" * (preflight.PARAMETER_CHARS_MAX + 1)] * (preflight.PARAMETERS_MAX + 1)
    big = MODEL | {"units": ["a"] * (preflight.UNITS_MAX + 1), "parameters": too_many}
    text = json.dumps({"models": [big, *[MODEL] * preflight.MODELS_MAX]})
    models = parse(text).models
    assert (len(models), len(models[0].units)) == (preflight.MODELS_MAX, preflight.UNITS_MAX)
    parameters = parse_parameters(text, ("DDP", "0-1"))
    assert (len(parameters), len(parameters[0])) == (preflight.PARAMETERS_MAX, preflight.PARAMETER_CHARS_MAX)


@pytest.mark.parametrize(
    ("hosts", "said"),
    [
        (["node3", "node1", "node2", "node7"], "node[1-3,7]"),
        (["gpu-07-a", "gpu-08-a"], "gpu-[07-08]-a"),
        (["node09", "node10"], "node[09-10]"),
        (["b", "a", "a"], "a, b"),
        ([], ""),
        ([chr(97 + n) for n in range(9)], "a, b, c, d, e, f, and 3 more"),
    ],
)
def test_hosts_are_told_briefly(hosts: list[str], said: str):
    assert host_words(hosts) == said


@pytest.mark.parametrize(
    ("choice", "none"),
    [
        ("eth", False), ("=eth0", False), ("=eth", True), ("ib", True), ("ib,eth", False), ("^lo,docker", False),
        ("^=eth0", False), ("", False),
    ],
)  # fmt: skip
def test_nccl_takes_prefixes_whole_names_and_exclusions(choice: str, none: bool):
    assert resources.nccl_takes_none(choice, ("lo", "eth0")) is none
    assert resources.nccl_takes_none(choice, ()) is False


def test_gloo_takes_whole_names_and_wants_all_of_them():
    assert resources.gloo_lacks("eth", ("lo", "eth0"))
    assert resources.gloo_lacks("eth0,eth1", ("lo", "eth0"))
    assert not resources.gloo_lacks("eth0", ("lo", "eth0"))
    assert not resources.gloo_lacks("eth1", ())


@pytest.mark.parametrize(
    ("scope", "capabilities", "refused"),
    [("", 0, False), ("0", 0, False), ("1", 0, False), ("2", 0, True), ("2", 1 << 19, False), ("3", 1 << 19, True)],
)
def test_who_may_trace_depends_on_yama_and_a_capability(scope: str, capabilities: int, refused: bool):
    assert bool(resources.ptrace_refusal(scope, capabilities)) is refused


def test_the_driver_is_read_from_the_kernels_own_words():
    text = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.15  Release Build\nGCC version: 12\n"
    assert resources.nvidia_driver(text) == "550.54.15"
    assert resources.nvidia_driver("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat") == "535.104.05"
    assert resources.nvidia_driver("") == ""


def test_infiniband_is_active_when_a_port_is(tmp_path):
    port = tmp_path / "mlx5_0" / "ports" / "1"
    port.mkdir(parents=True)
    (port / "state").write_text("1: DOWN\n")
    assert not resources.infiniband_is_active(str(tmp_path))
    (port / "state").write_text("4: ACTIVE\n")
    assert resources.infiniband_is_active(str(tmp_path))
    assert not resources.infiniband_is_active(str(tmp_path / "nothing"))
