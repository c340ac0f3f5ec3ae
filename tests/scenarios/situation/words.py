"""Reads the words of a command: ranks, call sites, modules, options."""

from ncclwatch.contract.model.rank import CallSite, GradMode, ModuleView, StackFrame


def ranks_of(text: str) -> list[int]:
    """Parse "0-2,5"."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def site_of(text: str) -> CallSite:
    """Parse "train.py:44" or "train.py:44:step"."""
    file, line, *function = text.split(":")
    return CallSite(file=f"/home/user/{file}", line=int(line), function=function[0] if function else "step")


def module_of(text: str) -> ModuleView:
    """Parse "codec/quantize/Quantizer/train/no_grad"."""
    root, path, kind, mode, *grad = text.split("/")
    return ModuleView(root=root, path=path, kind=kind, training=mode == "train", grad=GradMode(grad[0] if grad else ""))


def options_of(words: list[str]) -> dict[str, str]:
    """Parse "for 3 numel=4 exhausted"."""
    found: dict[str, str] = {}
    words = list(words)
    while words:
        word = words.pop(0)
        if "=" in word and not word.startswith("if"):
            key, _, value = word.partition("=")
            found[key] = value
        elif word in ("exhausted", "busy", "spins", "sync", "blind", "appends", "as_before", "told", "behind"):
            found[word] = "1"
        else:
            found[word] = words.pop(0)
    return found


def frame_of(text: str) -> StackFrame:
    """Parse "read data.py:33", or one with a whole path."""
    function, _, place = text.partition(" ")
    file, _, line = place.rpartition(":")
    return StackFrame(function=function, file=file if file.startswith("/") else f"/home/user/{file}", line=int(line))
