"""A real SMTP server of a test's own."""

import email
import email.policy
from email.message import EmailMessage
from types import TracebackType

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, Envelope, Session

from tests.ports import free_port


class MailReceiver:
    """Listens on a free loopback port while the context lasts."""

    def __init__(self) -> None:
        self.answers: list[str] = []  # to the next mails, instead of taking them
        self.mails: list[EmailMessage] = []
        self.recipients: list[list[str]] = []
        self.port = free_port()
        self._controller = Controller(self, hostname="127.0.0.1", port=self.port)

    def __enter__(self) -> "MailReceiver":
        self._controller.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._controller.stop()

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:
        """Take a mail, or answer as the test wants."""
        if self.answers:
            return self.answers.pop(0)
        assert isinstance(envelope.content, bytes)
        made = email.message_from_bytes(envelope.content, policy=email.policy.default)
        assert isinstance(made, EmailMessage)
        self.mails.append(made)
        self.recipients.append(list(envelope.rcpt_tos))
        return "250 taken"
