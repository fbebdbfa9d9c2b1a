"""`--rates`, `--staging` and `--efficiency`: how the times of a plan are to be priced, from words."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from fleet.errors import DescriptionError, Fault
from fleet.units import UnitError, format_utilization, parse_utilization
from planner.placement_time import Pricing
from planner.roofline import Efficiencies

RATES = ("declared", "observed")
STAGINGS = ("sequential", "pipelined")
_SHARES = ("compute", "memory")


def pricing_of(rates: str | None, efficiency: str | None, source: str, staging: str | None = None) -> Pricing:
    """The pricing of a question. Raises DescriptionError with every fault; all None: declared, staged legs in turn."""
    faults: list[Fault] = []
    if rates not in (None, *RATES):
        faults.append(Fault(source=source, field="rates", message=f"{rates!r} is unknown; use declared or observed"))
    if staging not in (None, *STAGINGS):
        words = f"{staging!r} is unknown; use sequential or pipelined"
        faults.append(Fault(source=source, field="staging", message=words))
    shares: dict[str, Fraction] = {}
    for part in (efficiency or "").split(",") if efficiency is not None else ():
        name, _, value = part.strip().partition("=")
        try:
            share = parse_utilization(value)
        except UnitError as error:
            faults.append(Fault(source=source, field="efficiency", message=f"{part.strip()[:40]!r}: {error}"))
            continue
        if name not in _SHARES or name in shares:
            words = f"{part.strip()[:40]!r} is no share; write compute=0.6,memory=0.8, or one of them"
            faults.append(Fault(source=source, field="efficiency", message=words))
        shares[name] = share
    if faults:
        raise DescriptionError(faults)
    return Pricing(
        rates="observed" if rates == "observed" else "declared",
        staging="pipelined" if staging == "pipelined" else "sequential",
        given=Efficiencies(compute=shares.get("compute"), memory=shares.get("memory")),
    )


def pricing_inputs(pricing: Pricing) -> dict[str, Any]:
    """`pricing` of a plan's inputs, where anything but the default was asked."""
    given = {name: getattr(pricing.given, name) for name in _SHARES}
    shares = {name: format_utilization(share) for name, share in given.items() if share is not None}
    asked: dict[str, Any] = {} if pricing.rates == "declared" else {"rates": pricing.rates}
    asked |= {} if pricing.staging == "sequential" else {"staging": pricing.staging}
    asked |= {"efficiency": shares} if shares else {}
    return {"pricing": asked} if asked else {}
