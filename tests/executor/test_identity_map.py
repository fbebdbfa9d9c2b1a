"""A plan made on one order of the cards and run under another runs on the planned card or ends with a code."""

from __future__ import annotations

import re
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor.device import DeviceSpec
from executor.identity_map import Match, VisibleDevice, confirm, resolve
from fleet.errors import DeviceMismatchError, InconclusiveError, PlacementError

UUIDS = [f"GPU-{i:08x}-0000-4000-8000-{i:012x}" for i in range(1, 9)]
PCIS = [f"00000000:{i:02X}:00.0" for i in range(1, 9)]


def card(number: int, ordinal: int) -> VisibleDevice:
    """Card `number` as a runtime lists it: CUDA writes UUIDs without a prefix and short PCI domains."""
    uuid = UUIDS[number].removeprefix("GPU-")
    return VisibleDevice(ordinal=ordinal, uuid=uuid, pci=PCIS[number].lower()[4:], name=f"Card {number}")


def shown(*numbers: int) -> list[VisibleDevice]:
    """What a runtime shows of the machine: the cards of these numbers, counted anew."""
    return [card(number, ordinal) for ordinal, number in enumerate(numbers)]


def planned(number: int, *, uuid: bool = True, pci: bool = True, index: int | None = None) -> DeviceSpec:
    return DeviceSpec(
        id=f"gpu:{number}", topology_id=500 + number, kind="gpu", index=number if index is None else index,
        fence_bytes=0, uuid=UUIDS[number] if uuid else None, pci=PCIS[number] if pci else None,
    )  # fmt: skip


def refusal(error: type[Exception], *arguments: object, **words: object) -> str:
    with pytest.raises(error) as told:
        resolve(*arguments, **words)  # type: ignore[arg-type]
    return str(told.value)


def test_the_opposite_order_runs_on_the_planned_cards() -> None:
    matches = resolve([planned(0), planned(1)], shown(1, 0))
    assert {name: match.ordinal for name, match in matches.items()} == {"gpu:0": 1, "gpu:1": 0}
    assert {match.by for match in matches.values()} == {"uuid"}
    assert matches["gpu:0"].entry() == {
        "device": "gpu:0", "ordinal": 1, "uuid": UUIDS[0].removeprefix("GPU-"), "pci": "0000:01:00.0", "name": "Card 0",
    }  # fmt: skip


@given(st.permutations(range(8)), st.lists(st.integers(0, 7), min_size=1, max_size=8, unique=True), st.integers(0, 8))
def test_under_any_order_and_any_hiding_it_is_the_planned_card_or_a_code(
    order: list[int], wanted: list[int], kept: int
) -> None:
    visible = shown(*order[:kept])
    plan = [planned(n, uuid=n % 3 != 0, pci=n % 3 != 1) for n in wanted]
    try:
        matches = resolve(plan, visible)
    except InconclusiveError as error:
        assert error.exit_code == 3  # noqa: PT017 - a code is one of the two good ends
        assert not set(wanted) <= set(order[:kept])
    else:
        assert [visible[matches[f"gpu:{n}"].ordinal].name for n in wanted] == [f"Card {n}" for n in wanted]


def test_by_pci_alone_the_opposite_order_runs_on_the_planned_cards() -> None:
    for order in permutations(range(3)):
        plan = [planned(n, uuid=False) for n in range(3)]
        matches = resolve(plan, shown(*order))
        assert [match.found.name for match in matches.values()] == ["Card 0", "Card 1", "Card 2"]
        assert {match.by for match in matches.values()} == {"pci"}


def test_a_hidden_card_is_code_3_and_the_setting_is_told() -> None:
    told = refusal(InconclusiveError, [planned(0), planned(1)], shown(1), present=shown(0, 1), setting="1")
    assert UUIDS[0] in told
    assert "is in this machine, the driver's number 0, but the runtime is not shown it" in told
    assert "visible with CUDA_VISIBLE_DEVICES=1: 0 (Card 1" in told


def test_a_card_of_another_machine_is_never_replaced_by_the_one_with_its_ordinal_or_its_slot() -> None:
    told = refusal(InconclusiveError, [planned(4)], shown(0, 1, 2, 3), present=shown(0, 1, 2, 3))
    assert "gpu:4: the card GPU-00000005-" in told
    assert "is not in this machine" in told
    other = VisibleDevice(ordinal=0, uuid=UUIDS[5], pci=PCIS[0], name="another card in that slot")
    assert "is not visible to the runtime" in refusal(InconclusiveError, [planned(0)], [other])


def test_a_card_that_moved_to_another_slot_is_told() -> None:
    moved = VisibleDevice(ordinal=0, uuid=UUIDS[0], pci=PCIS[3])
    told = refusal(InconclusiveError, [planned(0)], [moved])
    assert PCIS[0] in told
    assert PCIS[3] in told
    assert "describe the fleet anew" in told


def test_all_faults_are_told_at_once() -> None:
    told = refusal(InconclusiveError, [planned(6), planned(7)], shown(0))
    assert "gpu:6: " in told
    assert "gpu:7: " in told


def test_a_plan_with_one_card_twice_is_code_2() -> None:
    twin = DeviceSpec(id="gpu:1", topology_id=501, kind="gpu", index=1, fence_bytes=0, uuid=UUIDS[0].lower()[4:])
    told = refusal(PlacementError, [planned(0), twin], shown(0, 1))
    assert told == "gpu:0 and gpu:1 have one uuid in the plan, so they are one card; mend the fleet"
    twin = DeviceSpec(id="gpu:1", topology_id=501, kind="gpu", index=1, fence_bytes=0, pci="1:00.0")
    assert "have one pci address" in refusal(PlacementError, [planned(0), twin], shown(0, 1))
    assert PlacementError.exit_code == 2


def test_slices_of_one_card_share_its_address_and_are_found_by_their_uuids() -> None:
    slices = [
        DeviceSpec(id=f"gpu:{i}", topology_id=500 + i, kind="gpu", index=i, fence_bytes=0, uuid=f"MIG-{u}", pci=PCIS[0])
        for i, u in enumerate(("a0000000-0000-4000-8000-000000000001", "b0000000-0000-4000-8000-000000000002"))
    ]
    visible = [VisibleDevice(ordinal=i, uuid=slices[1 - i].uuid, pci=PCIS[0]) for i in range(2)]
    assert [match.ordinal for match in resolve(slices, visible).values()] == [1, 0]
    bare = DeviceSpec(id="gpu:0", topology_id=500, kind="gpu", index=0, fence_bytes=0, pci=PCIS[0])
    assert "listed 2 times" in refusal(InconclusiveError, [bare], visible)


def test_a_runtime_that_lists_one_uuid_twice_is_not_trusted() -> None:
    told = refusal(InconclusiveError, [planned(0)], [card(0, 0), card(0, 1)])
    assert "the runtime lists one uuid twice" in told
    assert "ordinal 0 2 times" in refusal(InconclusiveError, [planned(0)], [card(0, 0), card(1, 0)])


def test_a_runtime_that_tells_no_uuid_leaves_the_card_untold() -> None:
    mute = [VisibleDevice(ordinal=0), VisibleDevice(ordinal=1)]
    assert "gives no uuid" in refusal(InconclusiveError, [planned(0)], mute)
    assert "gives no pci" in refusal(InconclusiveError, [planned(0, uuid=False)], mute)
    assert "it does not say which card it is" in refusal(InconclusiveError, [planned(0)], mute)


def test_without_any_identity_the_index_is_taken_and_said_to_be_an_ordinal() -> None:
    matches = resolve([planned(1, uuid=False, pci=False)], shown(0, 1))
    assert (matches["gpu:1"].ordinal, matches["gpu:1"].by) == (1, "ordinal")
    told = refusal(InconclusiveError, [planned(3, uuid=False, pci=False)], shown(0, 1))
    assert "the runtime has no ordinal 3" in told
    loose = DeviceSpec(id="x", topology_id=9, kind="gpu", index=None, fence_bytes=0)
    assert "give its uuid in the fleet" in refusal(InconclusiveError, [loose], shown(0))


def test_an_index_that_falls_on_an_identified_card_is_refused_whichever_stands_first() -> None:
    plan = [planned(1, uuid=False, pci=False), planned(0)]
    for wanted in (plan, plan[::-1]):
        told = refusal(InconclusiveError, wanted, shown(1, 0))
        assert "gpu:1: the runtime's device 1 (Card 0" in told
        assert "is gpu:0 already; give both their uuid" in told


def test_the_matches_stand_in_the_order_of_the_plan() -> None:
    plan = [planned(2, uuid=False, pci=False), planned(0), planned(1)]
    assert list(resolve(plan, shown(0, 1, 2))) == ["gpu:2", "gpu:0", "gpu:1"]


def test_the_device_in_use_is_held_against_the_match() -> None:
    match = resolve([planned(0)], shown(1, 0))["gpu:0"]
    confirm(match, UUIDS[0], PCIS[0])
    confirm(match, None)
    with pytest.raises(DeviceMismatchError, match=re.escape("has another uuid than ordinal 1 had")):
        confirm(match, UUIDS[1])
    with pytest.raises(DeviceMismatchError, match="another pci address"):
        confirm(match, UUIDS[0], PCIS[1])
    confirm(Match(device="gpu:0", found=VisibleDevice(ordinal=0), by="ordinal"), UUIDS[1])


def test_what_a_runtime_says_is_printed_without_control_characters() -> None:
    evil = VisibleDevice(ordinal=0, uuid=UUIDS[1], name="\x1b[31mred\n" + "x" * 500)
    told = refusal(InconclusiveError, [planned(0)], [evil], setting="\x1b]0;x\x07")
    assert all(char.isprintable() for char in told)
    assert len(told) < 700
