"""Ways to tell somebody: a webhook, a command, a mail."""

from __future__ import annotations

import hashlib
import hmac
import logging
import smtplib
import ssl
import subprocess
import time
import urllib.request
from collections.abc import Callable, Mapping
from email.message import EmailMessage
from functools import partial
from http.client import HTTPException

import msgspec

from replicator.core.connections.secret import read_secret
from replicator.core.schedules.alert_config import AlertConfig, CommandConfig, MailConfig, WebhookConfig
from replicator.errors import Error

log = logging.getLogger(__name__)

PATIENCE = 10.0  # seconds for one message
SIGNATURE = "X-Replicator-Signature"


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


def failure_of(send: Send, message: Message) -> str:
    """Why nobody got it; empty: somebody did. Whatever a receiver makes of it, the others are told."""
    try:
        send(message)
    except (OSError, Error, ValueError, HTTPException) as error:
        return str(error) or type(error).__name__
    except Exception as error:
        log.exception("internal error")
        return f"internal error: {type(error).__name__}: {error}"
    return ""


def channels_of(config: AlertConfig) -> Mapping[str, Send]:
    """By the names that deliveries are remembered under."""
    return {
        **{f"webhooks.{name}": partial(_post, name, each) for name, each in config.webhooks.items()},
        **{f"commands.{name}": partial(_call, each) for name, each in config.commands.items()},
        **{f"mails.{name}": partial(_mail, name, each) for name, each in config.mails.items()},
    }


def signature(secret: str, moment: int, body: bytes) -> str:
    """The header of a signed message: its time, and the HMAC-SHA256 of `<time>.<body>`."""
    made = hmac.new(secret.encode(), f"{moment}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={moment},v1={made}"


def _post(name: str, hook: WebhookConfig, message: Message) -> None:
    body = msgspec.json.encode(message)
    headers = {"Content-Type": "application/json"}
    if hook.secret:
        secret = read_secret(hook.secret, f"alerts.webhooks.{name}.secret")
        headers[SIGNATURE] = signature(secret, int(time.time()), body)
    request = urllib.request.Request(hook.url, body, headers, method="POST")
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
        answer.read(1)


def _call(given: CommandConfig, message: Message) -> None:
    body = msgspec.json.encode(message) + b"\n"
    try:
        subprocess.run(given.command, input=body, capture_output=True, timeout=PATIENCE, check=True)
    except subprocess.SubprocessError as error:
        raise ValueError(str(error)) from error


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
