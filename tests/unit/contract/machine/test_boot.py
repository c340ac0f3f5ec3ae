"""By what a machine is known to a server."""

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
