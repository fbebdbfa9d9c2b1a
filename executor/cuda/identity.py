"""Which card each device of the plan is, and whether what the runtime says of it agrees with what the driver says."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from executor.cuda.driver import Card, Driver, faults
from executor.identity_map import Match, VisibleDevice, resolve
from fleet.errors import InconclusiveError
from fleet.identity import pci_key, uuid_key

__all__ = ["cards_of", "refuse_forced_tf32", "visible_devices"]

VISIBLE = "CUDA_VISIBLE_DEVICES"


def refuse_forced_tf32(settings: dict[str, Any]) -> None:
    """InconclusiveError when TF32 is forced on whatever this program asks for: f32 would not be f32."""
    forced = settings.get("NVIDIA_TF32_OVERRIDE")
    if forced not in (None, "", "0"):
        raise InconclusiveError(
            f"NVIDIA_TF32_OVERRIDE={forced} forces TF32 on every f32 product; unset it, or set it to 0, and start again"
        )


def visible_devices(driver: Driver) -> list[VisibleDevice]:
    """The runtime's list, in its own order."""
    setting = os.environ.get(VISIBLE)
    what = "listing devices" if setting is None else f"listing devices with {VISIBLE}={setting!r}"
    with faults(what, "this machine"):
        return [_visible(driver.card(ordinal)) for ordinal in range(driver.count())]


def _visible(card: Card) -> VisibleDevice:
    return VisibleDevice(ordinal=card.ordinal, uuid=card.uuid, pci=card.pci, name=card.name)


def cards_of(driver: Driver, planned: Sequence[Any], emulate: bool) -> dict[str, Match]:
    """The card of each planned GPU, by device id; with `emulate` several of them may be one card, taken by turns.

    Raises InconclusiveError when a card is not visible, or when the runtime and the driver disagree about one.
    """
    visible = visible_devices(driver)
    present = driver.present()
    if emulate:
        if not visible:
            raise InconclusiveError("no CUDA device is visible; --emulate needs one")
        found = {
            spec.id: Match(device=spec.id, found=visible[number % len(visible)], by="ordinal")
            for number, spec in enumerate(planned)
        }
    else:
        driven = None if present is None else [_visible(card) for card in present]
        found = resolve(planned, visible, present=driven, setting=os.environ.get(VISIBLE))
    for match in found.values():
        _agree(match, present)
    return found


def _agree(match: Match, present: Sequence[Card] | None) -> None:
    """What NVML says of the card with this UUID must be what CUDA says."""
    uuid = uuid_key(match.found.uuid)
    if present is None or uuid is None:
        return
    same = [card for card in present if uuid_key(card.uuid) == uuid]
    if not same:
        raise InconclusiveError(f"{match.device}: CUDA names a card {match.found.uuid} that the driver does not list")
    told, held = pci_key(same[0].pci), pci_key(match.found.pci)
    if told is not None and held is not None and told != held:
        raise InconclusiveError(
            f"{match.device}: CUDA has the card at {match.found.pci}, the driver at {same[0].pci}; it cannot be told"
            " which card this is"
        )
