"""What a run looks for: the configuration that is best in one respect, and a device's price where cost is one."""

from __future__ import annotations

import math
import re
from typing import Annotated, Literal

from pydantic import Field

from autotune.bounds import Price as Amount
from autotune.bounds import SpeedShare
from autotune.printable import quoted
from autotune.validation import Frozen

ObjectiveName = Literal["speed", "memory", "cost", "energy"]
"""`speed`: tokens per second at the global batch. `memory`: the smallest peak of those that are fast enough. `cost` and
`energy`: the least for each token."""

SPEED_SHARE = 0.95
"""Share of the best speed that is fast enough where nobody says otherwise."""

_NUMBER, _CURRENCY = r"(?P<amount>\d[\d_,]*(?:\.\d+)?)", r"(?P<currency>[^\W\d_]{1,12}|[$€£¥₹])"
_PRICES = (
    re.compile(rf"^{_NUMBER}\s*(?:{_CURRENCY})?$"),
    re.compile(rf"^{_CURRENCY}\s*{_NUMBER}$"),
)


class Price(Frozen):
    """What an hour of one device costs."""

    amount: Amount
    currency: Annotated[str, Field(max_length=12)] = ""
    """As the user writes it; empty where the price is a bare number."""

    @classmethod
    def parse(cls, text: str) -> Price:
        """Parse `2.99`, `2.99 USD` or `$2.99`. Raises ValueError."""
        match = next((found for form in _PRICES if (found := form.match(text.strip()))), None)
        if match is None:
            raise ValueError(f"{quoted(text)} is not a price; write it like 2.99, '2.99 USD' or $2.99")
        amount = float(match["amount"].replace("_", "").replace(",", ""))
        return cls.load({"amount": amount, "currency": match["currency"] or ""}, "the price")

    def __str__(self) -> str:
        return self.of(self.amount)

    def of(self, amount: float, noise: float | None = None) -> str:
        """Print an amount in this currency, and the half-width of its interval where one is given."""
        said = _plain(amount) if noise is None else f"{_plain(amount)} ± {_plain(noise)}"
        return f"{said} {self.currency}".rstrip()


def _plain(amount: float) -> str:
    """Print an amount of money: to three significant digits, and hundredths at the least."""
    if amount <= 0 or amount >= 1:
        return f"{amount:,.2f}"
    return f"{amount:.{2 - math.floor(math.log10(amount))}f}"


class Objective(Frozen):
    """By what the winner is chosen among the configurations that fit."""

    name: ObjectiveName = "speed"
    speed_share: SpeedShare = SPEED_SHARE
    """Of the best speed that was measured: what is slower is not chosen for its `memory`."""
    price: Price | None = None
    """Of one device for an hour; None where nobody gave one."""

    def problems(self) -> list[str]:
        """Return what is missing, in words that name the flag."""
        if self.name == "cost" and self.price is None:
            return ["--objective cost: what a device costs is not known; give --price-per-hour, such as 2.99"]
        return []
