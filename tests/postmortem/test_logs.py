"""What NCCL, its watchdog, Python and torchrun write into logs, as users post them."""

from pathlib import Path

from tests.postmortem.analysis import brief, said, told

PREFIX = "[rank{rank}]:[E321 02:07:08.408271257 ProcessGroupNCCL.cpp:{line}] "
CAUGHT = (
    PREFIX
    + "[Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={seq}, OpType={op}, NumelIn={numel},"
    " NumelOut={numel}, Timeout(ms)=600000) ran for 600060 milliseconds before timing out.\n"
)
STATUS = (
    PREFIX
    + "[PG ID 0 PG GUID 0(default_pg) Rank {rank}] Exception (either an error or timeout) detected by watchdog at "
    "work: {seq}, last enqueued NCCL work: {enqueued}, last completed NCCL work: {completed}.\n"
)
SIGNAL = (
    PREFIX
    + "[PG ID 0 PG GUID 0(default_pg) Rank {rank}] Received a dump signal due to a collective timeout from  rank 0 "
    "and we will try our best to dump the debug info. Last enqueued NCCL work: {seq}, last completed NCCL work: {seq}."
    "This is most likely caused by incorrect usages of collectives, e.g., wrong sizes used across ranks.\n"
)


def caught(rank: int, seq: int, op: str = "ALLREDUCE", numel: int = 1000) -> str:
    """Return the two lines of a rank whose work timed out."""
    return CAUGHT.format(rank=rank, line=607, seq=seq, op=op, numel=numel) + STATUS.format(
        rank=rank, line=1664, seq=seq, enqueued=seq + 2, completed=seq - 1
    )


def log(folder: Path, text: str, name: str = "job.log") -> Path:
    """Write a log."""
    (folder / name).write_text("some progress 12%\n" + text + "more of it\n")
    return folder


def test_the_rank_that_only_heard_of_the_timeout_is_the_one_that_did_not_come(tmp_path: Path):
    text = caught(0, 1580) + caught(1, 1580) + SIGNAL.format(rank=2, line=1987, seq=1579) + caught(3, 1580)
    assert brief(log(tmp_path, text)) == [("critical", "STALLED", "undetermined", [2], [0, 1, 3])]
    assert "all_reduce #1580 of the default group" in told(tmp_path)
    assert said(tmp_path)["incidents"][0]["onset_to_open_s"] > 599


def test_a_rank_that_says_nothing_is_unknown(tmp_path: Path):
    incident = said(log(tmp_path, caught(0, 7) + caught(1, 7) + caught(3, 7)))["incidents"][0]
    assert ([c["rank"] for c in incident["culprits"]], incident["one_of"]) == ([2], True)


def test_two_operations_at_one_number_are_a_mismatch(tmp_path: Path):
    text = caught(0, 80078, "BROADCAST", 5056) + caught(1, 80078) + caught(2, 80078)
    (found,) = brief(log(tmp_path, text))
    assert found[2:4] == ("divergent_control_flow", [0])


def test_who_reports_a_timeout_of_an_unknown_group_is_not_blamed(tmp_path: Path):
    text = (
        "[E ProcessGroupNCCL.cpp:737] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=469508, "
        "OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 1802212 milliseconds before timing out.\n"
    )
    incident = said(log(tmp_path, text))["incidents"][0]
    assert (incident["culprits"], incident["victims"]) == ([], [1])
    assert "rank 1 reports it says only that it waited" in told(tmp_path)


def test_two_ranks_on_one_gpu(tmp_path: Path):
    text = (
        "[1,2]<stdout>:gpu-03:29880:30398 [0] init.cc:497 NCCL WARN Duplicate GPU detected : rank 2 and rank 0 both on "
        "CUDA device 1000\n"
        "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\nLast error:\n"
        "Duplicate GPU detected : rank 0 and rank 2 both on CUDA device 1000\n"
    )
    assert [each[:4] for each in brief(log(tmp_path, text))] == [("critical", "PROVEN", "duplicate_device", [0, 2])]
    assert "gpu-03" in told(tmp_path)
    assert "set_device" in told(tmp_path)


def test_the_newer_words_for_a_shared_gpu_name_no_rank(tmp_path: Path):
    text = (
        "node7:11:12 [0] init.cc:1141 (initTransportsRank) NCCL WARN Multiple Ranks are using the same GPU/Partition. "
        "Set NCCL_MULTI_RANK_GPU_ENABLE=1 to enable this configuration.\n"
    )
    assert [each[:4] for each in brief(log(tmp_path, text))] == [("critical", "PROVEN", "duplicate_device", [])]
    assert "node7" in told(tmp_path)


def test_the_exception_of_one_rank_explains_the_timeouts_of_the_others(tmp_path: Path):
    text = (
        "[rank2]: Traceback (most recent call last):\n"
        '[rank2]:   File "/home/user/train.py", line 31, in step\n'
        '[rank2]:     loss.backward()\n'
        '[rank2]:   File "/opt/site-packages/torch/_tensor.py", line 500, in backward\n'
        "[rank2]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n"
    )  # fmt: skip
    incident = said(log(tmp_path, text + caught(0, 9) + caught(1, 9)))["incidents"][0]
    assert (incident["cause"], [c["rank"] for c in incident["culprits"]]) == ("rank_crashed", [2])
    assert incident["victims"] == [0, 1]
    assert incident["culprits"][0]["call_site"]["line"] == 31
    assert {each["source"] for each in incident["evidence"]} == {"log"}
    assert incident["evidence"][0]["fact"] == "ended with OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"


def test_a_rank_that_lost_a_peer_is_a_victim(tmp_path: Path):
    text = (
        "[rank1]: Traceback (most recent call last):\n"
        "[rank1]: RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:4567\n"
        "[rank0]: Traceback (most recent call last):\n"
        "[rank0]: ValueError: bad batch\n"
    )
    assert [each[2:4] for each in brief(log(tmp_path, text))] == [("rank_crashed", [0])]


def test_torchrun_tells_who_was_killed(tmp_path: Path):
    text = (
        "Root Cause (first observed failure):\n[0]:\n  time      : 2026-05-14_10:33:48\n  host      : node-a\n"
        "  rank      : 5 (local_rank: 1)\n  exitcode  : -9 (pid: 4711)\n  error_file: <N/A>\n"
    )
    (found,) = brief(log(tmp_path, text))
    assert found[2:4] == ("rank_crashed", [5])
    assert "SIGKILL" in told(tmp_path)


def test_the_abort_after_a_timeout_is_no_failure_of_its_own(tmp_path: Path):
    """torchrun calls the rank that timed out first the root cause; it only waited for rank 1."""
    text = (
        caught(0, 12) + SIGNAL.format(rank=1, line=1987, seq=11)
        + "  rank      : 0 (local_rank: 0)\n  exitcode  : -6 (pid: 4711)\n"
    )  # fmt: skip
    assert [each[2:] for each in brief(log(tmp_path, text))] == [("undetermined", [1], [0])]


def test_the_logs_that_torchrun_keeps_by_rank(tmp_path: Path):
    folder = tmp_path / "attempt_0" / "3"
    folder.mkdir(parents=True)
    (folder / "stderr.log").write_text(
        "Traceback (most recent call last):\n  File \"/home/user/train.py\", line 8, in <module>\nKeyError: 'x'\n"
    )
    assert [each[2:4] for each in brief(tmp_path)] == [("rank_crashed", [3])]
