"""The inverse of a prediction: which link, or which memory, a request would need for a given time to the first token.

link: the least rate that the links of the handoff's way must have, all alike, and the most copies a layer at that rate,
or at the rates that they have where these do. The time falls with the rate and grows with copies, so bisection over
whole figures is exact. capacity: the least capacity of each device, a closed form.
No time is told of what is not admitted.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Literal

from fleet.machine import Figure, Quantity
from fleet.units import format_bytes, format_rate, format_seconds
from planner.admit import Admission
from planner.counterfactual_fleet import least_capacities
from planner.machine import PICOSECONDS
from planner.placement_time import placement_time
from planner.rows import Leg, Row
from planner.times import Time, handoff_time

Wanting = Literal["link", "capacity"]
WANTED: tuple[Wanting, ...] = ("link", "capacity")
_MOST_RATE = 10**18
"""Bytes per second: no link comes near it, and a time that it does not reach is not a matter of rates."""
_MOST_COPIES = 2**40


@dataclass(frozen=True, kw_only=True, slots=True)
class Solution:
    """An answer. `verdict`: solved (also where nothing need change), impossible, or unverified: a figure is unknown.

    `needs`: for each link {src, dst, kind, from, to} in bytes per second, or for each field {field, from, to} in bytes.
    `most_copies`: of one layer and tensor, None = no bound can be told. `ttft` as it is predicted, None = unpriced.
    """

    wanted: Wanting
    verdict: Literal["solved", "impossible", "unverified"]
    words: str
    target: Fraction | None = None
    ttft: Fraction | None = None
    rate: int | None = None
    copies_per_layer: int | None = None
    most_copies: int | None = None
    needs: tuple[dict[str, Any], ...] = ()


def solve(admission: Admission, wanted: Wanting, target: Fraction | None) -> Solution:
    """What a request would need. `target` in seconds; a link is not solved without one."""
    if wanted == "capacity":
        return _capacity(admission, target)
    assert target is not None
    if admission.verdict != "admitted" or admission.workload is None or admission.prediction is None:
        words = f"the placement is {admission.verdict}, and no time to the first token is told of it; mend that first"
        verdict = "impossible" if admission.verdict == "refused" else "unverified"
        return Solution(wanted=wanted, verdict=verdict, words=words, target=target)  # type: ignore[arg-type]  # one of both
    return _Link(admission, target).solve()


def _capacity(admission: Admission, target: Fraction | None) -> Solution:
    """The least capacity of every device of the plan, whether or not it has it."""
    fleet = admission.ask.fleet
    if admission.prediction is None:
        words = "the model is not understood, so nothing is priced"
        return Solution(wanted="capacity", verdict="unverified", words=words, target=target)
    placed = [d for d in fleet.devices if d.id in admission.ask.placement.devices]
    needs: list[dict[str, Any]] = []
    for field, least in sorted(least_capacities(admission).items()):
        of_field = [d for d in placed if d.capacity_field == field]
        names, now = [d.id for d in of_field], of_field[0].memory.capacity.value
        needs.append({"field": field, "from": now, "to": least, "devices": names})
    told = "; ".join(
        f"{' and '.join(each['devices'])} {'need' if len(each['devices']) > 1 else 'needs'} {format_bytes(each['to'])}"
        for each in needs
    )
    unknown = [d for d in placed if d.in_use is None]
    verdict: Literal["solved", "unverified"] = "unverified" if unknown else "solved"
    words = f"capacity: {told}" + ("; beside what others hold, which is unknown" if unknown else "")
    ttft = ttft_of(admission)
    time = None if ttft is None else ttft.seconds
    if target is not None:
        words += f"; TTFT is not a matter of capacity: {_told(time)} against {_told(target)}"
    return Solution(wanted="capacity", verdict=verdict, words=words, target=target, ttft=time, needs=tuple(needs))


def _told(seconds: Fraction | None) -> str:
    return "unpriced" if seconds is None else format_seconds(round(seconds * PICOSECONDS), digits=4)


def ttft_of(admission: Admission) -> Time | None:
    """TTFT of an admitted placement as it is predicted; None for any other, and where there is no token."""
    ask = admission.ask
    if admission.verdict != "admitted" or admission.workload is None or admission.prediction is None:
        return None
    rows = admission.prediction.rows
    return placement_time(ask.fleet, ask.model, admission.workload, ask.placement, rows, ask.pricing).ttft


class _Link:
    """The links of one handoff, raised together."""

    def __init__(self, admission: Admission, target: Fraction) -> None:
        self.admission, self.target = admission, target
        assert admission.prediction is not None
        self.all_rows = admission.prediction.rows
        self.rows = [row for row in self.all_rows if row.phase == "handoff"]
        legs = [leg for row in self.rows for leg in row.legs or ()]
        # Of the rows, not of the fleet: an equal fleet of another file may have been routed before.
        self.way = tuple(dict.fromkeys(link for leg in legs for link in leg.through))

    def solve(self) -> Solution:
        if not self.rows or not self.way:
            return self._said("impossible", "nothing is handed over a link, so none decides")
        now = ttft_of(self.admission)
        best = self._at(_MOST_RATE)
        if best is None or best.seconds is None:
            return self._without_prefill(best)
        seconds = None if now is None else now.seconds
        if best.seconds > self.target:
            words = (
                f"no rate of the links would do: with any, TTFT is at least {_told(best.seconds)}; prefill, copies'"
                f" latency or other links take longer than {_told(self.target)}{self._copies_words(best.seconds)}"
            )
            return self._said("impossible", words, ttft=seconds)
        rate = _least(lambda value: self._meets(self._at(value)))
        return self._solved(rate, seconds, best.lower_bound)

    def _said(self, verdict: Literal["impossible", "unverified"], words: str, ttft: Fraction | None = None) -> Solution:
        return Solution(wanted="link", verdict=verdict, words=words, target=self.target, ttft=ttft)

    def _meets(self, time: Time | None) -> bool:
        return time is not None and time.seconds is not None and time.seconds <= self.target

    def _solved(self, rate: int, now: Fraction | None, lower_bound: bool) -> Solution:
        needs = tuple(
            {"src": link.src, "dst": link.dst, "kind": link.kind, "from": link.bandwidth.value, "to": rate}
            for link in self.way
            if link.bandwidth.value is None or link.bandwidth.value < rate
        )
        copies, most = self._copies(rate if needs else None)
        words = f"needs >= {_rounded_up(rate)}"
        if copies is not None and most is not None:
            planned = f"{copies:,} {_copies(copies)} a layer of each tensor"
            at = f" and <= {most:,}, planned are {planned}" if needs else f" with {planned}"
            words += at + ("" if needs else f"; the links have it, and with them <= {most:,} {_copies(most)} would do")
        elif not needs:
            words += "; the links have it"
        if lower_bound:
            words += "; a latency or a launch is unpriced, so this is the least"
        return Solution(
            wanted="link", verdict="solved", words=words, target=self.target, ttft=now, rate=rate, needs=needs,
            copies_per_layer=copies, most_copies=most,
        )  # fmt: skip

    def _at(self, rate: int) -> Time | None:
        """TTFT over the same way at this rate."""
        return self._timed(self._rows_at(self.all_rows, rate))

    def _rows_at(self, rows: Sequence[Row], rate: int | None) -> list[Row]:
        """Rows whose links of the way all have this rate; None: as they are."""
        if rate is None:
            return list(rows)
        figure = Quantity(declared=Figure(value=rate, provenance="policy", source="solved for"))
        changed = {link: replace(link, bandwidth=figure) for link in self.way}

        def swapped(leg: Leg) -> Leg:
            return replace(leg, through=tuple(changed.get(link, link) for link in leg.through))

        return [row if row.legs is None else replace(row, legs=tuple(map(swapped, row.legs))) for row in rows]

    def _timed(self, rows: Sequence[Row]) -> Time | None:
        ask, workload = self.admission.ask, self.admission.workload
        assert workload is not None
        return placement_time(ask.fleet, ask.model, workload, ask.placement, rows, ask.pricing).ttft

    def _without_prefill(self, best: Time | None) -> Solution:
        """Where prefill has no price: what the handoff alone must have, which is the least of any answer."""
        why = "; ".join(best.unpriced[:2]) if best is not None else "there is no token to time"
        alone = self._alone(_MOST_RATE)
        if alone is None or alone > self.target:
            return self._said(
                "impossible" if alone is not None else "unverified", f"{why}; the handoff alone would not do"
            )
        rate = _least(lambda value: self._fits_alone(value))
        words = f"at least {_rounded_up(rate)} for the handoff alone; more cannot be told: {why}"
        solution = self._said("unverified", words)
        return replace(solution, rate=rate)

    def _alone(self, rate: int) -> Fraction | None:
        return handoff_time(self._rows_at(self.rows, rate), staging=self.admission.ask.pricing.staging).seconds

    def _fits_alone(self, rate: int) -> bool:
        time = self._alone(rate)
        return time is not None and time <= self.target

    def _copies(self, rate: int | None) -> tuple[int | None, int | None]:
        """(copies of one layer and tensor as planned, the most that meet the target at this rate; None: as it is)."""
        layers = max(self.admission.ask.model.n_layers, 1)
        rows = [row for row in self.rows if row.legs]
        copies = max((-(-leg.copies // layers) for row in rows for leg in row.legs or ()), default=None)
        return copies, self._most_copies(rate, layers)

    def _most_copies(self, rate: int | None, layers: int) -> int | None:
        """The largest c so that c copies a layer and tensor on every leg meet the target.

        None where no latency counts, or where ranks hand to ranks, whose copies are not alike.
        """
        latencies = (link.latency.value for row in self.rows for leg in row.legs or () for link in leg.through)
        if not any(latencies) or self.admission.ask.placement.is_split:
            return None
        rows = self._rows_at(self.all_rows, rate)

        def meets(count: int) -> bool:
            cut = [_with_copies(row, count * layers) if row.phase == "handoff" else row for row in rows]
            return self._meets(self._timed(cut))

        return _largest(meets)

    def _copies_words(self, best: Fraction) -> str:
        _, most = self._copies(_MOST_RATE)
        return "" if not most else f"; at most {most:,} copies a layer of each tensor would do with such links"


def _copies(count: int) -> str:
    return "copy" if count == 1 else "copies"


def _rounded_up(rate: int) -> str:
    """Four digits, never less than the figure itself."""
    step = 10 ** max(0, len(str(rate)) - 4)
    return format_rate(-(-rate // step) * step)


def _with_copies(row: Row, copies: int) -> Row:
    return replace(row, copies=copies, legs=tuple(replace(leg, copies=copies) for leg in row.legs or ()))


def _least(meets: Callable[[int], bool]) -> int:
    """The smallest rate that meets; the largest is known to."""
    return 1 + bisect_left(range(1, _MOST_RATE), True, key=meets)


def _largest(meets: Callable[[int], bool]) -> int:
    """The largest count that meets, 0 where not even one does."""
    return bisect_left(range(1, _MOST_COPIES + 1), True, key=lambda count: not meets(count))


def solution_document(found: Solution) -> dict[str, Any]:
    """`solved` of a plan; seconds and rates null where unpriced or not asked."""
    return {
        "wanted": found.wanted, "verdict": found.verdict, "words": found.words,
        "target_ttft_s": None if found.target is None else float(found.target),
        "ttft_s": None if found.ttft is None else float(found.ttft),
        "bandwidth_bytes_per_s": found.rate, "copies_per_layer": found.copies_per_layer,
        "most_copies_per_layer": found.most_copies, "needs": list(found.needs),
    }  # fmt: skip
