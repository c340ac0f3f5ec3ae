"""What a site sorts its jobs by: what people write, and what the scheduler says."""

import pytest

from ncclwatch.contract import config, job_labels

SLURM = {"SLURM_JOB_ACCOUNT": "vision", "SLURM_JOB_PARTITION": "gpu", "SLURM_JOB_QOS": "high"}


def test_labels_of_people_come_before_those_of_the_scheduler() -> None:
    assert job_labels.from_environment({}) == ""
    assert job_labels.from_environment(SLURM) == "account=vision,partition=gpu,qos=high"
    both = job_labels.from_environment({"NCCLWATCH_LABELS": " run=42,partition=mine, ", **SLURM})
    assert both == "run=42,partition=mine,account=vision,qos=high"


def test_a_label_that_finds_no_room_is_left_out_as_a_whole() -> None:
    long = "x" * (config.LABELS_CHARS_MAX - 20)
    assert job_labels.from_environment({"NCCLWATCH_LABELS": long, **SLURM}) == f"{long},account=vision"
    assert len(job_labels.from_environment({"NCCLWATCH_LABELS": "y" * 1000})) == config.LABELS_CHARS_MAX


def test_a_text_is_taken_apart_into_names_and_values() -> None:
    assert job_labels.parse("team=vision, run = 42 ,urgent,a=b=c,,=x") == {
        "team": "vision", "run": "42", "urgent": "", "a": "b=c",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ((), True),
        (("team=vision",), True),
        (("team=vis*", "urgent"), True),
        (("team",), True),
        (("team=text",), False),
        (("queue",), False),
        (("team=vision", "queue"), False),
        (("urgent=",), True),
    ],
)
def test_a_job_has_all_labels_that_are_wanted_or_is_left_out(wanted: tuple[str, ...], found: bool) -> None:
    assert job_labels.match("team=vision,urgent", wanted) is found


def test_jobs_of_one_namespace_do_not_crowd_out_labels_that_many_use() -> None:
    junk = ",".join(f"a{number}=1" for number in range(40))
    texts = [("mine", junk)] * 50 + [("team-a", "team=x"), ("team-b", "team=y,odd-name=1")]
    found = job_labels.metric_names(texts, 16)
    assert len(found) == 16
    assert found["team"] == "job_label_team"
    assert job_labels.metric_names([("", "odd-name=1,odd_name=2")], 16) == {"odd-name": "job_label_odd_name"}
