"""Says whether a rank's pulse is lost: then nobody inside it looks, and what it has finished is not known."""

from ncclwatch.contract.model.rank import RankView

PULSE_LOST_S = 3.0


def is_lost(view: RankView) -> bool:
    """Say whether a rank's pulse has stopped."""
    return view.pulse_age_s >= PULSE_LOST_S
