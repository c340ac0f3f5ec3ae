"""The command `ncclwatch doctor`: is everything here that a job and ncclwatch need, and what is missing?"""

from ncclwatch.cli.doctor.command import doctor

__all__ = ["doctor"]
