"""Plans that were admitted: what each holds of each device, its runtime and rounding included."""

from __future__ import annotations

from typing import Any

from fleet.errors import DescriptionError, Fault
from fleet.readers.in_use import Holding, InUse

_KINDS = ("kvwaybill/plan/1", "kvwaybill/admissions/1")


def read_plans(document: dict[str, Any], schema: str, source: str) -> InUse:
    """The holdings of one plan or of several. Raises DescriptionError: another document, a plan not admitted, a byte
    figure that is none.
    """
    if schema not in _KINDS:
        raise DescriptionError.at(source, "schema", f"{schema[:60]!r} holds nothing; give an admitted plan")
    plans = document.get("plans") if schema == _KINDS[1] else [document]
    holdings: list[Holding] = []
    told: list[str] = []
    faults: list[Fault] = []
    ids, fleets = [], []
    for number, plan in enumerate(plans if isinstance(plans, list) else []):
        at = f"plans[{number}]." if schema == _KINDS[1] else ""
        if not isinstance(plan, dict) or plan.get("verdict") != "admitted":
            words = "is not admitted, so it holds nothing; leave it out"
            faults.append(Fault(source=source, field=f"{at}verdict", message=words))
            continue
        name = str(plan.get("id"))[:12]
        fleet = _mapping(_mapping(plan.get("inputs")).get("fleet"))
        ids.append(str(plan.get("id")))
        fleets.append((str(fleet.get("name")), str(fleet.get("digest"))))
        for index, entry in enumerate(_list(plan.get("memory"))):
            held = _held(_mapping(entry), name)
            if held is None:
                fault = Fault(source=source, field=f"{at}memory[{index}]", message="states no device and total_bytes")
                faults.append(fault)
            elif held.device is not None and held.device.startswith("host:"):
                told.append(f"{held.what} holds {held.bytes:,} B of {held.device}, memory of a host without a bound")
            else:
                holdings.append(held)
    if faults:
        raise DescriptionError(faults)
    return InUse(
        source=source, format="plan", holdings=tuple(holdings), told=tuple(told), plan_ids=tuple(ids),
        fleets=tuple(fleets),
    )  # fmt: skip


def _held(entry: dict[str, Any], name: str) -> Holding | None:
    device, total = entry.get("device"), entry.get("total_bytes")
    if not isinstance(device, str) or type(total) is not int or not 0 <= total < 2**63:
        return None
    return Holding(what=f"plan {name}", bytes=total, device=device)


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
