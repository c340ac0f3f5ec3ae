"""Verdicts are noted in real runs of Weights & Biases, MLflow and TensorBoard, without a network."""

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ncclwatch.contract.on_hang.notice import HangVerdict
from ncclwatch.integrations.notes import trackers
from ncclwatch.integrations.notes.mlflow import MLflow
from ncclwatch.integrations.notes.tensorboard import TensorBoard
from ncclwatch.integrations.notes.wandb import WeightsAndBiases

HANG = HangVerdict(
    incident="i1", job="llama", cause="data_stall", certainty="PROVEN", sentence="Rank 1 waits for data.",
    advice="Look there.", culprits=(1,),
)  # fmt: skip
TEXT = "Rank 1 waits for data. Look there. (data_stall, PROVEN; ncclwatch report i1)"


def in_another_thread(note: Callable[[], None]) -> None:
    """Note as the rank does. What is raised is raised here."""
    raised: list[Exception] = []

    def run() -> None:
        try:
            note()
        except Exception as error:  # noqa: BLE001
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert raised == []


def test_weights_and_biases_has_an_alert_a_tag_and_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb: Any = pytest.importorskip("wandb", reason="wandb is not installed: pip install '.[trackers]'")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    WeightsAndBiases().note(HANG, 7)  # no run is open
    run = wandb.init(project="p", dir=str(tmp_path), notes="baseline", tags=["first"])
    in_another_thread(lambda: WeightsAndBiases().note(HANG, 7))
    assert run.tags == ("first", "hang:data_stall")
    assert run.notes == f"baseline\n\nncclwatch: {TEXT}"
    run.finish()
    (kept,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    said = kept.read_bytes()
    for each in ("ncclwatch: the job hangs (data_stall)", TEXT, "hang:data_stall"):
        assert each.encode() in said


def test_mlflow_has_a_tag_and_a_description(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow: Any = pytest.importorskip("mlflow", reason="mlflow is not installed: pip install '.[trackers]'")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    in_another_thread(lambda: MLflow().note(HANG, 7))  # no run is active
    with mlflow.start_run(description="baseline") as run:
        in_another_thread(lambda: MLflow().note(HANG, 7))
    tags = mlflow.MlflowClient().get_run(run.info.run_id).data.tags
    assert tags["ncclwatch.verdict"] == TEXT
    assert tags["mlflow.note.content"] == f"baseline\n\nncclwatch: {TEXT}"


def test_tensorboard_has_a_text_in_every_file_that_is_open(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed: pip install '.[trackers]'")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    class Mine(SummaryWriter):
        """A user's own."""

    places = [tmp_path / name for name in ("plain", "mine", "closed")]
    writers = [kind(str(place)) for kind, place in zip((SummaryWriter, Mine, SummaryWriter), places, strict=True)]
    writers[2].close()
    in_another_thread(lambda: TensorBoard().note(HANG, 7))
    found = [EventAccumulator(str(place)).Reload() for place in places]
    for each in found[:2]:
        (event,) = each.Tensors("ncclwatch.verdict/text_summary")
        assert (event.step, event.tensor_proto.string_val[0].decode()) == (7, TEXT)
    assert found[2].Tags()["tensors"] == []
    for writer in writers[:2]:
        writer.close()


def test_nothing_is_imported_that_the_job_has_not_imported() -> None:
    code = (
        "import sys\n"
        "from ncclwatch.contract.on_hang.notice import HangVerdict\n"
        "from ncclwatch.integrations.notes.trackers import all_trackers\n"
        "v = HangVerdict(incident='i', job='j', cause='c', certainty='PROVEN', sentence='', advice='', culprits=())\n"
        "for each in all_trackers(): each.note(v, 0)\n"
        "print([n for n in ('wandb', 'mlflow', 'tensorboard', 'tensorboardX', 'torch') if n in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_another_tracker_can_be_added(monkeypatch: pytest.MonkeyPatch) -> None:
    class Mine:
        name = "mine"

        def note(self, verdict: HangVerdict, step: int) -> None:
            """Do nothing."""

    monkeypatch.setattr(trackers, "_TRACKERS", [])
    mine = Mine()
    trackers.add(mine)
    assert trackers.all_trackers() == (mine,)
