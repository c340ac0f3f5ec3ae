"""A real server process with a judge that tests can foresee: who does not wait is the culprit.

python -m tests.integration.stub_server PORT [STORE]
"""

import logging
import sys

from ncclwatch.contract.model.job import JobSnapshot
from ncclwatch.contract.model.rank import RankView
from ncclwatch.contract.model.verdict import Cause, Certainty, Culprit, Severity, Verdict
from ncclwatch_server.app import create_app
from ncclwatch_server.notify.targets import read_targets
from ncclwatch_server.serving.uvicorn_server import Serving, listen, serve
from ncclwatch_server.settings import Settings, read_grants


def judge(snapshot: JobSnapshot) -> tuple[Verdict, ...]:
    """Blame the ranks that crashed, else those that do not wait while others do."""
    crashed = [v for v in snapshot.ranks.values() if v.ending is not None and v.ending.kind != "exited"]
    waiting = [v for v in snapshot.ranks.values() if _wait_s(v) > 0]
    outside = [v for v in snapshot.ranks.values() if _wait_s(v) == 0 and v.ending is None]
    if crashed:
        return (_verdict(Cause.RANK_CRASHED, crashed[:1], waiting),)
    if waiting and outside:
        return (_verdict(Cause.RANK_CONDITIONAL_COLLECTIVE, outside, waiting),)
    return ()


def _wait_s(view: RankView) -> float:
    return max((thread.wait.age_s for thread in view.threads if thread.wait is not None), default=0.0)


def _verdict(cause: Cause, culprits: list[RankView], waiting: list[RankView]) -> Verdict:
    ranks = tuple(view.rank for view in culprits)
    return Verdict(
        cause=cause,
        certainty=Certainty.PROVEN,
        severity=Severity.CRITICAL,
        summary=f"rank {ranks[0]} did not enter all_reduce",
        explanation="It went another way.",
        advice="Let every rank enter it.",
        culprits=tuple(
            Culprit(
                rank=v.rank, host=v.host, pid=v.pid, device=v.device, call_site=v.threads[0].doing, doing="sleeping"
            )
            for v in culprits
        ),
        victims=tuple(view.rank for view in waiting),
        group="0",
        seq=1001,
        op="all_reduce",
        onset_s=max((_wait_s(view) for view in waiting), default=0.0),
        explained=(len(waiting), len(waiting)),
    )


def main() -> None:
    """Serve until SIGTERM."""
    logging.basicConfig(level=logging.INFO)
    port = int(sys.argv[1])
    listener = listen("127.0.0.1", port)
    settings = Settings(store=sys.argv[2] if len(sys.argv) > 2 else "", grants=read_grants())
    app = create_app(settings, judge=judge, targets=read_targets())
    serving = Serving(host="127.0.0.1", port=port, ephemeral=False, ready_fd=1, parent=None)
    serve(app, serving, listener)


if __name__ == "__main__":
    main()
