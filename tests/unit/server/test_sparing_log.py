"""Lines that strangers can cause are bounded, and what was left out is counted."""

import logging

import pytest

from ncclwatch_server.runtime.sparing_log import LINES_MAX, SparingLog


def test_so_many_lines_a_minute_are_written_and_the_others_counted(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    log = SparingLog(logging.getLogger("ncclwatch.server"), clock=lambda: now[0])
    with caplog.at_level(logging.WARNING):
        for number in range(LINES_MAX + 5):
            log.warning("refused %d", number)
        assert caplog.messages == [f"refused {number}" for number in range(LINES_MAX)]
        now[0] = 61.0
        log.warning("refused again")
    assert caplog.messages[-2:] == ["5 more lines like the last one were left out", "refused again"]
