"""Names the platform of a wheel that brings the native recorder, and puts the pages of the causes into it."""

import platform
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PREBUILT = Path("ncclwatch/native/prebuilt")
CAUSES = ("docs/verdicts", "ncclwatch/contract/words/causes")  # from, to: `cause_pages` reads them


class PlatformHook(BuildHookInterface):  # type: ignore[type-arg]
    """With prebuilt sides in the package, the wheel is for this platform and any Python 3; without, for all."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Set the wheel's tag and contents. An editable installation reads the pages where they are."""
        if version == "standard":
            source, target = CAUSES
            build_data["force_include"][str(Path(self.root) / source)] = target
        if any((Path(self.root) / PREBUILT).glob("*.so")):
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-manylinux_2_17_{platform.machine()}"
