"""Opens the channel of each target."""

import httpx

from ncclwatch_server.notify.alertmanager import AlertmanagerChannel
from ncclwatch_server.notify.delivery import Channel
from ncclwatch_server.notify.mail import MailChannel
from ncclwatch_server.notify.other import AppriseChannel
from ncclwatch_server.notify.pagerduty import PagerDutyChannel
from ncclwatch_server.notify.slack import SlackChannel
from ncclwatch_server.notify.targets import Alertmanager, AnyTarget, Mail, PagerDuty, Slack, Webhook
from ncclwatch_server.notify.webhook import WebhookChannel


def open_channel(target: AnyTarget, client: httpx.AsyncClient) -> Channel:
    """Return the way to a target. Raises `ConfigError` if it cannot be used here."""
    if isinstance(target, Webhook):
        return WebhookChannel(target, client)
    if isinstance(target, Slack):
        return SlackChannel(target, client)
    if isinstance(target, PagerDuty):
        return PagerDutyChannel(target, client)
    if isinstance(target, Alertmanager):
        return AlertmanagerChannel(target, client)
    return MailChannel(target) if isinstance(target, Mail) else AppriseChannel(target)
