"""How is a name of torch replaced, and put back as the identical object?"""

from collections.abc import Callable


class Patches:
    """Replaced attributes, in order. `restore` puts back what was there, unless somebody patched after us."""

    def __init__(self) -> None:
        self._replaced: list[tuple[object, str, object, object]] = []
        self._undo: list[Callable[[], None]] = []

    def replace(self, owner: object, name: str, make: Callable[[Callable[..., object]], object]) -> None:
        """Replace `owner.name` by make(original), if there is such a name.

        The original is taken from the owner's own `__dict__`: for classes made by pybind11 the
        attribute is another object than what the class holds, and writing that back would break it.
        """
        original = vars(owner).get(name)
        bound = getattr(owner, name, None)
        if original is None or not callable(bound):
            return
        ours = make(bound)
        setattr(owner, name, ours)
        self._replaced.append((owner, name, original, ours))

    def replace_everywhere(
        self, owners: tuple[object, ...], name: str, make: Callable[[Callable[..., object]], object]
    ) -> None:
        """Replace one function under all modules that hold it, by one and the same wrapper."""
        original = vars(owners[0]).get(name)
        if not callable(original):
            return
        ours = make(original)
        for owner in owners:
            if vars(owner).get(name) is original:
                setattr(owner, name, ours)
                self._replaced.append((owner, name, original, ours))

    def on_restore(self, undo: Callable[[], None]) -> None:
        """Have `undo` called by `restore`."""
        self._undo.append(undo)

    def restore(self) -> None:
        """Put everything back, newest first."""
        for owner, name, original, ours in reversed(self._replaced):
            if vars(owner).get(name) is ours:
                setattr(owner, name, original)
        self._replaced.clear()
        for undo in reversed(self._undo):
            undo()
        self._undo.clear()
