"""Writes and reads, in the ring's string table, the module of a model that makes a collective, and its mode.

A module that synchronises something in its forward (statistics, a seed, a codebook) hangs the job as soon as some
ranks run it and others do not, or run it in another mode. Its path in the model and the modes are what names it.
"""

from ncclwatch.contract.model.rank import GradMode, ModuleView

SEPARATOR = "\x1e"
CHARS_MAX = 80  # of each part, its end: a sample of the ring has room for a few of these
_TRAIN, _EVAL = "train", "eval"
_GRAD_MODES = {mode.value for mode in GradMode}


def write(module: ModuleView) -> str:
    """Return the text of a module."""
    mode = _TRAIN if module.training else _EVAL
    parts = (module.root, module.path, module.kind, mode, module.grad.value)
    return SEPARATOR.join(part[-CHARS_MAX:] for part in parts)


def parse(text: str) -> ModuleView | None:
    """Return the module that a text stands for, None if it is some other text."""
    parts = text.split(SEPARATOR)
    if len(parts) != 5 or parts[3] not in (_TRAIN, _EVAL) or parts[4] not in _GRAD_MODES:
        return None
    root, path, kind = (part[-CHARS_MAX:] for part in parts[:3])
    return ModuleView(root=root, path=path, kind=kind, training=parts[3] == _TRAIN, grad=GradMode(parts[4]))
