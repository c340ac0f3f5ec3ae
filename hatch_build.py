"""Names the platform of a wheel that brings the native recorder."""

import platform
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PREBUILT = Path("ncclwatch/native/prebuilt")


class PlatformHook(BuildHookInterface):  # type: ignore[type-arg]
    """With prebuilt sides in the package, the wheel is for this platform and any Python 3; without, for all."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Set the wheel's tag."""
        if any((Path(self.root) / PREBUILT).glob("*.so")):
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-manylinux_2_17_{platform.machine()}"
