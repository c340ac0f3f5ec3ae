"""Each check of `ncclwatch doctor` passes where all is well, and says what to do where it is not."""

import json
import os
import stat
import sys
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from ncclwatch.cli.commands import doctor as command
from ncclwatch.cli.doctor import node_checks, server_checks, settings_checks, torch_checks
from ncclwatch.cli.doctor.check import Check, Status, failed, passed, warned
from ncclwatch.contract.ring.layout import RING_BYTES


def settings(**environ: str) -> list[Check]:
    return list(settings_checks.settings(environ))


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0"),
        ("NCCL_ASYNC_ERROR_HANDLING", "0"),
        ("TORCH_NCCL_ENABLE_MONITORING", "0"),
        ("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "59"),
        ("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "3601"),
        ("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "soon"),
        ("NCCL_IGNORE_NET_MISMATCH", "1"),
        ("TORCH_DISTRIBUTED_DEBUG", "DETAIL"),
        ("CUDA_LAUNCH_BLOCKING", "1"),
    ],
)
def test_a_variable_that_hides_hangs_is_warned_of_with_its_value_and_a_fix(variable: str, value: str):
    (check,) = settings(**{variable: value})
    assert check.status is Status.WARN
    assert f"{variable}={value}" in check.fact
    assert check.fix


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "3"),
        ("TORCH_NCCL_ENABLE_MONITORING", "1"),
        ("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "60"),
        ("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "3600"),
        ("NCCL_IGNORE_NET_MISMATCH", "0"),
        ("TORCH_DISTRIBUTED_DEBUG", "INFO"),
        ("CUDA_LAUNCH_BLOCKING", "0"),
        ("NCCL_DEBUG", "INFO"),
    ],
)
def test_the_same_variable_with_another_value_passes(variable: str, value: str):
    assert [check.status for check in settings(**{variable: value})] == [Status.PASS]


def test_several_wrong_variables_are_told_each():
    assert len(settings(CUDA_LAUNCH_BLOCKING="1", TORCH_NCCL_ENABLE_MONITORING="0")) == 2


def test_an_interface_that_is_not_here_fails_and_one_that_is_passes():
    names = ("lo", "eth0")
    assert settings_checks.interfaces({"NCCL_SOCKET_IFNAME": "ib"}, names).status is Status.FAIL
    assert settings_checks.interfaces({"GLOO_SOCKET_IFNAME": "eth1"}, names).status is Status.FAIL
    assert settings_checks.interfaces({"NCCL_SOCKET_IFNAME": "eth"}, names).status is Status.PASS
    assert settings_checks.interfaces({}, ()).status is Status.PASS


@pytest.mark.parametrize(
    ("size_mb", "status"), [(64, Status.WARN), (65, Status.WARN), (511, Status.WARN), (512, Status.PASS)]
)
def test_dev_shm_is_judged_by_its_size(size_mb: int, status: Status):
    assert node_checks.shared_memory(size_mb).status is status


@pytest.mark.parametrize(("limit", "status"), [(4095, Status.WARN), (4096, Status.PASS), (-1, Status.PASS)])
def test_open_files_are_judged_by_their_limit(limit: int, status: Status):
    assert node_checks.open_files(limit).status is status


def test_locked_memory_matters_where_infiniband_is_up():
    assert node_checks.locked_memory(65536, active=True).status is Status.WARN
    assert node_checks.locked_memory(65536, active=False).status is Status.PASS
    assert node_checks.locked_memory(-1, active=True).status is Status.PASS


def test_a_runtime_directory_that_is_not_there_fails_and_names_the_variable(tmp_path: Path):
    check = node_checks.runtime_directory({"NCCLWATCH_RUNTIME_DIR": str(tmp_path / "nothing")})
    assert (check.status, "NCCLWATCH_RUNTIME_DIR" in check.fix) == (Status.FAIL, True)


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_a_runtime_directory_that_is_read_only_fails(tmp_path: Path):
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    assert node_checks.runtime_directory({"NCCLWATCH_RUNTIME_DIR": str(tmp_path)}).status is Status.FAIL


@pytest.mark.parametrize(("rings", "status"), [(1, Status.FAIL), (63, Status.WARN), (64, Status.PASS)])
def test_a_runtime_directory_is_judged_by_its_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rings: int, status: Status
):
    usage = type("Usage", (), {"free": rings * RING_BYTES})
    monkeypatch.setattr(node_checks.shutil, "disk_usage", lambda _: usage)
    assert node_checks.runtime_directory({"NCCLWATCH_RUNTIME_DIR": str(tmp_path)}).status is status


def test_a_kernel_that_refuses_to_trace_is_told_before_anything_is_tried(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(node_checks, "try_to_read_a_stack", lambda _: pytest.fail("it was tried"))
    check = node_checks.stacks("kernel.yama.ptrace_scope is 2")
    assert check.status is Status.WARN
    assert "ptrace_scope=1" in check.fix
    assert "SYS_PTRACE" in check.fix


def test_a_py_spy_that_is_refused_is_told_in_its_own_words(tmp_path: Path):
    tool = tmp_path / "py-spy"
    tool.write_text("#!/bin/sh\necho 'Permission Denied: try sudo' >&2\nexit 1\n")
    tool.chmod(0o755)
    assert node_checks.try_to_read_a_stack(str(tool)) == "Permission Denied: try sudo"
    assert "No such file" in node_checks.try_to_read_a_stack(str(tmp_path / "none"))


def test_the_stack_of_a_child_is_really_read(tmp_path: Path):
    tool = tmp_path / "py-spy"
    tool.write_text('#!/bin/sh\ntest "$1 $2 $3" = "dump --nonblocking --pid" && test -d "/proc/$4"\n')
    tool.chmod(0o755)
    assert node_checks.try_to_read_a_stack(str(tool)) == ""


@pytest.mark.parametrize(
    ("driver", "answer", "status", "fact"),
    [
        ("", b"", Status.PASS, "no NVIDIA driver"),
        ("550.54", None, Status.FAIL, "does not answer"),
        ("550.54", b'{"failure": "Driver Not Loaded"}', Status.FAIL, "Driver Not Loaded"),
        ("550.54", b'{"gpus": [{"uuid": "GPU-a"}, {"uuid": "GPU-b", "trouble": "GPU is lost"}]}', Status.FAIL, "GPU-b"),
        ("550.54", b'{"gpus": [{"uuid": "GPU-a", "name": "H100"}]}', Status.PASS, "1 GPUs"),
        ("550.54", b"", Status.WARN, "could not be asked"),
    ],
)
def test_gpus_are_judged_by_what_nvml_says(driver: str, answer: bytes | None, status: Status, fact: str):
    check = node_checks.gpus(driver, lambda: answer)
    assert (check.status, fact in check.fact) == (status, True)


@pytest.mark.parametrize(
    ("version", "status"),
    [
        ("2.5.1", Status.FAIL), ("2.6.0+cu124", Status.PASS), ("2.15.0", Status.PASS), ("2.16.0", Status.WARN),
        ("3.0.0.dev1", Status.WARN),
    ],
)  # fmt: skip
def test_torch_is_judged_by_its_version(version: str, status: Status):
    assert torch_checks.judged_torch(version, available=True).status is status
    assert torch_checks.judged_torch(version, available=False).status is Status.FAIL


def test_a_second_witness_that_is_turned_off_is_told():
    assert torch_checks.second_witness({"NCCLWATCH_WITNESS": "0"}).status is Status.WARN
    assert "TORCH_FR_BUFFER_SIZE" in torch_checks.second_witness({"TORCH_FR_BUFFER_SIZE": "0"}).fix


def test_a_server_that_is_named_and_does_not_answer_fails_and_one_that_nobody_named_does_not():
    assert server_checks.server({"NCCLWATCH_SERVER": "http://127.0.0.1:9"}).status is Status.FAIL
    assert server_checks.server({"MASTER_ADDR": "127.0.0.1"}).status in (Status.PASS, Status.FAIL)
    assert server_checks.clock({"NCCLWATCH_SERVER": "http://127.0.0.1:9"}).status is Status.PASS


def test_a_token_file_that_cannot_be_read_fails(tmp_path: Path):
    check = server_checks.server(
        {"NCCLWATCH_SERVER": "http://127.0.0.1:9", "NCCLWATCH_TOKEN_FILE": str(tmp_path / "none")}
    )
    assert (check.status, "NCCLWATCH_TOKEN_FILE" in check.fix) == (Status.FAIL, True)


def test_a_clock_is_off_by_what_a_whole_second_leaves_no_doubt_of():
    assert server_checks.offset_s((100.2, 100.3), 100.0) == 0.0
    assert server_checks.offset_s((100.9, 101.1), 100.0) == 0.0
    assert server_checks.offset_s((110.0, 110.5), 100.0) == 9.0
    assert server_checks.offset_s((90.0, 90.5), 100.0) == -9.5


@pytest.mark.parametrize(("ahead_s", "status"), [(5.0, Status.PASS), (5.1, Status.WARN), (-5.1, Status.WARN)])
def test_a_clock_is_judged_by_its_offset(ahead_s: float, status: Status):
    assert server_checks.judged_clock(ahead_s).status is status


@pytest.mark.parametrize(
    ("looks", "code", "worst"),
    [
        ((passed("a", "well"),), 0, "PASS"),
        ((passed("a", "well"), warned("b", "less", "do it")), 1, "WARN"),
        ((failed("c", "broken", "mend it"), warned("b", "less", "do it")), 3, "FAIL"),
    ],
)
def test_the_worst_check_decides_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, looks: tuple[Check, ...], code: int, worst: str
):
    monkeypatch.setattr(command, "checks", lambda: iter(looks))
    done = CliRunner().invoke(command.doctor, ["--json"])
    assert done.exit_code == code
    report = json.loads(done.output)
    assert (report["schema"], report["status"], len(report["checks"])) == (1, worst, len(looks))
    plain = CliRunner().invoke(command.doctor, [])
    assert plain.exit_code == code
    assert all(f"do: {look.fix}" in plain.output for look in looks if look.fix)


def test_each_check_has_a_name_of_its_own_and_a_fix_where_it_does_not_pass(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(node_checks, "try_to_read_a_stack", lambda _: "")
    monkeypatch.setenv("NCCLWATCH_SERVER", "http://127.0.0.1:9")
    found = list(command.checks())
    assert len({check.name for check in found}) == len(found) - sum(c.name == "settings" for c in found) + 1
    assert all(check.fix for check in found if check.status is not Status.PASS)
    assert sys.executable in found[0].fact
    assert len(msgspec.json.decode(msgspec.json.encode(found))) == len(found)  # also of the real torch's version
