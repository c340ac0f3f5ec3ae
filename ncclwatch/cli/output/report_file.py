"""Writes a report to the disk, whole or not at all."""

import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from ncclwatch.contract.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportFile:
    """A report that can be written: this was tried."""

    path: Path
    draft: Path | None  # becomes the report by a rename; None: the path is a pipe or a device

    def write(self, data: bytes) -> None:
        """Write the report. Raises OSError."""
        if self.draft is None:
            self.path.write_bytes(data)
            return
        with self.draft.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        self.draft.replace(self.path)

    def discard(self) -> None:
        """Remove what was only prepared."""
        if self.draft is not None:
            self.draft.unlink(missing_ok=True)


def prepare(path: Path) -> ReportFile:
    """Make sure that a report can be written there later. Raises `ConfigError`."""
    if path.is_dir():
        raise ConfigError(f"cannot write the report to {path}: it is a directory; name a file with --report")
    if path.exists() and not path.is_file():
        return ReportFile(path=path, draft=None)
    target = path.resolve()  # a link stays a link
    draft = target.with_name(f".{target.name[:100]}.{secrets.token_hex(4)}")
    try:
        draft.touch(mode=0o644, exist_ok=False)
    except OSError as error:
        raise ConfigError(
            f"cannot write the report to {path} ({error.strerror}); name a file in a directory that exists and "
            "that you can write to with --report"
        ) from error
    return ReportFile(path=target, draft=draft)
