"""The command `ncclwatch doctor`: checks what a job and ncclwatch need here, and says what is missing."""

from ncclwatch.cli.doctor.command import doctor

__all__ = ["doctor"]
