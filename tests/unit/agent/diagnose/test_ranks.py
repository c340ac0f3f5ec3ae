"""Which processes are ranks, told by their environment."""

from dataclasses import replace

from ncclwatch_agent.diagnose.command import choose
from ncclwatch_agent.diagnose.ranks import FoundJob, Process, find_jobs

PYTHON = "/usr/bin/python3.11"


def process(pid: int, parent: int = 1, *arguments: str, **environ: str) -> Process:
    return Process(
        pid=pid, parent=parent, start_ticks=pid, executable=PYTHON, arguments=(PYTHON, *arguments),
        environ=environ,
    )  # fmt: skip


def rank(pid: int, number: int, parent: int = 10, world: int = 2, port: int = 29500, **more: str) -> Process:
    return process(
        pid, parent, "train.py", RANK=str(number), WORLD_SIZE=str(world), LOCAL_RANK=str(number),
        LOCAL_WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), **more,
    )  # fmt: skip


LAUNCHER = process(10, 5, "/usr/bin/torchrun", "train.py")


def found(*processes: Process) -> list[dict[int, int]]:
    return [{one.rank: one.pid for one in job.ranks} for job in find_jobs(processes)]


def only(*processes: Process) -> FoundJob:
    (job,) = find_jobs(processes)
    return job


def test_the_ranks_of_a_launcher_are_found_and_it_is_none():
    assert found(LAUNCHER, rank(20, 0), rank(21, 1)) == [{0: 20, 1: 21}]


def test_children_of_ranks_inherit_the_environment_and_are_no_ranks():
    worker = replace(rank(30, 0), parent=20)
    grandchild = replace(rank(31, 0), parent=30)
    assert found(LAUNCHER, rank(20, 0), rank(21, 1), worker, grandchild) == [{0: 20, 1: 21}]


def test_of_a_shell_around_a_rank_the_python_below_it_is_the_rank():
    shell = replace(rank(20, 0), executable="/usr/bin/bash", arguments=("bash", "wrap.sh"))
    assert found(shell, replace(rank(22, 0), parent=20), rank(21, 1)) == [{0: 22, 1: 21}]


def test_our_own_agent_and_pythons_helpers_are_no_ranks():
    ranks = (rank(20, 0, parent=1), rank(21, 1, parent=1))  # as they are: nobody's children, and older
    agent = replace(rank(40, 0, parent=1), arguments=(PYTHON, "-m", "ncclwatch_agent"))
    tracker = replace(
        rank(41, 1, parent=1), arguments=(PYTHON, "-c", "from multiprocessing.resource_tracker import main;main(9)")
    )
    assert found(*ranks, agent) == [{0: 20, 1: 21}]
    assert found(*ranks, tracker) == [{0: 20, 1: 21}]


def test_jobs_are_told_apart_by_where_they_meet():
    assert len(found(rank(20, 0), rank(21, 1), rank(30, 0, port=29600), rank(31, 1, port=29600))) == 2


def test_a_rank_that_should_be_here_is_missing():
    assert only(rank(20, 0, world=4), rank(21, 1, world=4), rank(23, 3, world=4)).missing == (2,)


def test_ranks_of_other_nodes_are_elsewhere_and_not_missing():
    here = [replace(one, environ={**one.environ, "WORLD_SIZE": "4"}) for one in (rank(20, 0), rank(21, 1))]
    job = only(*here)
    assert (job.missing, job.elsewhere) == ((), (2, 3))


def test_what_a_rank_that_is_gone_left_behind_is_not_that_rank():
    orphan = rank(31, 1, parent=1)
    assert only(LAUNCHER, rank(20, 0), orphan).missing == (1,)
    adopted = replace(rank(31, 1, parent=7), session=21)  # by another than init
    assert only(LAUNCHER, replace(rank(20, 0), session=20), adopted).missing == (1,)


def test_ranks_whose_launcher_was_killed_are_still_ranks():
    assert found(rank(20, 0, parent=1), rank(21, 1, parent=1)) == [{0: 20, 1: 21}]


def test_two_processes_that_are_one_rank_are_told():
    assert only(rank(20, 0), rank(21, 1), rank(22, 1)).doubles == ((1, (21, 22)),)


def test_ranks_of_srun_are_found():
    slurm = {"SLURM_NTASKS": "2", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}
    ranks = [process(20 + n, 5, "train.py", SLURM_PROCID=str(n), **slurm) for n in range(2)]
    assert found(*ranks) == [{0: 20, 1: 21}]


def test_what_srun_started_is_no_rank_when_ranks_run_below_it():
    slurm = {"SLURM_NTASKS": "1", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": "0"}
    launcher = process(20, 5, "own_launcher.py", **slurm)
    assert found(launcher, rank(30, 0, parent=20, **slurm), rank(31, 1, parent=20, **slurm)) == [{0: 30, 1: 31}]


def test_a_rank_outside_its_world_is_nobody():
    assert found(rank(20, 5)) == []


def test_a_launchers_pid_stands_for_its_ranks_and_nobody_else_is_missed():
    jobs, _ = choose([10], [LAUNCHER, rank(20, 0, world=3), rank(21, 1, world=3), rank(30, 2, parent=9, world=3)])
    assert [[one.pid for one in job.ranks] for job in jobs] == [[20, 21]]
    assert (jobs[0].missing, jobs[0].elsewhere) == ((), ())


def test_a_process_that_nothing_calls_a_rank_is_looked_at_when_it_is_named():
    jobs, trouble = choose([50, 51], [process(50), process(51), rank(20, 0)])
    assert trouble == ""
    assert [(one.rank, one.pid) for one in jobs[0].ranks] == [(0, 50), (1, 51)]


def test_without_ranks_it_says_how_ranks_are_found():
    assert "no Python process of yours was started with RANK" in choose([], [process(50)])[1]
    assert choose([7], [process(50)])[1] == "there is no process 7 on this node"
