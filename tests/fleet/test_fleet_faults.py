"""Each fault of a fleet file: told at its line and column, with its field and how to mend it."""

from __future__ import annotations

import pytest

from fleet.errors import DescriptionError
from fleet.load import load_fleet

HEAD = "schema: kvwaybill/fleet/1\nname: pair\n"
SKUS = "skus:\n  card: {kind: gpu, memories: [{name: hbm, capacity: 80 GiB}]}\n"
DEVICES = "devices:\n  - {id: gpu:0, sku: card}\n  - {id: gpu:1, sku: card}\n"
GOOD = HEAD + SKUS + DEVICES
MARK = "\u00a7"


def faults_of(text: str):
    with pytest.raises(DescriptionError) as caught:
        load_fleet("pair.yaml", text=text)
    assert caught.value.exit_code == 2
    return caught.value.faults


def marked(text: str) -> tuple[str, int, int]:
    """The text without its mark, and the line and column at which the mark stood."""
    before, after = text.split(MARK)
    return before + after, before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1


def memory(fields: str) -> str:
    return HEAD + "skus:\n  card: {kind: gpu, memories: [{name: hbm, " + fields + "}]}\n" + DEVICES


def device(fields: str) -> str:
    return HEAD + SKUS + "devices:\n  - {id: gpu:0, sku: card}\n  - {" + fields + "}\n"


def link(fields: str) -> str:
    return GOOD + "links:\n  - {" + fields + "}\n"


HBM = "skus.card.memories[0]"

CASES = {
    # 1 repeated names and keys
    "two devices of one id": (
        device("id: §gpu:0, sku: card, index: 1"),
        "devices[1].id",
        "devices[0].id too, at line 6",
    ),
    "a device named as a host": (
        HEAD + SKUS + "hosts: [{id: box}]\ndevices: [{id: §box, kind: gpu, sku: card}]\n",
        "devices[0].id",
        "hosts[0].id too, at line 5",
    ),
    "a device named host": (device("id: §host, sku: card"), "devices[1].id", "which a file without hosts has"),
    "one memory name twice": (
        device("id: gpu:1, kind: gpu, memories: [{name: a}, {name: §a}], default_memory: a"),
        "devices[1].memories[1].name",
        "devices[1].memories[0].name too, at line 7",
    ),
    "one key twice": (GOOD + "§name: other\n", "name", "given twice, first at line 2"),
    "one uuid twice": (
        HEAD + SKUS + "devices:\n  - {id: gpu:0, sku: card, uuid: GPU-1}\n  - {id: gpu:1, sku: card, uuid: §GPU-1}\n",
        "devices[1].uuid",
        "is the uuid of devices[0].uuid too, at line 6",
    ),
    "one pci address twice": (
        HEAD + SKUS + 'devices:\n  - {id: gpu:0, sku: card, pci: "0:A"}\n  - {id: gpu:1, sku: card, pci: §"0:a"}\n',
        "devices[1].pci",
        "is the pci address of devices[0].pci too",
    ),
    "one link twice": (
        GOOD + "links:\n  - {from: gpu:0, to: gpu:1, kind: pcie, bidirectional: true}\n"
        "  - §{from: gpu:1, to: gpu:0, kind: pcie}\n",
        "links[1]",
        "links[0] too, at line 9",
    ),
    # 2 dangling ends
    "a link to nowhere": (link("from: gpu:0, to: §gpu:9, kind: pcie"), "links[0].to", "did you mean gpu:"),
    "a link from nowhere": (link("from: §hots, to: gpu:1, kind: pcie"), "links[0].from", "did you mean host?"),
    "an unknown sku": (device("id: gpu:1, sku: §cart"), "devices[1].sku", "did you mean card?"),
    "an unknown host": (device("id: gpu:1, sku: card, host: §hots"), "devices[1].host", "did you mean host?"),
    "several hosts and none named": (
        HEAD + "hosts: [{id: a}, {id: b}]\n" + SKUS + "devices:\n  - §{id: gpu:0, sku: card}\n",
        "devices[0]",
        "needs host: one of a, b",
    ),
    # 3 impossible rates
    "bandwidth 0": (memory("bandwidth: §0 GB/s"), f"{HBM}.bandwidth", "leave the line out"),
    "bandwidth negative": (memory("bandwidth: §-1 GB/s"), f"{HBM}.bandwidth", "write a plain number and a unit"),
    "bandwidth not a number": (memory("bandwidth: §.nan"), f"{HBM}.bandwidth", "write a plain number and a unit"),
    "bandwidth infinite": (memory("bandwidth: §inf GB/s"), f"{HBM}.bandwidth", "write a plain number and a unit"),
    "bandwidth 1e400": (memory('bandwidth: §"1e400"'), f"{HBM}.bandwidth", "write a plain number and a unit"),
    "granule 0": (memory("granule: §0 B"), f"{HBM}.granule", "leave the line out"),
    # 4 units
    "lower case unit": (memory("capacity: §80 gb"), f"{HBM}.capacity", "GB, GiB"),
    "bits of memory": (memory("capacity: §80 Gb"), f"{HBM}.capacity", "counts bits"),
    "bits per second of memory": (memory("bandwidth: §400 Gbps"), f"{HBM}.bandwidth", "write bytes"),
    "bits on a bus": (
        link("from: gpu:0, to: gpu:1, kind: pcie, bandwidth: §400 Gb/s"),
        "links[0].bandwidth",
        "kind net",
    ),
    "no whole byte": (memory("capacity: §1.1 KiB"), f"{HBM}.capacity", "not a whole number of bytes"),
    # 5 bare numbers
    "a bare capacity": (memory("capacity: §80"), f"{HBM}.capacity", "unit missing; write e.g. 80 GiB"),
    "a bare capacity in quotes": (memory('capacity: §"80"'), f"{HBM}.capacity", "unit missing"),
    "a bare value": (memory("capacity: {value: §80}"), f"{HBM}.capacity.value", "unit missing"),
    "a bare latency": (link("from: gpu:0, to: gpu:1, kind: pcie, latency: §5"), "links[0].latency", "unit missing"),
    "a boolean capacity": (memory("capacity: §true"), f"{HBM}.capacity", "write a plain number and a unit"),
    "a sexagesimal capacity": (memory("capacity: §1:30"), f"{HBM}.capacity", "write a plain number and a unit"),
    "an octal count": (link("from: gpu:0, to: gpu:1, kind: pcie, count: §010"), "links[0].count", "no leading 0"),
    "count 0": (link("from: gpu:0, to: gpu:1, kind: pcie, count: §0"), "links[0].count", "from 1 to"),
    "a flag that is no flag": (
        link("from: gpu:0, to: gpu:1, kind: pcie, bidirectional: §yes"),
        "links[0].bidirectional",
        "must be true or false",
    ),
    # 7 a link to itself
    "a link to itself": (link("from: gpu:0, to: §gpu:0, kind: nvlink"), "links[0].to", "need no link: remove it"),
    # 8 YAML's own traps
    "an anchor": (GOOD + "label: §&a text\n", "", "anchor &a"),
    "an alias": (GOOD + "label: §*a\n", "", "alias *a"),
    "a merge key": (device("id: gpu:1, sku: card, §<<: {}"), "", "merge keys"),
    "a tag": (GOOD + "label: §!!python/name:os.system x\n", "", "tags are not allowed"),
    "a second document": (GOOD + "§---\nname: other\n", "", "one file holds one"),
    # 9 unknown fields and words
    "an unknown field of a memory": (memory("§capcity: 80 GiB"), f"{HBM}.capcity", "did you mean capacity?"),
    "an unknown field of a file": (GOOD + "§link: []\n", "link", "did you mean links?"),
    "an unknown field of a device": (
        device("id: gpu:1, §skuu: card, sku: card"),
        "devices[1].skuu",
        "did you mean sku?",
    ),
    "an unknown field of a figure": (
        memory("capacity: {value: 80 GiB, §sourze: x}"),
        f"{HBM}.capacity.sourze",
        "did you mean source?",
    ),
    "an unknown field of an observation": (
        memory("capacity: {declared: 80 GiB, observed: {value: 79 GiB, §tol: x}}"),
        f"{HBM}.capacity.observed.tol",
        "did you mean tool?",
    ),
    "an unknown field of the budget": (
        GOOD + "budget: {§utilisation: 0.9}\n",
        "budget.utilisation",
        "mean utilization?",
    ),
    "an unknown link kind": (link("from: gpu:0, to: gpu:1, kind: §nvlnk"), "links[0].kind", "did you mean nvlink?"),
    "a list as a link kind": (link("from: gpu:0, to: gpu:1, kind: §[a]"), "links[0].kind", "must be one of nvlink"),
    "an unknown device kind": (device("id: gpu:1, sku: card, kind: §gpo"), "devices[1].kind", "did you mean gpu?"),
    "an unknown peer access": (
        link("from: gpu:0, to: gpu:1, kind: pcie, peer_access: §dirct"),
        "links[0].peer_access",
        "did you mean direct?",
    ),
    "an unknown provenance": (
        memory("capacity: {value: 80 GiB, provenance: §guess}"),
        f"{HBM}.capacity.provenance",
        "spec, measured, policy",
    ),
    "another schema": ("schema: §kvwaybill/fleet/2\nname: pair\n" + SKUS + DEVICES, "schema", "kvwaybill/fleet/1"),
    "no schema": ("§name: pair\n" + SKUS + DEVICES, "schema", "begin the file with schema: kvwaybill/fleet/1"),
    "a figure without value": (memory("capacity: §{unit: GiB}"), f"{HBM}.capacity.value", "is missing"),
    # 11 names
    "an accent in an id": (device("id: §gpu-\u00e9, sku: card"), "devices[1].id", "free text belongs in label"),
    "a combining accent in an id": (device("id: §gpu-e\u0301, sku: card"), "devices[1].id", "belongs in label"),
    "a mark from right to left in an id": (device('id: §"gpu\u200f1", sku: card'), "devices[1].id", "belongs in label"),
    "a blank in an id": (device("id: §gpu 1, sku: card"), "devices[1].id", "belongs in label"),
    "a long id": (device("id: §" + "g" * 300 + ", sku: card"), "devices[1].id", "1 to 64"),
    "an id of many digits": (device("id: §" + "9" * 5000 + ", sku: card"), "devices[1].id", "1 to 64"),
    "an empty id": (device('id: §"", sku: card'), "devices[1].id", "1 to 64"),
    "a device without id": (device("§sku: card").replace("- {§", "- §{"), "devices[1].id", "write e.g. id: gpu:0"),
    "a control character in a label": (GOOD + 'label: §"a\\ab"\n', "label", "control characters"),
    # 14 default memory
    "two memories without a default": (
        HEAD + "skus:\n  card: §{kind: gpu, memories: [{name: hbm}, {name: lpddr}]}\n" + DEVICES,
        "skus.card",
        "add e.g. default_memory: hbm",
    ),
    "a default that is no memory": (
        HEAD + "skus:\n  card: {kind: gpu, memories: [{name: hbm}], default_memory: §hbn}\n" + DEVICES,
        "skus.card.default_memory",
        "did you mean hbm?",
    ),
    "no memory at all": (
        HEAD + "skus: {card: {kind: gpu}}\ndevices:\n  - §{id: gpu:0, sku: card}\n",
        "devices[0]",
        "no memory",
    ),
    "no kind at all": (device("§id: a1, memories: [{name: m}]").replace("- {§", "- §{"), "devices[1]", "needs kind"),
    # 15 too large
    "more than 63 bits": (memory("capacity: §9223372036854775808 B"), f"{HBM}.capacity", "2^63-1"),
    "a huge unit": (memory("bandwidth: §99999999 PB/s"), f"{HBM}.bandwidth", "2^63-1"),
    "a latency of an hour": (
        link("from: gpu:0, to: gpu:1, kind: net, latency: §3600 s"),
        "links[0].latency",
        "below 1000 s",
    ),
    # 18 indices
    "index 100": (device("id: gpu:1, sku: card, index: §100"), "devices[1].index", "0..99"),
    "index 100 in the id": (device("id: §gpu:100, sku: card"), "devices[1].id", "0..99"),
    "index -1": (device("id: gpu:1, sku: card, index: §-1"), "devices[1].index", "plain whole number"),
    "index 1.0": (device("id: gpu:1, sku: card, index: §1.0"), "devices[1].index", "plain whole number"),
    "index 0x1": (device('id: gpu:1, sku: card, index: §"0x1"'), "devices[1].index", "plain whole number"),
    "one index twice": (device("id: gpu:1, sku: card, index: §0"), "devices[1].index", "index 0 of gpu on host"),
    "two names with one topology id": (
        HEAD + SKUS + "devices:\n  - {id: costarring, sku: card}\n  - {id: §liquid, sku: card}\n",
        "devices[1].id",
        "of costarring; rename one",
    ),
    # 21 shapes
    "devices that are no list": (HEAD + "devices: §{a: b}\n", "devices", "must be a list"),
    "no devices": ("§" + HEAD, "devices", "at least one device"),
    "an empty list of devices": (HEAD + "devices: §[]\n", "devices", "at least one device"),
    "a device that is no mapping": (GOOD + "  - §gpu:2\n", "devices[2]", "must be a mapping"),
    "a list as a file": ("§- a\n", "", "must be a mapping"),
    "a tab as indent": (HEAD + "devices:\n§\t- {id: gpu:0}\n", "", "a tab cannot indent"),
    "an open bracket": (GOOD + "links: [§", "", "not YAML"),
    "text with a colon": (GOOD + "label: two§: cards\n", "", "in quotes"),
    "a list as a key": (GOOD + "? §[a]\n: b\n", "", "a key must be a plain word"),
    "a list as a figure": (memory("capacity: §[80 GiB]"), f"{HBM}.capacity", "must be a quantity"),
    # peer access and budget
    "peer access of a host link": (
        link("from: host, to: gpu:1, kind: pcie, peer_access: §direct"),
        "links[0].peer_access",
        "between two devices",
    ),
    "utilization above 1": (GOOD + "budget: {utilization: §1.5}\n", "budget.utilization", "outside 0 < share <= 1"),
    "utilization 0": (GOOD + "budget: {utilization: §0}\n", "budget.utilization", "outside 0 < share <= 1"),
    "an unknown reserve": (GOOD + "budget: {reserve: §unknown}\n", "budget.reserve", "must be an amount"),
    "a bare reserve": (GOOD + "budget: {reserve: §5}\n", "budget.reserve", "unit missing"),
}


@pytest.mark.parametrize("name", CASES)
def test_tells_one_fault_at_its_place_with_its_field_and_how_to_mend_it(name):
    text, line, column = marked(CASES[name][0])
    (fault,) = faults_of(text)
    assert (fault.source, fault.line, fault.column, fault.field) == ("pair.yaml", line, column, CASES[name][1])
    assert CASES[name][2] in fault.message
    assert str(fault).startswith(f"pair.yaml:{line}:{column} {fault.field}")


def test_the_good_file_under_the_cases_is_good():
    assert [device.id for device in load_fleet("pair.yaml", text=GOOD).devices] == ["gpu:0", "gpu:1"]


def test_tells_all_faults_of_all_kinds_at_once_in_the_order_of_the_file():
    text = (
        "schema: kvwaybill/fleet/1\nname: a b\nskus:\n  card: {kind: gpu, memories: [{name: hbm, capcity: 80 GiB}]}\n"
        "devices:\n  - {id: gpu:0, sku: card}\n  - {id: gpu:0, sku: card}\n  - {id: gpu:2, sku: cart, index: 100}\n"
        "links:\n  - {from: gpu:0, to: gpu:9, kind: pcie, bandwidth: 0 GB/s}\nname: again\n"
    )
    told = [(fault.line, fault.field) for fault in faults_of(text)]
    assert told == [
        (2, "name"),
        (4, "skus.card.memories[0].capcity"),
        (7, "devices[1].id"),
        (8, "devices[2].sku"),
        (8, "devices[2].index"),
        (10, "links[0].to"),
        (10, "links[0].bandwidth"),
        (11, "name"),
    ]


def test_prints_twenty_faults_and_counts_the_rest():
    text = GOOD + "links:\n" + "".join(f"  - {{from: gpu:0, to: n{i}, kind: net}}\n" for i in range(50))
    with pytest.raises(DescriptionError) as caught:
        load_fleet("pair.yaml", text=text)
    lines = str(caught.value).splitlines()
    assert len(caught.value.faults) == 50
    assert len(lines) == 21
    assert lines[-1] == "... and 30 more faults"


def test_a_fault_within_a_document_names_the_field_of_the_document():
    text = (
        '{"schema": "kvwaybill/fleet/1", "name": "a", "devices": [{"id": "gpu:0", "kind": "gpu",\n'
        '"memories": [{"name": "m", "capacity_bytes": -5}]}],\n'
        '"links": [{"src": "gpu:0", "dst": "gpu:1", "kind": "pcie", "latency_s": "x"}]}'
    )
    told = [(fault.line, fault.column, fault.field) for fault in faults_of(text)]
    assert told == [
        (2, 46, "devices[0].memories[0].capacity_bytes"),
        (3, 35, "links[0].dst"),
        (3, 73, "links[0].latency_s"),
    ]
