"""All faults of the table."""

from tests.chaos.faults import CORE

FAULTS = CORE
