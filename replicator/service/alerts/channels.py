"""Ways to tell somebody: a webhook, a command, a mail."""

from __future__ import annotations

import hashlib
import smtplib
import ssl
from collections.abc import Callable, Mapping
from email.message import EmailMessage
from functools import partial

import msgspec

from replicator.core.connections.secret import read_secret
from replicator.core.messages.sending import PATIENCE, call, post
from replicator.core.schedules.alert_config import AlertConfig, CommandConfig, MailConfig, WebhookConfig


class Message(msgspec.Struct, frozen=True):
    """One thing to tell. event: "raised", "still" or "over". Times are ISO 8601. id: the same for all messages of one
    alert, and for a message that is sent again."""

    event: str
    id: str
    kind: str
    subject: str
    text: str
    hint: str
    since: str
    at: str


Send = Callable[[Message], None]
"""Raises something when nobody got it."""


def channels_of(config: AlertConfig) -> Mapping[str, Send]:
    """By the names that deliveries are remembered under."""
    return {
        **{f"webhooks.{name}": partial(_post, name, each) for name, each in config.webhooks.items()},
        **{f"commands.{name}": partial(_call, each) for name, each in config.commands.items()},
        **{f"mails.{name}": partial(_mail, name, each) for name, each in config.mails.items()},
    }


def _post(name: str, hook: WebhookConfig, message: Message) -> None:
    secret = read_secret(hook.secret, f"alerts.webhooks.{name}.secret") if hook.secret else ""
    post(hook.url, msgspec.json.encode(message), secret=secret)


def _call(given: CommandConfig, message: Message) -> None:
    call(given.command, msgspec.json.encode(message))


def _mail(name: str, mail: MailConfig, message: Message) -> None:
    letter = EmailMessage()
    letter["From"], letter["To"] = mail.sender, ", ".join(mail.to)
    letter["Subject"] = f"[replicator] {message.event}: {message.kind} {message.subject}"
    letter["Message-ID"] = f"<{message.id}.{message.event}.{hash_of(message.at)}@replicator>"
    letter.set_content(f"{message.text}\n\n{message.hint}\n\nsince {message.since}, at {message.at}\n")
    host, _, port = mail.server.rpartition(":")
    with _mail_server(host.strip("[]"), int(port), mail.tls) as server:
        if mail.user and mail.password:
            server.login(mail.user, read_secret(mail.password, f"alerts.mails.{name}.password"))
        server.send_message(letter)


def _mail_server(host: str, port: int, tls: str) -> smtplib.SMTP:
    """With TLS only one whose certificate this system trusts, or SSL_CERT_FILE."""
    if tls == "tls":
        return smtplib.SMTP_SSL(host, port, timeout=PATIENCE, context=ssl.create_default_context())
    server = smtplib.SMTP(host, port, timeout=PATIENCE)
    if tls == "starttls":
        try:
            server.starttls(context=ssl.create_default_context())
        except BaseException:
            server.close()
            raise
    return server


def hash_of(text: str) -> str:
    """Eight digits."""
    return hashlib.sha256(text.encode()).hexdigest()[:8]
