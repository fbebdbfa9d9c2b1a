"""What is in use: three texts, what maps to a device and what is told, and what is refused as of another fleet."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fleet.errors import DescriptionError
from fleet.load import load_fleet
from fleet.machine import Fleet, Host
from fleet.placement import Placement
from fleet.readers.in_use import InUse, read_in_use, read_stated
from planner.admit import Ask, admit
from planner.fixes import counterfactuals
from planner.in_use import with_in_use
from planner.request import Request
from tests.planner.fleets import MIB, llama2c, pair

UUIDS = ("GPU-00000000-0000-0000-0000-00000000000a", "GPU-00000000-0000-0000-0000-00000000000b")
PCI = ("00000000:1B:00.0", "00000000:43:00.0")


def fleet(**more: Any) -> Fleet:
    """Two GPUs with UUID and PCI address, of 80 GiB."""
    made = pair(**more)
    devices = tuple(
        replace(d, uuid=uuid, pci=pci)
        for d, uuid, pci in zip(made.devices, UUIDS, ("0000:1b:00.0", "43:00.0"), strict=True)
    )
    return replace(made, devices=devices, digest="d" * 64)


def smi(*rows: str, header: str = "index, uuid, pci.bus_id, memory.total [MiB], memory.used [MiB]") -> InUse:
    return read_in_use("\n".join([header, *rows]) + "\n", "smi.csv")


def used(found: Fleet) -> dict[str, int | None]:
    return {device.id: device.in_use for device in found.devices}


def test_a_csv_is_mapped_by_uuid_in_any_order_and_taken_to_the_next_mib() -> None:
    text = smi(
        f"1, {UUIDS[0]}, {PCI[1]}, 81559 MiB, 100 MiB",  # another machine's order: the uuid decides
        f"0, {UUIDS[1]}, {PCI[0]}, 81559 MiB, 0 MiB",
    )
    found, told = with_in_use(fleet(), [text])
    assert used(found) == {"gpu:0": 101 * MIB - 1, "gpu:1": MIB - 1}
    assert told == ()


def test_units_may_be_left_to_the_header_and_columns_may_be_few() -> None:
    text = smi("0, 5", "1, 7", header="index, memory.used [MiB]")
    assert used(with_in_use(pair(), [text])[0]) == {"gpu:0": 6 * MIB - 1, "gpu:1": 8 * MIB - 1}


def test_memory_that_the_driver_reserves_is_in_use_too() -> None:
    text = smi("0, 5 MiB, 3 MiB", "1, 0 MiB, 0 MiB", header="index, memory.used [MiB], memory.reserved [MiB]")
    assert used(with_in_use(pair(), [text])[0])["gpu:0"] == 9 * MIB - 1


def test_a_figure_that_the_driver_does_not_tell_is_unknown_and_never_admitted() -> None:
    found, _ = with_in_use(fleet(), [smi(f"0, {UUIDS[0]}, {PCI[0]}, [N/A], [N/A]")])
    assert used(found) == {"gpu:0": None, "gpu:1": 0}
    admission = admit(ask(found))
    assert admission.verdict == "unverified"
    assert [(r.code, r.device) for r in admission.reasons] == [("IN_USE_UNKNOWN", "gpu:0")]


def test_what_would_not_fit_an_idle_device_is_refused_though_its_use_is_unknown() -> None:
    found, _ = with_in_use(fleet(capacity=1000), [smi(f"0, {UUIDS[0]}, {PCI[0]}, [N/A], [N/A]")])
    assert admit(ask(found)).verdict == "refused"


def test_a_row_of_another_card_is_told_and_a_text_without_any_row_of_this_fleet_is_refused() -> None:
    other = "GPU-00000000-0000-0000-0000-0000000000ff"
    foreign = f"0, {other}, 0000:99:00.0, 81559 MiB, 9 MiB"
    found, told = with_in_use(fleet(), [smi(foreign, f"1, {UUIDS[1]}, {PCI[1]}, 81559 MiB, 1 MiB")])
    assert used(found) == {"gpu:0": 0, "gpu:1": 2 * MIB - 1}
    assert ["mapped to no device" in words and "another uuid" in words for words in told] == [True]
    with pytest.raises(DescriptionError, match="names no device of fleet pair: it is of another machine"):
        with_in_use(fleet(), [smi(foreign)])


def test_an_index_that_two_hosts_have_is_told_and_not_guessed() -> None:
    made = pair()
    first, second = made.devices
    both = replace(
        made, hosts=(Host(id="a/host"), Host(id="b/host")),
        devices=(replace(first, id="a/gpu:0", host="a/host"), replace(second, id="b/gpu:0", host="b/host", index=0)),
    )  # fmt: skip
    with pytest.raises(DescriptionError, match="of another machine"):
        with_in_use(both, [smi("0, 5 MiB", header="index, memory.used [MiB]")])


def test_a_card_of_another_size_is_told() -> None:
    _, told = with_in_use(fleet(), [smi(f"0, {UUIDS[0]}, {PCI[0]}, 24576 MiB, 1 MiB")])
    assert len(told) == 1
    assert "25,769,803,776 B, but gpu:0" in told[0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("0, 5 MiB\n1, 6 MiB\n", "no column memory.used"),
        ("memory.used [MiB]\n5 MiB\n", "no column that names the GPU"),
        ("index, memory.used [MiB]\n0, lots\n", "is no size"),
        ("index, memory.used [MiB]\n0, -5 MiB\n", "is no size"),
        ("index, memory.used [MiB]\n0\n", "1 columns, the header 2"),
        ("index, memory.used [MiB]\nzero, 5 MiB\n", "no index of a GPU"),
        ("index, index, memory.used [MiB]\n0, 0, 5 MiB\n", "names a column twice"),
        ("index, memory.used [MiB]\n", "a header and no row"),
        ("{", "no valid JSON"),
        ("{}", "no kind that is known"),
        ('{"kind": "ConfigMap"}', "is kind ConfigMap"),
        ("index, memory.total [MiB], memory.used [MiB]\n0, 5 MiB, 6 MiB\n", "more than the 5 MiB of memory.total"),
        ('{"kind": "List", "items": [{"kind": "Node"}]}', "holds no pod"),
        ('{"kind": "List", "items": [{"kind": "Pod", "spec": 5}]}', "a pod without spec"),
        ('{"kind": "List", "items": 3}', "no list of at most"),
        ('{"schema": "kvwaybill/run/1"}', "give an admitted plan"),
        ('{"schema": "kvwaybill/plan/1", "verdict": "refused"}', "is not admitted"),
        ('{"schema": "kvwaybill/plan/1", "verdict": "admitted", "memory": [{"device": 3}]}', "states no device"),
    ],
)
def test_a_wrong_text_is_refused_in_words(text: str, words: str) -> None:
    with pytest.raises(DescriptionError, match=words):
        read_in_use(text, "file")


@settings(deadline=None, max_examples=200)
@given(st.one_of(st.text(max_size=200), st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["kind", "items", "schema", "verdict", "memory", "plans", "spec", "status", "metadata", "env",
                         "containers", "resources", "limits", "nvidia.com/gpu", "nodeName", "inputs", "fleet"]),
        inner, max_size=4),
    max_leaves=12,
).map(lambda v: json.dumps({"kind": "List", "items": [v]}))))  # fmt: skip
@example("\x1f")
def test_no_text_breaks_the_readers(text: str) -> None:
    try:
        reading = read_in_use(text, "file")
        with_in_use(fleet(), [reading])
    except DescriptionError:
        return  # told in words; anything else would be a bug


def plan_of(total: int, *, digest: str = "d" * 64, ident: str = "1" * 64, device: str = "gpu:0") -> InUse:
    document = {
        "schema": "kvwaybill/plan/1", "verdict": "admitted", "id": ident,
        "inputs": {"fleet": {"name": "pair", "digest": digest}},
        "memory": [{"device": device, "total_bytes": total}, {"device": "host:bounce", "total_bytes": 64}],
    }  # fmt: skip
    return read_in_use(json.dumps(document), f"{ident[:2]}.json")


def test_plans_are_subtracted_and_their_host_memory_is_told() -> None:
    found, told = with_in_use(fleet(), [plan_of(1000), plan_of(500, ident="2" * 64)])
    assert used(found) == {"gpu:0": 1500, "gpu:1": 0}
    assert any("host:bounce" in words for words in told)
    assert any("both are subtracted" in words for words in told)


def test_a_plan_of_another_fleet_and_a_plan_given_twice_are_refused() -> None:
    with pytest.raises(DescriptionError, match=r"is a plan of fleet pair .eeeeeeeeeeee., not of pair"):
        with_in_use(fleet(), [plan_of(1, digest="e" * 64)])
    with pytest.raises(DescriptionError, match="a plan is in use once"):
        with_in_use(fleet(), [plan_of(1), plan_of(1)])


def pod(name: str, node: str | None, limits: dict[str, Any], phase: str = "Running", env: str | None = None) -> Any:
    container: dict[str, Any] = {"name": "c", "resources": {"limits": limits}}
    if env is not None:
        container["env"] = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": env}]
    spec = {"containers": [container]} | ({} if node is None else {"nodeName": node})
    return {"kind": "Pod", "metadata": {"namespace": "a", "name": name}, "spec": spec, "status": {"phase": phase}}


def pods(*items: Any) -> InUse:
    return read_in_use(json.dumps({"kind": "List", "items": list(items)}), "pods.json")


def nodes() -> Fleet:
    made = fleet()
    return replace(made, hosts=(Host(id="host", label="worker-1"),))


def test_pods_that_have_all_gpus_of_a_node_fill_them() -> None:
    found, told = with_in_use(nodes(), [pods(pod("p", "worker-1", {"nvidia.com/gpu": "2"}))])
    assert used(found) == dict.fromkeys(("gpu:0", "gpu:1"), 80 * 2**30)
    assert told == ()
    admission = admit(ask(found))
    assert [r.code for r in admission.reasons] == ["EXCEEDS_FREE", "EXCEEDS_FREE"]
    assert "beside what others hold" in admission.reasons[0].message


def test_a_node_of_several_hosts_is_the_node_of_its_pods() -> None:
    rack = load_fleet("gb200-nvl72")
    found, told = with_in_use(rack, [pods(pod("p", "tray3", {"nvidia.com/gpu": "4"}))])
    assert {name for name, nbytes in used(found).items() if nbytes} == {f"tray3/gpu:{index}" for index in range(4)}
    assert told == ()


def test_pods_that_have_some_gpus_of_a_node_leave_all_of_them_unknown() -> None:
    found, told = with_in_use(nodes(), [pods(pod("p", "worker-1", {"nvidia.com/gpu": 1}))])
    assert set(used(found).values()) == {None}
    assert "1 of 2 GPUs of node worker-1 are in use" in told[0]
    assert admit(ask(found)).verdict == "unverified"


def test_a_pod_that_names_its_gpu_fills_that_one_alone() -> None:
    found, told = with_in_use(nodes(), [pods(pod("p", "worker-1", {"nvidia.com/gpu": 1}, env=UUIDS[1]))])
    assert used(found) == {"gpu:0": 0, "gpu:1": 80 * 2**30}
    assert told == ()


def test_pods_that_ended_or_ask_for_none_hold_nothing_and_waiting_ones_are_told() -> None:
    found, told = with_in_use(
        nodes(),
        [
            pods(
                pod("done", "worker-1", {"nvidia.com/gpu": 2}, phase="Succeeded"),
                pod("waits", None, {"nvidia.com/gpu": 1}),
                pod("none", "worker-1", {"nvidia.com/gpu.shared": 0}),
                pod("plain", "worker-1", {"cpu": "4"}),
            )
        ],
    )
    assert used(found) == {"gpu:0": 0, "gpu:1": 0}
    assert [words.split(" ")[1] for words in told] == ["a/waits"]


@pytest.mark.parametrize(
    "limits",
    [{"nvidia.com/gpumem": 4000}, {"nvidia.com/gpu.shared": "1"}, {"nvidia.com/gpu": "three"}, {"nvidia.com/gpu": -1},
     {"nvidia.com/mig-1g.10gb": "1.5"}],
)  # fmt: skip
def test_shares_and_counts_that_cannot_be_read_leave_the_gpus_of_their_node_unknown(limits: dict[str, Any]) -> None:
    found, told = with_in_use(nodes(), [pods(pod("odd", "worker-1", limits))])
    assert set(used(found).values()) == {None}
    assert [words.split(" ")[1] for words in told] == ["a/odd", "of"]
    assert admit(ask(found)).verdict == "unverified"


@pytest.mark.parametrize("held", [[], [pod("plain", "worker-1", {"cpu": "4"})]])
def test_a_list_without_a_pod_that_has_gpus_is_said_to_subtract_nothing(held: list[Any]) -> None:
    found, told = with_in_use(nodes(), [pods(*held)])
    assert used(found) == {"gpu:0": 0, "gpu:1": 0}
    assert len(told) == 1
    assert "nothing is subtracted" in told[0]


def test_more_in_use_than_a_device_has_is_told() -> None:
    held = [smi("0, 99999999 MiB", header="index, memory.used [MiB]")]
    _, told = with_in_use(fleet(), held)
    assert len(told) == 1
    assert "more than the" in told[0]


def test_pods_of_another_cluster_are_refused() -> None:
    with pytest.raises(DescriptionError, match="names no host of fleet pair"):
        with_in_use(nodes(), [pods(pod("p", "elsewhere", {"nvidia.com/gpu": 1}))])


def ask(found: Fleet, **request: Any) -> Ask:
    words = {"prompt_tokens": 14, "steps": 40} | request
    return Ask(
        fleet=found, model=llama2c(), request=Request(**words), placement=Placement(prefill="gpu:0", decode="gpu:1")
    )


@settings(deadline=None, max_examples=80)
@given(st.integers(0, 2_000_000), st.integers(0, 400_000), st.integers(1, 200))
def test_more_in_use_never_turns_refused_into_admitted(held: int, more: int, steps: int) -> None:
    def verdict(nbytes: int) -> str:
        found, _ = with_in_use(fleet(capacity=2_500_000), [plan_of(nbytes)])
        return admit(ask(found, prompt_tokens=1, steps=steps + 1)).verdict

    if verdict(held) == "refused":
        assert verdict(held + more) == "refused"


def test_the_byte_that_is_in_use_decides() -> None:
    total = admit(ask(fleet())).prediction.footprints[0].total_bytes  # type: ignore[union-attr]  # priced
    for spare, verdict in ((0, "admitted"), (1, "refused")):
        found, _ = with_in_use(fleet(capacity=total + 500_000), [plan_of(500_000 + spare)])
        full = replace(ask(found), utilization=Fraction(1))
        assert admit(full).verdict == verdict
        if verdict == "refused":
            told, _, table = counterfactuals(admit(full))
            assert told.reasons[0].code == "EXCEEDS_FREE"
            assert table[0]["change"] is None


def test_devices_in_one_memory_share_what_is_in_use() -> None:
    made = fleet()
    shared = tuple(replace(d, memories=(replace(d.memories[0], physical="pool"),)) for d in made.devices)
    found, _ = with_in_use(replace(made, devices=shared), [plan_of(700)])
    assert used(found) == {"gpu:0": 700, "gpu:1": 700}


def sliced() -> Fleet:
    """A card with two slices."""
    made = fleet()
    more: dict[str, Any] = {"parent": "gpu:0", "pci": None, "index": None}
    slices = (replace(made.devices[1], id=name, uuid=f"MIG-{name}", **more) for name in ("gpu:0/gi=7", "gpu:0/mig"))
    return replace(made, devices=(made.devices[0], *slices))


@pytest.mark.parametrize(
    ("words", "card", "ids", "mig"),
    [
        (("gpu:0/mig=300B",), 300, 0, 300),
        (("gpu:0/mig=300B", "gpu:0/gi=7=40B"), 340, 40, 300),
        (("gpu:0=900B", "gpu:0/mig=300B"), 900, None, 300),
        (("gpu:0=0B",), 0, 0, 0),
    ],
)
def test_what_is_stated_of_a_slice_lies_on_its_card(
    words: tuple[str, ...], card: int, ids: int | None, mig: int
) -> None:  # fmt: skip
    found, _ = with_in_use(sliced(), stated(*words))
    assert used(found) == {"gpu:0": card, "gpu:0/gi=7": ids, "gpu:0/mig": mig}


def test_what_is_stated_of_a_slice_stands_in_place_of_what_a_text_put_on_its_card_for_it() -> None:
    texts = [plan_of(500, device="gpu:0/mig"), plan_of(60, device="gpu:0/gi=7", ident="2" * 64)]
    assert used(with_in_use(sliced(), [*texts, *stated("gpu:0/mig=100B")])[0])["gpu:0"] == 160
    of_card = [plan_of(700)]  # which slice it lies on is not said: it may be what is stated of them
    assert used(with_in_use(sliced(), [*of_card, *stated("gpu:0/mig=100B")])[0])["gpu:0"] == 700
    assert used(with_in_use(sliced(), [*of_card, *stated("gpu:0/mig=900B")])[0])["gpu:0"] == 900
    unknown = [smi("0, [N/A]", header="index, memory.used [MiB]")]
    assert used(with_in_use(sliced(), [*unknown, *stated("gpu:0/mig=100B")])[0])["gpu:0"] is None
    _, told = with_in_use(sliced(), stated("gpu:0=1B", "gpu:0/mig=3B", "gpu:0/gi=7=4B"))
    assert told == ("gpu:0 is stated to hold less than its slices, gpu:0/gi=7, gpu:0/mig: 7 B",)


def test_use_of_a_card_leaves_its_slices_unknown_and_use_of_a_slice_is_the_cards() -> None:
    made = fleet()
    part = replace(made.devices[1], id="gpu:0/mig", parent="gpu:0", uuid="MIG-1", pci=None, index=None)
    sliced = replace(made, devices=(made.devices[0], part))
    assert used(with_in_use(sliced, [plan_of(700)])[0]) == {"gpu:0": 700, "gpu:0/mig": None}
    assert used(with_in_use(sliced, [plan_of(700, device="gpu:0/mig")])[0]) == {"gpu:0": 700, "gpu:0/mig": 700}


def stated(*words: str) -> list[InUse]:
    found = [read_stated(word, {"gpu:0", "gpu:1", "gpu:0/mig", "gpu:0/gi=7"}) for word in words]
    return [each for each in found if each is not None]


def test_what_is_stated_of_a_device_stands_against_texts_and_is_told() -> None:
    text = smi("0, 5", "1, [N/A]", header="index, memory.used [MiB]")
    found, told = with_in_use(pair(), [text, *stated("gpu:1=3 MiB")])
    assert used(found) == {"gpu:0": 6 * MIB - 1, "gpu:1": 3 * MIB}
    assert told == ("gpu:1 holds 3,145,728 B as stated, in place of nothing that is known by smi.csv",)
    found, told = with_in_use(pair(), [*stated("gpu:0=7B"), text])
    assert used(found) == {"gpu:0": 7, "gpu:1": None}
    assert told == ("gpu:0 holds 7 B as stated, in place of 6,291,455 B by smi.csv",)


def test_a_device_is_stated_once_in_bytes_and_by_its_id() -> None:
    assert stated("gpu:7=1GiB", "held.csv", "a=b.csv") == []
    for wrong in ("gpu:0=", "gpu:0=much", "gpu:0=-1B", "gpu:0=3", "gpu:0=9999999999 PiB"):
        with pytest.raises(DescriptionError):
            stated(wrong)
    with pytest.raises(DescriptionError, match="states the use of gpu:0 twice"):
        with_in_use(pair(), stated("gpu:0=1GiB", "gpu:0=1GiB"))
