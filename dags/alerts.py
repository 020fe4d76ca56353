"""Tells people that a run is late, by Airflow's connection `tandem_alerts`: a Slack webhook or another address that
takes `{"text": …}`, or a mail server. Airflow runs `late` in an executor when a run misses its deadline."""

import json
import logging
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import quote

from airflow.configuration import conf
from airflow.sdk import BaseHook, Connection
from airflow.sdk.exceptions import AirflowNotFoundException
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from batch_job.launch import spark_submit

CONNECTION = "tandem_alerts"
#: Text of an alert, for people to change.
TEMPLATE = "late_run.txt"
_SECONDS = 10.0
_TEXTS = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "templates"),
    # Plain text; Slack and mail escape it in their own way.
    autoescape=False,  # noqa: S701
    undefined=StrictUndefined,
)

log = logging.getLogger(__name__)


def late(context: dict[str, Any]) -> None:
    """Send one alert. Without the connection the run is only marked as late."""
    text = message(context)
    log.warning(text)
    try:
        connection = BaseHook.get_connection(CONNECTION)
    except AirflowNotFoundException:
        log.info("there is no connection %s that would take it", CONNECTION)
        return
    send(connection, text)


def message(context: dict[str, Any]) -> str:
    run = context["dag_run"]
    run_id = run["dag_run_id"]
    address = conf.get("api", "base_url", fallback="").rstrip("/")
    return _TEXTS.get_template(TEMPLATE).render(
        dag=run["dag_id"],
        run=run_id,
        day=spark_submit.day_of(run["partition_key"], run["conf"]) or "no day",
        state=run["state"],
        due=str(context["deadline"]["deadline_time"]),
        page=f"{address}/dags/{run['dag_id']}/runs/{quote(run_id, safe='')}" if address else "",
    )


def send(connection: Connection, text: str) -> None:
    """Raises: ValueError for a connection that is neither; an error where the message is not taken."""
    if connection.conn_type in ("smtp", "email"):
        _mail(connection, text)
    elif connection.conn_type in ("http", "https", "slackwebhook"):
        _post(address_of(connection), text)
    else:
        raise ValueError(f"{CONNECTION} is of type {connection.conn_type}: expected slackwebhook, http, https or smtp")


def address_of(connection: Connection) -> str:
    """The address to post to. The last part of a Slack webhook's is a secret, which may be the password."""
    host = connection.host or ""
    if "://" not in host:
        scheme = "http" if connection.conn_type == "http" else "https"
        host = f"{scheme}://{host}{f':{connection.port}' if connection.port else ''}"
    parts = (host.rstrip("/"), (connection.schema or "").strip("/"), (connection.password or "").strip("/"))
    return "/".join(filter(None, parts))


def _post(address: str, text: str) -> None:
    # Slack takes these for markup.
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    body = json.dumps({"text": escaped}).encode()
    request = urllib.request.Request(address, body, {"Content-Type": "application/json"})  # noqa: S310 (an operator's)
    with urllib.request.urlopen(request, timeout=_SECONDS):  # noqa: S310
        log.info("sent to %s", CONNECTION)


def _mail(connection: Connection, text: str) -> None:
    # In a provider: those who post do without it.
    from airflow.providers.smtp.hooks.smtp import SmtpHook
    from markupsafe import escape

    with SmtpHook(smtp_conn_id=CONNECTION) as hook:
        subject, html = text.partition("\n")[0], f"<pre>{escape(text)}</pre>"
        hook.send_email_smtp(to=connection.extra_dejson["to"], subject=subject, html_content=html)
