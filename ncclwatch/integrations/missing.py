"""Says what to install when the framework of an integration is missing."""

from ncclwatch.contract.errors import NcclwatchError


class FrameworkMissing(NcclwatchError, ImportError):
    """An integration was imported in a Python that has not got its framework."""

    def __init__(self, module: str, package: str, error: ImportError) -> None:
        super().__init__(
            f"{module} needs {package}, which cannot be imported here ({error}). Install it (pip install {package}), "
            "or leave this import out: ncclwatch.attach() works without it."
        )
