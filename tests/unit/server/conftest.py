"""What all tests of the server's parts need."""

import pytest

from ncclwatch_server.store import incident_store


@pytest.fixture(autouse=True)
def patient_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a store finish what it has to write, however slow the machine is."""
    monkeypatch.setattr(incident_store, "ENDING_S", 120.0)
