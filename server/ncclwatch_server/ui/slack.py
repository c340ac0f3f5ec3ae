"""Writes what one pastes into a channel about an incident: Slack's mrkdwn, in which nothing a rank sent is a link.

https://api.slack.com/reference/surfaces/formatting: "&", "<" and ">" are the control characters.
"""

from ncclwatch.contract.words.text import ranks_words
from ncclwatch_server.incidents.book import Incident
from ncclwatch_server.incidents.terminal_text import plain

CULPRITS_MAX = 4


def slack_text(incident: Incident, url: str) -> str:
    """Return the message, with a link to the incident's page."""
    verdict = incident.verdict
    lines = [
        f"*{verdict.severity.value.upper()}* in job *{_safe(incident.job)}* ({incident.state.value})",
        f"> {_safe(verdict.summary)}",
        f"*Why:* {_safe(verdict.explanation)}",
        f"*Do:* {_safe(verdict.advice)}",
    ]
    for culprit in verdict.culprits[:CULPRITS_MAX]:
        place = f" at `{_safe(str(culprit.call_site))}`" if culprit.call_site is not None else ""
        host = f" on {_safe(culprit.host)} (pid {culprit.pid})" if culprit.host else ""
        lines.append(f"*{'One of' if verdict.one_of else 'Culprit'}:* rank {culprit.rank}{host}{place}")
    if verdict.victims:
        lines.append(f"*Waiting:* {ranks_words(verdict.victims)}")
    lines.append(
        f"{verdict.certainty.value}, reported {incident.onset_to_open_s:.1f} s after the wait began. {_safe(url)}"
    )
    return "\n".join(lines)


def _safe(text: str) -> str:
    # Backquotes and asterisks of a rank's text would only change letters; a link would lead somewhere.
    return plain(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
