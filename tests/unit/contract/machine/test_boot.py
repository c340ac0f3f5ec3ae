"""By what a machine is known to a server."""

import os
from pathlib import Path

from ncclwatch.contract.machine import boot


def test_a_machine_is_known_by_a_hash_of_its_boot_and_unknown_without_one(tmp_path: Path) -> None:
    file = tmp_path / "boot_id"
    assert boot.machine(str(file)) == ""
    file.write_text("")
    assert boot.machine(str(file)) == ""
    file.write_text("0e3f1c4a-one\n")
    one = boot.machine(str(file))
    file.write_text("0e3f1c4a-two\n")
    assert len({one, boot.machine(str(file)), ""}) == 3
    assert "0e3f1c4a" not in one


def test_a_host_is_called_what_its_environment_says_or_by_its_host_name() -> None:
    own = os.uname().nodename
    assert [boot.host_name(environ) for environ in ({}, {"NCCLWATCH_HOST": " "}, {"NCCLWATCH_HOST": "\x1b"})] == [
        own
    ] * 3
    assert boot.host_name({"NCCLWATCH_HOST": "gpu-17/trainer-0\n"}) == "gpu-17/trainer-0"
    assert boot.host_name({"NCCLWATCH_HOST": "x" * 1000}) == "x" * 200
