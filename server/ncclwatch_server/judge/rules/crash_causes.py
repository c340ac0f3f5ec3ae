"""Did ranks crash of something that is known more closely than its exception says?"""

from collections.abc import Sequence

from ncclwatch_server.judge.rules.drift.ends import wrapped_otherwise
from ncclwatch_server.judge.rules.known_ends import KnownEnd
from ncclwatch_server.judge.rules.random_states import of_other_ranks, too_many
from ncclwatch_server.judge.rules.shared_devices import refused_to_share
from ncclwatch_server.judge.theory.case import Case

_KNOWN = (refused_to_share, too_many, of_other_ranks, wrapped_otherwise)


def known_end(case: Case, crashed: Sequence[int], first: int) -> KnownEnd | None:
    """Return why ranks crashed of which `first` was the first, None if nothing is known but their exceptions."""
    return next((found for explain in _KNOWN if (found := explain(case, crashed, first)) is not None), None)
