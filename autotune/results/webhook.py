"""Tell a URL what came of a night: one POST of plain JSON. A failure is told, and never fatal."""

from __future__ import annotations

import http.client
import json
from typing import Any
from urllib.parse import urlsplit

from autotune.errors import InputError
from autotune.printable import printable, quoted, shortened
from autotune.results.changes import NightComparison
from autotune.results.summary import headline

SECONDS = 10.0
"""For each of connecting, sending and waiting for the answer."""
MOST = 100
"""Changes that a message holds; it says how many there are."""


def check_url(url: str) -> None:
    """Raise InputError where a URL is none that can be posted to."""
    try:
        parts = urlsplit(url)
        fine = parts.scheme in {"http", "https"} and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        fine = False
    if not fine or any(ord(letter) <= 32 or ord(letter) > 126 for letter in url):
        raise InputError(f"webhook: {quoted(_shown(url))} is no http:// or https:// URL", about="webhook")


def message(comparison: NightComparison) -> dict[str, Any]:
    """Return what is posted: a sentence in `text`, which chat services show, and the changes."""
    changes = [change.model_dump(mode="json") for change in comparison.changes[:MOST]]
    return {
        "text": headline(comparison), "sweep": comparison.sweep, "night": comparison.night,
        "cells": len(comparison.cells), "regressed": len({one.cell for one in comparison.regressions}),
        "changes": changes, "changes_in_all": len(comparison.changes),
        "uncompared": len(comparison.uncompared), "exit_code": int(comparison.exit_code),
    }  # fmt: skip


def post(url: str, body: dict[str, Any], timeout: float = SECONDS) -> str | None:
    """Post a message; return None where it was taken (2xx), else in one sentence why not. Redirects are not followed.

    Raises InputError where the URL is none that can be posted to.
    """
    check_url(url)
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    assert parts.hostname is not None
    connection = kind(parts.hostname, parts.port, timeout=timeout)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    headers = {"Content-Type": "application/json", "User-Agent": "autotune"}
    try:
        connection.request("POST", path, json.dumps(body).encode(), headers)
        answer = connection.getresponse()
        status = answer.status
        said = answer.read(500).decode(errors="replace").strip()
    except (OSError, http.client.HTTPException) as error:
        why = "no answer in time" if isinstance(error, TimeoutError) else str(error) or type(error).__name__
        return f"the webhook at {_shown(url)} was not told: {printable(why)}"
    finally:
        connection.close()
    if 200 <= status < 300:
        return None
    told = f": {shortened(printable(said), 200)}" if said else ""
    return f"the webhook at {_shown(url)} answered {status}{told}"


def _shown(url: str) -> str:
    """Return a URL as it may be shown: its path and query often are a secret."""
    try:
        parts = urlsplit(url)
        return f"{parts.scheme}://{parts.hostname or ''}" + (f":{parts.port}" if parts.port else "")
    except ValueError:
        return "that address"
