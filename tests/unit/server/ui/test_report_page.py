"""The page that says what hangs have cost."""

from ncclwatch.contract.model.verdict import Cause
from ncclwatch.contract.words.aftermath import loss_notes
from ncclwatch_server.incidents.losses import Fate, Loss, LossReport, summed
from ncclwatch_server.ui.render import PAGES


def page(report: LossReport) -> str:
    notes = loss_notes(timeout_unknown=report.total.timeout_unknown, end_unknown=report.total.end_unknown)
    return PAGES.render(
        "report.html", report=report, notes=notes, within="last 7 days", withins=("last 7 days",), title="Report"
    )


def test_it_has_a_row_for_each_cause_and_one_for_all():
    frozen = Loss(
        job="job", cause=Cause.PROCESS_FROZEN, fate=Fate.CAME_BACK, onset_at=0.0, closed_at=3600.0, over_at=7200.0,
        ranks=8, gpus=8, timeout_s=0.0,
    )  # fmt: skip
    html = page(summed((frozen,), 0.0, 9000.0, "the incident store does not answer"))
    assert html.count('<td class="cause">') == 2
    assert '<td class="cause">process frozen</td><td class="n" data-label="hangs">1</td>' in html
    assert '<td class="n" data-label="came back">1</td><td class="n" data-label="ended">\u2013</td>' in html
    assert 'data-label="time lost">2 h</td><td class="n" data-label="rank-hours">16</td>' in html
    assert 'data-label="time saved">\u2013</td>' in html
    assert "Of 1 hang nobody knows that timeout" in html
    assert "The incident store does not answer." in html


def test_without_a_hang_it_says_so():
    assert "No hang was reported." in page(summed((), 0.0, 9000.0))
