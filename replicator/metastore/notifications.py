"""Errors of a notification log that cannot be read: the metastore keeps none, or refuses this user."""

from __future__ import annotations

from collections.abc import Callable

from replicator.core.connections.metastore_config import MetastoreConfig
from replicator.errors import MetastoreError, NotificationLogOff, NotificationRefused

LISTENERS = ("hive.metastore.transactional.event.listeners", "hive.metastore.event.listeners")
AUTH = "hive.metastore.event.db.notification.api.auth"
_SAYS = ("Internal error", "not authorized", "not allowed")  # servers hide their reason behind the first


def log_off(uri: str) -> NotificationLogOff:
    return NotificationLogOff(
        f"the metastore at {uri} keeps no notification log: no DbNotificationListener is configured",
        hint="in hive-site.xml set hive.metastore.transactional.event.listeners to "
        "org.apache.hive.hcatalog.listener.DbNotificationListener (or hive.metastore.event.listeners, where events "
        "are written after the change), and hive.metastore.event.db.listener.timetolive to the days you need; "
        "then restart the metastore",
    )


def is_refusal(error: MetastoreError, setting: Callable[[str], str]) -> bool:
    """Whether a call about events failed because the server asks for a proxy user."""
    return any(each in error.message for each in _SAYS) and setting(AUTH).strip().lower() == "true"


def refused(config: MetastoreConfig, error: MetastoreError) -> NotificationRefused:
    user = (config.client_principal or config.user or "").partition("@")[0].partition("/")[0]
    whom = f"hadoop.proxyuser.{user or '<user>'}"
    who = "" if user else ", <user> being the one that the server knows this client as (without Kerberos its own)"
    return NotificationRefused(
        f"the metastore at {config.uri} does not let this user read its notification log ({error.message})",
        hint=f"in the metastore's core-site.xml set {whom}.hosts and {whom}.groups to where this client runs, or to *"
        f"{who}; or set {AUTH} to false in its metastore-site.xml; then restart it",
    )
