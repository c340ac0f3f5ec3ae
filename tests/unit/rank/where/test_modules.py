"""In which module does a thread stand, by which path, in what mode: read from its stack."""

import sys
import threading
from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")
from torch import Tensor, nn  # noqa: E402

from ncclwatch.contract.model.rank import GradMode, ModuleView  # noqa: E402
from ncclwatch.contract.ring import modules as texts  # noqa: E402
from ncclwatch.rank.where.modules import Modules  # noqa: E402


class Norm(nn.Module):
    def __init__(self, inside: Callable[[], object]) -> None:
        super().__init__()
        self.inside = inside

    def forward(self, hidden: Tensor) -> Tensor:
        self.inside()
        return hidden


class Layer(nn.Module):
    def __init__(self, inside: Callable[[], object]) -> None:
        super().__init__()
        self.norm = Norm(inside)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.norm(hidden)


class Encoder(nn.Module):
    def __init__(self, inside: Callable[[], object], layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(inside) for _ in range(layers))

    def forward(self, hidden: Tensor) -> Tensor:
        for layer in self.layers:
            hidden = layer(hidden)
        return hidden


def seen(layers: int, run: Callable[[nn.Module], object]) -> ModuleView:
    """Return what is told of the first norm of an encoder."""
    found: list[ModuleView | None] = []
    known = Modules()
    run(Encoder(lambda: found.append(known.now(1)), layers))
    assert found[0] is not None
    return found[0]


def test_the_path_begins_with_what_the_program_calls_the_model():
    def run(model: nn.Module) -> None:
        model(torch.zeros(1))

    expected = ModuleView(root="model", path="layers.0.norm", kind="Norm", training=True, grad=GradMode.GRAD)
    assert seen(1, run) == expected


def test_of_several_alike_the_path_does_not_pretend_to_know_which():
    assert seen(3, lambda model: model(torch.zeros(1))).path == "layers.*.norm"


@pytest.mark.parametrize(
    ("mode", "grad"),
    [(torch.no_grad, GradMode.NO_GRAD), (torch.inference_mode, GradMode.INFERENCE), (torch.enable_grad, GradMode.GRAD)],
)
def test_the_gradient_mode_is_told(mode: Callable[[], "torch.no_grad"], grad: GradMode):
    def run(model: nn.Module) -> None:
        with mode():
            model.eval()(torch.zeros(1))

    found = seen(1, run)
    assert (found.training, found.grad) == (False, grad)


def test_outside_of_every_forward_there_is_none():
    assert Modules().now(1) is None


def test_a_wrapper_around_a_model_is_no_part_of_the_path():
    def run(model: nn.Module) -> None:
        class DistributedDataParallel(nn.Module):
            def __init__(self, module: nn.Module) -> None:
                super().__init__()
                self.module = module

            def forward(self, hidden: Tensor) -> Tensor:
                return self.module(hidden)

        wrapped = DistributedDataParallel(model)
        wrapped(torch.zeros(1))

    found = seen(1, run)
    assert (found.root, found.path) == ("wrapped", "layers.0.norm")


def test_what_a_wrapper_does_in_a_forward_is_not_the_modules_doing():
    found: list[ModuleView | None] = []
    known = Modules()
    code = compile("def gather(): found.append(known.now(1))", "/x/torch/distributed/fsdp/hooks.py", "exec")
    names: dict[str, object] = {"found": found, "known": known}
    exec(code, names)
    gather = names["gather"]
    assert callable(gather)
    Encoder(lambda: gather(), 1)(torch.zeros(1))
    assert found == [None]


def test_another_thread_is_seen_in_the_very_module_where_it_stands():
    inside, leave = threading.Event(), threading.Event()
    calls = iter(range(3))

    def wait() -> None:
        if next(calls) == 1:
            inside.set()
            assert leave.wait(30)

    model = Encoder(wait, 3)
    thread = threading.Thread(target=lambda: model(torch.zeros(1)))
    thread.start()
    try:
        assert inside.wait(30)
        assert thread.ident is not None
        found = Modules().at(sys._current_frames()[thread.ident])
    finally:
        leave.set()
        thread.join()
    assert found is not None
    assert found.path == "layers.1.norm"


def test_the_modes_of_the_modules_that_communicated_are_told_of_a_model_that_lives():
    known = Modules()
    model = Encoder(lambda: known.now(1), 2)
    model(torch.zeros(1))
    model.layers[1].eval()
    assert [(each.path, each.training) for each in known.modes()] == [("layers.1.norm", False), ("layers.0.norm", True)]
    del model
    assert known.modes() == []


def test_of_many_in_eval_mode_one_in_training_is_not_left_out():
    known = Modules()
    model = Encoder(lambda: known.now(1), 9)
    model(torch.zeros(1))
    for layer in model.layers[:8]:
        layer.eval()
    assert [each.training for each in known.modes()] == [False, False, False, True]


def test_looking_keeps_no_tensor_alive():
    """Locals of a forward are not read: what it has dropped must be free while others look at its stack."""
    import weakref

    known = Modules()
    alive: list[bool] = []

    class Frees(nn.Module):
        def forward(self, hidden: Tensor) -> Tensor:
            activation = hidden + 1
            seen = weakref.ref(activation)
            assert known.now(1) is not None
            del activation
            alive.append(seen() is not None)
            return hidden

    Frees()(torch.zeros(1))
    assert alive == [False]


def test_a_module_is_read_as_it_was_written():
    module = ModuleView(root="codec", path="encoder.*.norm", kind="Norm", training=False, grad=GradMode.INFERENCE)
    assert texts.parse(texts.write(module)) == module
    assert texts.parse("a\x1eb\x1ec\x1esleeping\x1egrad") is None
    assert texts.parse("") is None
