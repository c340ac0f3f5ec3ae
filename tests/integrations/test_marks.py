"""What the integrations mark, on the real frameworks in one process; and what is said where a framework is missing."""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import ncclwatch
from ncclwatch.contract.errors import NcclwatchError
from ncclwatch.integrations.phases import Phases
from ncclwatch.integrations.wrapping import mark_phase, mark_step

torch = pytest.importorskip("torch")
from torch import Tensor  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402


@pytest.fixture
def marks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return what is marked, in order: "+name" and "-name" of phases, "=number" of steps."""
    found: list[str] = []

    @contextmanager
    def phase(name: str) -> Iterator[None]:
        found.append(f"+{name}")
        yield
        found.append(f"-{name}")

    monkeypatch.setattr(ncclwatch, "phase", phase)
    monkeypatch.setattr(ncclwatch, "step", lambda number: found.append(f"={number}"))
    return found


def rows(count: int) -> "DataLoader[list[Tensor]]":
    return DataLoader(TensorDataset(torch.ones(count, 4)), batch_size=1)


# -- the pieces --------------------------------------------------------------------------------------


def test_an_end_that_was_never_told_is_told_by_the_outer_one(marks: list[str]):
    phases = Phases()
    phases.begin("outer")
    phases.begin("inner")
    phases.end("outer")
    assert marks == ["+outer", "+inner", "-inner", "-outer"]
    phases.end("outer")  # once more is nothing
    assert len(marks) == 4


def test_after_an_exception_nothing_stays_marked(marks: list[str]):
    phases = Phases()
    phases.begin("outer")
    phases.begin("inner")
    phases.clear()
    phases.clear()
    assert marks == ["+outer", "+inner", "-inner", "-outer"]


class Engine:
    """What DeepSpeed's engine looks like from outside."""

    def __init__(self) -> None:
        self.global_steps = 0
        self.calls = 0

    def step(self) -> None:
        self.calls += 1
        self.global_steps = self.calls // 2

    def save_checkpoint(self, path: str) -> str:
        if not path:
            raise ValueError("where?")
        return path


def test_marked_methods_do_what_they_did(marks: list[str]):
    engine, other = Engine(), Engine()
    for _ in range(2):  # marked twice is marked once
        mark_step(engine, "step", "global_steps")
        mark_phase(engine, "save_checkpoint", "save")
        mark_phase(engine, "no_such_method", "save")
        mark_phase(None, "save", "save")
    engine.step()
    engine.step()
    assert engine.save_checkpoint("there") == "there"
    assert other.save_checkpoint("elsewhere") == "elsewhere"
    assert marks == ["=0", "=1", "+save", "-save"]


@pytest.mark.parametrize("name", ["lightning", "transformers", "accelerate", "ray", "deepspeed", "torchtitan"])
def test_without_its_framework_an_integration_says_what_is_missing(monkeypatch: pytest.MonkeyPatch, name: str):
    monkeypatch.setitem(sys.modules, name, None)  # what Python takes for a package that is not there
    monkeypatch.delitem(sys.modules, f"ncclwatch.integrations.{name}", raising=False)
    with pytest.raises(ImportError, match=rf"ncclwatch\.integrations\.{name} needs {name}.*pip install {name}") as told:
        importlib.import_module(f"ncclwatch.integrations.{name}")
    assert isinstance(told.value, NcclwatchError)
    assert "attach() works without it" in str(told.value)


# -- Lightning ------------------------------------------------------------------------------------------


def test_lightning_marks_validation_and_optimizer_steps(marks: list[str], tmp_path: Path):
    lightning = pytest.importorskip("lightning.pytorch")
    from ncclwatch.integrations.lightning import NcclwatchCallback

    trainer = lightning.Trainer(
        accelerator="cpu", devices=1, max_epochs=1, logger=False, enable_checkpointing=False, accumulate_grad_batches=2,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=tmp_path, num_sanity_val_steps=1,
        callbacks=[NcclwatchCallback(quiet=True)],
    )  # fmt: skip
    model = lightning_model(lightning)
    trainer.fit(model, rows(4), rows(2))
    sanity = "sanity check (validate)"
    assert [mark for mark in marks if mark != "=0"] == [
        f"+{sanity}", "+validate", "-validate", f"-{sanity}", "=1", "=1", "=2", "+validate", "-validate",
    ]  # fmt: skip
    marks.clear()
    trainer.test(model, rows(1))
    trainer.predict(model, rows(1))
    assert marks == ["+test", "-test", "+predict", "-predict"]


def lightning_model(lightning: object, fails: bool = False) -> object:
    class Model(lightning.LightningModule):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
            return self.layer(batch[0]).sum()

        def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
            if fails:
                raise ValueError("a broken sample")

        test_step = predict_step = validation_step

        def configure_optimizers(self) -> object:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    return Model()


def test_lightning_leaves_nothing_marked_when_validation_fails(marks: list[str], tmp_path: Path):
    lightning = pytest.importorskip("lightning.pytorch")
    from ncclwatch.integrations.lightning import NcclwatchCallback

    trainer = lightning.Trainer(
        accelerator="cpu", devices=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=tmp_path, callbacks=[NcclwatchCallback(quiet=True)],
    )  # fmt: skip
    with pytest.raises(ValueError, match="broken sample"):
        trainer.validate(lightning_model(lightning, fails=True), rows(1), verbose=False)
    assert marks == ["+validate", "-validate"]


def test_lightning_says_that_a_callback_alone_records_nothing(tmp_path: Path):
    pytest.importorskip("lightning.pytorch")
    from ncclwatch.integrations.lightning import NcclwatchCallback, trainer_callbacks

    with pytest.warns(RuntimeWarning, match=r"call ncclwatch\.attach\(\)"):
        NcclwatchCallback().on_fit_start(None, None)
    (found,) = trainer_callbacks()
    found.on_fit_start(None, None)  # the one that nobody asked for is silent: a warning would be an error here


def test_fabric_hears_of_validation_from_the_loop(marks: list[str]):
    pytest.importorskip("lightning.fabric")
    from lightning.fabric import Fabric

    from ncclwatch.integrations.lightning import fabric_callbacks

    fabric = Fabric(accelerator="cpu", devices=1, callbacks=fabric_callbacks())
    fabric.call("on_validation_start")
    fabric.call("on_validation_end")
    assert marks == ["+validate", "-validate"]


# -- transformers and Accelerate ----------------------------------------------------------------------------


def test_transformers_marks_evaluations_saves_and_steps(marks: list[str], tmp_path: Path):
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    from transformers import Trainer, TrainingArguments

    from ncclwatch.integrations.transformers import NcclwatchCallback

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
            return {"loss": self.layer(inputs).sum() + labels.sum(), "logits": self.layer(inputs)}

    data = [{"inputs": torch.ones(4), "labels": torch.zeros(1)} for _ in range(4)]
    arguments = TrainingArguments(
        output_dir=str(tmp_path), use_cpu=True, per_device_train_batch_size=1, max_steps=3, eval_strategy="steps",
        eval_steps=2, save_strategy="steps", save_steps=2, report_to=[], disable_tqdm=True, logging_strategy="no",
    )  # fmt: skip
    trainer = Trainer(Model(), arguments, train_dataset=data, eval_dataset=data, callbacks=[NcclwatchCallback()])
    with pytest.warns(RuntimeWarning, match="only marks phases"):
        trainer.train()
    save = "save checkpoint"
    both = ["+validate", "-validate", f"+{save}", f"-{save}"]
    assert marks == ["=1", "=2", *both, "=3", *both]  # the last step is evaluated and saved in any case
    marks.clear()
    trainer.evaluate()
    trainer.predict(data)
    assert marks == ["+validate", "-validate", "+validate", "-validate"]


def test_accelerate_marks_the_steps_that_are_logged(marks: list[str]):
    pytest.importorskip("accelerate")
    from accelerate import Accelerator

    from ncclwatch.integrations.accelerate import NcclwatchTracker

    accelerator = Accelerator(cpu=True, log_with=NcclwatchTracker())
    accelerator.init_trackers("run", config={"lr": 0.1})
    accelerator.log({"loss": 1.0}, step=3)
    accelerator.log({"eval_loss": 1.0}, step=2)
    accelerator.log({"loss": 1.0})
    accelerator.end_training()
    assert marks == ["=3"]


# -- Ray, DeepSpeed -----------------------------------------------------------------------------------------


def test_ray_marks_reports_once_in_a_worker(marks: list[str], monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("ray.train")
    from ray.train.v2._internal.execution.context import TrainContext

    from ncclwatch.integrations.ray import NcclwatchCallback

    monkeypatch.setattr(TrainContext, "report", lambda self, metrics: metrics)

    class Workers:
        def execute(self, function: object) -> None:
            assert callable(function)
            assert function() is True

    for _ in range(2):
        NcclwatchCallback().after_execution_group_start(Workers())
    assert TrainContext.report(None, {"loss": 1}) == {"loss": 1}
    assert marks == ["+report", "-report"]


def test_deepspeed_marks_an_engine(marks: list[str]):
    pytest.importorskip("deepspeed")
    from ncclwatch.integrations.deepspeed import mark

    engine = mark(Engine())
    engine.step()
    engine.save_checkpoint("there")
    assert marks == ["=0", "+save checkpoint", "-save checkpoint"]


def test_what_is_marked_of_torchtitan_has_those_names():
    """Its Trainer wants GPUs to begin; that the marked methods exist is what can be seen without."""
    trainer = pytest.importorskip("torchtitan.trainer")
    from torchtitan.components.checkpointer import base
    from torchtitan.components.validate import BaseValidator

    from ncclwatch.integrations.torchtitan import mark

    assert callable(trainer.Trainer.train_step)
    assert {"checkpointer", "validator", "step"} <= set(trainer.Trainer.__annotations__)
    assert callable(BaseValidator.validate)
    (saver,) = (each for each in vars(base).values() if isinstance(each, type) and "save" in vars(each))
    assert callable(saver.load)
    owner, validator, checkpointer = (without_init(each) for each in (trainer.Trainer, BaseValidator, saver))
    owner.validator, owner.checkpointer = validator, checkpointer
    assert mark(owner) is owner
    assert set(vars(owner)) == {"train_step", "validator", "checkpointer"}
    assert (set(vars(validator)), set(vars(checkpointer))) == ({"validate"}, {"save", "load"})


def without_init(kind: type) -> Any:
    """Return an object of a class that may be abstract, as nobody has made it."""
    missing = dict.fromkeys(getattr(kind, "__abstractmethods__", ()), lambda self: None)
    return object.__new__(type("Made", (kind,), missing))
