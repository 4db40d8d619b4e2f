"""A day or a moment since which nights count, as people write it and as nights are called."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime
from typing import Annotated, Any

from pydantic import BeforeValidator

from autotune.bounds import HelpName
from autotune.printable import quoted

_NIGHT = re.compile(r"\d{8}T\d{6}Z(-\d+)?")


def read_moment(value: Any) -> Any:
    """Return a day (`20261122`) or a moment (`20261122T031500Z`) as nights are named, which sorts by time.

    Taken are a night's own name and what ISO 8601 has for a day or a moment, which is in UTC unless it says otherwise.
    Raises ValueError for anything else: compared as text it would silently leave out every night, or none.
    """
    if value is None:
        return None
    if isinstance(value, datetime):
        moment: datetime | date = value
    elif isinstance(value, date):
        moment = value
    else:
        text = str(value).strip()
        if _NIGHT.fullmatch(text):
            return text
        try:
            moment = _parsed(text)
        except ValueError:
            raise ValueError(
                f"{quoted(text)} is no day (2026-11-22 or 20261122), no moment (2026-11-22T03:15) and no night's name"
            ) from None
    if not isinstance(moment, datetime):
        return f"{moment:%Y%m%d}"
    return f"{moment.astimezone(UTC) if moment.tzinfo else moment:%Y%m%dT%H%M%SZ}"


def _parsed(text: str) -> datetime | date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        return datetime.fromisoformat(text)


Moment = Annotated[str, BeforeValidator(read_moment), HelpName("DAY")]
