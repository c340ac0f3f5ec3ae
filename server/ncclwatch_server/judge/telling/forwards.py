"""Says in whose forward a call was made, in what mode each side runs it, and how to mend that."""

from ncclwatch.contract.model.rank import GradMode, ModuleView
from ncclwatch.contract.words.text import ranks_words
from ncclwatch_server.judge.theory.histories.forwards import OneSided

_GRAD_WORDS = {
    GradMode.GRAD: "with gradients",
    GradMode.NO_GRAD: "under no_grad",
    GradMode.INFERENCE: "under inference_mode",
}


def words(found: OneSided) -> str:
    """Return what is known of the forward, in a sentence or two."""
    both = f"The call is made in the forward of {_name(found.module)}, {_mode_words(found.module)}"
    others = ranks_words(found.others)
    if found.others_now is not None:
        return f"{both}; on {others} that module is in {_training_words(found.others_now)} mode."
    if found.others_before is not None:
        return f"{both}; {others} made it {_mode_words(found.others_before)} each time before."
    return f"{both}."


def remedies(found: OneSided) -> str:
    """Return both ways to mend it."""
    name = _path(found.module)
    if found.others_now is not None:
        return (
            f"Put {name} into the same mode on all ranks before the next forward: a .eval() needs its .train() again. "
            "Or let its collective not depend on what a rank decides alone, such as self.training."
        )
    return (
        f"Run that forward on all ranks or on none, or keep {name} from communicating in it. If it communicates in "
        f"train() mode only, call {name}.eval() before and .train() after, or check self.training and "
        "torch.is_grad_enabled() in its forward. no_grad alone is no mistake; that only one side uses it is."
    )


def _path(module: ModuleView) -> str:
    return f"{module.root}.{module.path}" if module.path else module.root


def _name(module: ModuleView) -> str:
    path = _path(module)
    return path if path == module.kind else f"{path} ({module.kind})"


def _training_words(module: ModuleView) -> str:
    return "train()" if module.training else "eval()"


def _mode_words(module: ModuleView) -> str:
    grad = _GRAD_WORDS.get(module.grad)
    return f"in {_training_words(module)} mode{f' and {grad}' if grad else ''}"
