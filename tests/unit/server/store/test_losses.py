"""What counts of hangs comes out of a store as it went in, without the incidents themselves."""

from dataclasses import replace

from ncclwatch.contract.model.verdict import Severity
from ncclwatch_server.incidents.book import IncidentState
from ncclwatch_server.incidents.losses import loss_of
from ncclwatch_server.store.incident_store import Store
from tests.unit.server.incidents.test_texts import INCIDENT
from tests.unit.server.store.test_incident_store import execute

AT = INCIDENT.opened_at
OVER = replace(
    INCIDENT, id="over", state=IncidentState.ENDED, closed_at=AT + 5.0, recovered_after_s=41.0, gpus=4, timeout_s=600.0
)
WARNING = replace(INCIDENT, id="warning", verdict=replace(INCIDENT.verdict, severity=Severity.WARNING))


def test_hangs_of_a_period_are_found_the_newest_first_and_those_that_are_held_are_not(store_url: str) -> None:
    newer = replace(OVER, id="newer", opened_at=AT + 9.0, closed_at=AT + 10.0, came_back_as="x")
    with Store(store_url) as store:
        for incident in (INCIDENT, OVER, WARNING, newer, replace(OVER, id="old", opened_at=AT - 1.0)):
            store.put(incident)
    with Store(store_url) as store:
        assert store.losses(AT, frozenset({"old"}), 9) == (loss_of(newer), loss_of(INCIDENT), loss_of(OVER))
        assert store.losses(AT, frozenset({INCIDENT.id, "newer"}), 9) == (loss_of(OVER),)
        assert store.losses(AT, frozenset(), 1) == (loss_of(newer),)
        assert store.losses(AT + 10.0, frozenset(), 9) == ()


def test_what_another_version_wrote_is_left_out(store_url: str) -> None:
    with Store(store_url) as store:
        store.put(OVER)
        store.put(replace(OVER, id="before"))
        store.put(replace(OVER, id="later"))
    execute(
        store_url,
        "UPDATE incidents SET onset_at = NULL, fate = NULL WHERE id = 'before'",
        "UPDATE incidents SET cause = 'cosmic_rays' WHERE id = 'later'",
    )
    with Store(store_url) as store:
        assert store.losses(AT, frozenset(), 9) == (loss_of(OVER),)
