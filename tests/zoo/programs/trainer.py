"""A small trainer with callbacks, as several of the programs use it."""

import functools
from collections.abc import Callable, Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


def rank_zero_only(function: Callable[..., None]) -> Callable[..., None]:
    """Make a function do nothing on all ranks but the first."""

    @functools.wraps(function)
    def wrapped(*args: object, **kwargs: object) -> None:
        if dist.get_rank() == 0:
            function(*args, **kwargs)

    return wrapped


class Callback:
    def on_step_end(self, trainer: "Trainer") -> None: ...

    def on_fit_end(self, trainer: "Trainer") -> None: ...


class Trainer:
    """Fits a model with DDP and tells its callbacks about it."""

    def __init__(self, callbacks: Iterable[Callback] = (), learning_rate: float = 1e-2) -> None:
        self.callbacks = tuple(callbacks)
        self.learning_rate = learning_rate
        self.step = 0
        self.loss = torch.zeros(())

    @property
    def mean_loss(self) -> float:
        """The loss of the last step, averaged over the ranks."""
        losses = [torch.zeros(()) for _ in range(dist.get_world_size())]
        dist.all_gather(losses, self.loss.detach())
        return torch.stack(losses).mean().item()

    def fit(self, network: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], criterion: nn.Module) -> None:
        model = DistributedDataParallel(network)
        optimizer = torch.optim.SGD(model.parameters(), lr=self.learning_rate)
        for inputs, targets in batches:
            self.loss = criterion(model(inputs), targets)
            optimizer.zero_grad()
            self.loss.backward()
            optimizer.step()
            self.step += 1
            self._tell("on_step_end")
        self._tell("on_fit_end")

    def _tell(self, event: str) -> None:
        for callback in self.callbacks:
            getattr(callback, event)(self)
