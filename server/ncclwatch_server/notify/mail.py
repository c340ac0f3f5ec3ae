"""Sends a message by mail, as plain text; the messages of one incident are one thread."""

import asyncio
from collections.abc import Callable
from email.message import EmailMessage
from email.utils import formatdate

import aiosmtplib

from ncclwatch_server.notify.delivery import SEND_S, Refused, Undelivered
from ncclwatch_server.notify.message import Message, clean, cut
from ncclwatch_server.notify.targets import Mail, Tls, mail_server, plain

SUBJECT_MAX = 200


class MailChannel:
    """Hands mails to one server."""

    refresh_s = 0.0

    def __init__(self, target: Mail) -> None:
        self._target = target
        self._host, self._port = mail_server(target)

    async def send(self, message: Message) -> None:
        """Send one mail."""
        target = self._target
        mail = compose(message, target.sender, target.to)
        try:
            refused, _ = await aiosmtplib.send(
                mail,
                sender=target.sender,
                recipients=list(target.to),
                hostname=self._host,
                port=self._port,
                username=plain(target.username) or None,
                password=plain(target.password) or None,
                use_tls=target.tls is Tls.TLS,
                start_tls=target.tls is Tls.STARTTLS,
                timeout=SEND_S,
            )
        except aiosmtplib.SMTPRecipientsRefused as error:
            codes = [each.code for each in error.recipients]
            raise _failure(max(codes, default=550), f"all recipients were refused ({codes})") from error
        except aiosmtplib.SMTPNotSupported as error:
            raise Refused(f"{clean(str(error), 200)}; see `tls` of this target") from error
        except aiosmtplib.SMTPResponseException as error:
            raise _failure(error.code, f"{error.code} {clean(error.message, 200)}") from error
        except (aiosmtplib.SMTPException, OSError, asyncio.TimeoutError) as error:
            raise Undelivered(f"{type(error).__name__}: {clean(str(error), 200)}") from error
        if refused:
            raise Refused(f"the server took it, but not for {', '.join(sorted(refused))}")


def compose(message: Message, sender: str, to: tuple[str, ...]) -> EmailMessage:
    """Return the mail. Nothing that ranks have sent can add a header: titles are one printable line."""
    mail = EmailMessage()
    mail["Subject"] = cut(f"[ncclwatch] {message.title}", SUBJECT_MAX)
    mail["From"] = sender
    mail["To"] = ", ".join(to)
    mail["Date"] = formatdate(message.at)
    thread = f"<{message.incident.id}@ncclwatch>"
    mail["Message-ID"] = f"<{message.id}@ncclwatch>"
    mail["References"] = thread
    mail["Auto-Submitted"] = "auto-generated"  # RFC 3834: no out-of-office answers
    mail.set_content(text_of(message))
    return mail


def text_of(message: Message, guard: Callable[[str], str] = str) -> str:
    """Return a message as lines of text. `guard` makes harmless what the reader's program would interpret."""
    lines = [guard(message.title), ""]
    lines += [f"{name:<10} {text if name == 'page' else guard(text)}" for name, text in message.facts]
    if message.tree:
        lines += ["", guard(message.tree)]
    return "\n".join(lines) + "\n"


def _failure(code: int, sentence: str) -> Undelivered | Refused:
    """A code of 4xx means "later" (RFC 5321, 4.2.1)."""
    return Undelivered(sentence) if 400 <= code < 500 else Refused(sentence)
