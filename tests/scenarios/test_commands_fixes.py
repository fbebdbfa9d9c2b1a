"""Every fix that a refusal tells is applied as a user would, by flags or in the fleet file, and is then admitted."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest

from tests.command_line import Answer, Ask, Document, asker, fleet, without, write_json

ASKED = {"--prompt-tokens": "20", "--steps": "60"}
TOO_SMALL = "100 KiB"
IN_USE = "index, memory.used [MiB]\n0, 10 MiB\n1, 62 MiB\n"


@pytest.fixture
def ask(capfd: pytest.CaptureFixture[str]) -> Ask:
    return asker(capfd)


def state(described: Document, field: str, value: Any) -> None:
    """Writes `value` at a field as fixes name it: devices[0].memories[0].capacity, links[+], links[a->b].kind."""
    steps = re.findall(r"[^.\[\]]+|\[[^\]]+\]", field)
    here: Any = described
    for number, step in enumerate(steps):
        last = number == len(steps) - 1
        if step == "[+]":
            assert last
            here.append(value)
            return
        key: Any = step.strip("[]")
        if "->" in key:
            ends = key.split("->")
            key = next(i for i, each in enumerate(here) if [each["from"], each["to"]] == ends)
        elif step.startswith("["):
            key = int(key)
        if last:
            here[key] = value
        else:
            here = here[key]


def admit(ask: Ask, folder: Path, described: Document, flags: dict[str, str], *beside: str) -> Answer:
    path = write_json(folder / "fleet.yaml", described)
    words = [part for flag, value in flags.items() for part in ((flag,) if value == "" else (flag, value))]
    return ask("admit", "--fleet", path, *words, *beside, "-o", "json")


def applied(described: Document, flags: dict[str, str], fix: Document) -> tuple[Document, dict[str, str]]:
    """Fleet file and flags with the whole fix in them, `and` included."""
    described, flags = copy.deepcopy(described), dict(flags)
    for change in [fix, *fix.get("and", [])]:
        assert ("flag" in change) != ("field" in change)
        if "flag" in change:
            flags[change["flag"]] = "" if change["to"] is True else str(change["to"])  # a flag without a value
        else:
            state(described, change["field"], change["to"])
    return described, flags


def in_one_memory(capacity: str) -> Document:
    """Two devices that claim the same bytes."""
    described = fleet([capacity, capacity])
    for device in described["devices"]:
        device["memories"][0] |= {"shared": "true", "physical": "pool"}
    return described


def sliced() -> Document:
    """A card and a slice of it."""
    described = fleet(["1 GiB"])
    memory = [{"name": "hbm", "capacity": "64 MiB", "granule": "4 KiB"}]
    described["devices"].append({"id": "gpu:0/mig", "sku": "card", "parent": "gpu:0", "memories": memory})
    return described


UNLINKED = [("host", "gpu:1"), ("gpu:1", "host"), ("host", "gpu:0"), ("gpu:0", "host")]
REFUSED: dict[str, tuple[Document, dict[str, str], set[str], str]] = {
    "a share of the device": (fleet("1200 KiB", utilization="0.5"), {}, {"EXCEEDS_BUDGET"}, "--utilization"),
    "a byte": (fleet("1126399 B"), {}, {"EXCEEDS_CAPACITY"}, "--steps"),
    "both devices of one SKU": (fleet(TOO_SMALL), {}, {"EXCEEDS_CAPACITY"}, "skus.card"),
    "two devices of their own": (fleet([TOO_SMALL, "200 KiB"]), {}, {"EXCEEDS_CAPACITY"}, "devices[0]"),
    "a third device": (fleet(["64 MiB", "1 MiB", "64 MiB"]), {}, {"EXCEEDS_CAPACITY"}, "--decode"),
    "a third device for prefill": (fleet(["1 MiB", "64 MiB", "64 MiB"]), {}, {"EXCEEDS_CAPACITY"}, "--prefill"),
    "one device alone": (fleet([TOO_SMALL]), {}, {"EXCEEDS_CAPACITY"}, "capacity"),
    "positions": (fleet("1250 KiB"), {"--positions": "256"}, {"EXCEEDS_CAPACITY"}, "--positions"),
    "sequences": (fleet("2 MiB"), {"--batch": "64"}, {"EXCEEDS_CAPACITY"}, "--batch"),
    "absurdly many sequences": (fleet("2 MiB"), {"--batch": str(10**12)}, {"EXCEEDS_CAPACITY"}, "--batch"),
    "passes": (fleet("1150 KiB"), {"--steps": "250"}, {"EXCEEDS_CAPACITY"}, "--steps"),
    "new tokens": (fleet("1150 KiB"), {"--new-tokens": "200"}, {"EXCEEDS_CAPACITY"}, "--new-tokens"),
    "one memory of two devices": (in_one_memory("1500 KiB"), {}, {"EXCEEDS_SHARED_MEMORY"}, "--weights-dtype"),
    "a card and its slice": (
        sliced(), {"--prefill": "gpu:0", "--decode": "gpu:0/mig"}, {"CARD_AND_SLICE"}, "--",
    ),
    "the pinned pool": (fleet(peer="staged", pool="32 B"), {}, {"PINNED_POOL_TOO_SMALL"}, "--kv-dtype"),
    "what others hold": (fleet("64 MiB"), {"--in-use": IN_USE}, {"EXCEEDS_FREE"}, "--weights-dtype"),
    "a pool for no type": (fleet(peer="staged", pool="16 B"), {}, {"PINNED_POOL_TOO_SMALL"}, "hosts[0]"),
    "one link": (without(fleet(), ("host", "gpu:1")), {}, {"NO_ROUTE"}, "links[+]"),
    "the links of a device": (without(fleet(), *UNLINKED[:2]), {}, {"NO_ROUTE"}, "links[+]"),
    "all host links": (without(fleet(), *UNLINKED), {}, {"NO_ROUTE"}, "links[+]"),
    "no link at all": (without(fleet(peer=None), *UNLINKED), {}, {"NO_ROUTE"}, "links[+]"),
    "a link and both capacities": (
        without(fleet([TOO_SMALL, "64 KiB"]), ("host", "gpu:1")), {}, {"EXCEEDS_CAPACITY", "NO_ROUTE"}, "devices[0]",
    ),
    "the pool and the capacity": (
        fleet(TOO_SMALL, peer="staged", pool="64 B"), {}, {"EXCEEDS_CAPACITY", "PINNED_POOL_TOO_SMALL"}, "skus.card",
    ),
    "a capacity beside an unknown way": (
        fleet(TOO_SMALL, peer="unknown"), {}, {"EXCEEDS_CAPACITY", "PEER_ACCESS_UNKNOWN"}, "skus.card",
    ),
    "a capacity beside an unknown one": (
        fleet(["unknown", TOO_SMALL], peer="unknown"), {},
        {"EXCEEDS_CAPACITY", "CAPACITY_UNKNOWN", "PEER_ACCESS_UNKNOWN"}, "devices[1]",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_the_fix_of_every_kind_of_refusal_is_admitted(case: str, tmp_path: Path, ask: Ask) -> None:
    described, more, codes, first = REFUSED[case]
    flags = ASKED | more
    if "--new-tokens" in more:
        del flags["--steps"]
    if "--in-use" in more:
        flags["--in-use"] = str(tmp_path / "smi.csv")
        (tmp_path / "smi.csv").write_text(more["--in-use"])
    refused = admit(ask, tmp_path, described, flags)
    assert refused.code == 1
    plan = refused.document
    assert plan["verdict"] == "refused"
    assert {reason["code"] for reason in plan["reasons"]} == codes
    errors = [reason for reason in plan["reasons"] if reason["severity"] == "error"]
    assert errors
    for reason in errors:
        assert first in (reason["fix"].get("flag") or reason["fix"].get("field"))
        assert admit(ask, tmp_path, *applied(described, flags, reason["fix"])).code == 0
    for change in plan["alternatives"]:
        if "reading" not in change:
            assert admit(ask, tmp_path, *applied(described, flags, change)).code == 0, change


def test_the_table_has_every_code_that_refuses() -> None:
    from scenarios.explain import CODES

    seen = set().union(*(codes for _, _, codes, _ in REFUSED.values()))
    never_alone = {
        "MODEL_UNKNOWN",
        "DIVISION_UNKNOWN",
        "ENGINE_UNKNOWN",
        "IN_USE_UNKNOWN",
    }  # leave unverified, never refuse
    beyond = {"SIZE_OVERFLOW"}  # see the test below
    assert set(CODES) - seen == never_alone | beyond


def test_a_total_beyond_63_bits_is_refused_with_a_fix(tmp_path: Path, ask: Ask) -> None:
    config = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 1024, "num_hidden_layers": 2,
        "num_attention_heads": 8, "num_key_value_heads": 8, "intermediate_size": 1024, "vocab_size": 1000,
        "max_position_embeddings": 1048576, "torch_dtype": "bfloat16",
    }  # fmt: skip
    model = str(write_json(tmp_path / "config.json", config))
    described = fleet("4096 PiB")
    flags = {"--model": model, "--prompt-tokens": "1000", "--steps": "1048576", "--batch": str(2**40)}
    refused = admit(ask, tmp_path, described, flags)
    assert refused.code == 1
    reasons = {reason["code"]: reason for reason in refused.document["reasons"]}
    assert "SIZE_OVERFLOW" in reasons
    assert admit(ask, tmp_path, *applied(described, flags, reasons["SIZE_OVERFLOW"]["fix"])).code == 0


@pytest.mark.parametrize("name", ["two-gpu-tight"])
def test_the_fix_of_a_shipped_refusal_is_admitted_and_runs(name: str, ask: Ask, tmp_path: Path) -> None:
    plan = ask("admit", name, "-o", "json").document
    fix = plan["reasons"][0]["fix"]
    assert "flag" in fix
    out = tmp_path / "plan.json"
    assert ask("admit", name, fix["flag"], str(fix["to"]), "--plan-out", out).code == 0
    assert ask("run", out).code == 0


def test_a_refusal_tells_shortfall_and_needed_and_available(ask: Ask) -> None:
    reason = ask("admit", "two-gpu-tight", "-o", "json").document["reasons"][0]
    assert reason["severity"] == "error"
    assert reason["device"] == "gpu:1"
    assert reason["needed_bytes"] - reason["available_bytes"] == reason["shortfall_bytes"] > 0
    assert f"{reason['shortfall_bytes']:,} B" in reason["message"]


def test_cards_of_the_catalog_have_each_a_field_and_a_least_capacity_of_their_own(ask: Ask, tmp_path: Path) -> None:
    described: Document = {
        "schema": "kvwaybill/fleet/1",
        "name": "mixed",
        "devices": [{"id": "gpu:0", "sku": "l4"}, {"id": "gpu:1", "sku": "h100-sxm-80"}],
        "links": [
            {"from": "host", "to": "gpu:*", "kind": "pcie", "bidirectional": "true"},
            {"from": "gpu:0", "to": "gpu:1", "kind": "pcie", "peer_access": "direct", "bidirectional": "true"},
        ],
    }
    answer = admit(ask, tmp_path, described, {"--steps": "60", "--batch": "400000"})
    assert answer.code == 1
    told = [each for each in answer.document["alternatives"] if "field" in each]
    assert [each["field"] for each in told] == ["skus.l4.memories[0].capacity"]  # the H100 is large enough
    card = {"extends": "l4", "memories": [{"name": "gddr", "capacity": told[0]["to"], "granule": "2 MiB"}]}
    assert admit(ask, tmp_path, described | {"skus": {"l4": card}}, {"--steps": "60", "--batch": "400000"}).code == 0


def seconds_in(part: Any) -> list[Any]:
    """Every time in a part of a document."""
    if isinstance(part, dict):
        own = [value for name, value in part.items() if name.endswith(("seconds", "_s")) and "per_s" not in name]
        return own + [each for value in part.values() for each in seconds_in(value)]
    return [each for value in part for each in seconds_in(value)] if isinstance(part, list) else []


def test_readings_of_a_refused_plan_are_told_apart_from_changes_and_have_no_time(ask: Ask) -> None:
    words = ["--fleet", "pcie-l40s", "--batch", "9000000"]
    answer = ask("admit", *words, "-o", "json")
    assert answer.code == 1
    readings = [each for each in answer.document["alternatives"] if "reading" in each]
    assert [each["reading"] for each in readings] == ["direct", "staged"]
    assert readings[1]["handoff"]["legs"]
    assert set(seconds_in(readings)) == {None}
    told = ask("admit", *words).out
    assert "Both readings\n  - if peer access is direct" in told
    assert "admitted too\n  - if peer" not in told


def test_a_refusal_beside_an_unknown_use_tells_what_would_admit_it(ask: Ask, tmp_path: Path) -> None:
    held = tmp_path / "held.csv"
    held.write_text("index, memory.used [MiB]\n0, [N/A]\n1, [N/A]\n")
    described = fleet([TOO_SMALL, TOO_SMALL])
    flags = {**ASKED, "--in-use": str(held)}
    answer = admit(ask, tmp_path, described, flags)
    assert answer.code == 1
    fix = answer.document["reasons"][0]["fix"]
    *sizes, one, other = [fix, *fix["and"]]
    for change in sizes:
        state(described, change["field"], change["to"])
    assert admit(ask, tmp_path, described, flags).code == 3
    beside = [word for part in (one, other) for word in (part["flag"], part["to"])]
    assert admit(ask, tmp_path, described, flags, *beside).code == 0
    for part in (one, other):
        assert part["beside"]
        assert part["unknown"]
        name, _, size = part["to"].partition("=")
        more = [word.replace(part["to"], f"{name}={int(size.split()[0]) + 1} B") for word in beside]
        assert admit(ask, tmp_path, described, flags, *more).code == 1


def test_what_others_would_have_to_give_back_is_told_to_the_byte(ask: Ask, tmp_path: Path) -> None:
    held = tmp_path / "held.csv"
    held.write_text("index, memory.used [MiB]\n0, 64 MiB\n1, 63 MiB\n")
    described = fleet("64 MiB")
    flags = {**ASKED, "--in-use": str(held)}
    answer = admit(ask, tmp_path, described, flags)
    assert answer.code == 1
    [row] = [each for each in answer.document["counterfactuals"] if each["dimension"] == "in use"]
    one, other = row["change"], *row["change"]["and"]
    assert [part["from"] for part in (one, other)] == [
        f"gpu:{number}={mib * 2**20 - 1} B"
        for number, mib in ((0, 65), (1, 64))  # a printed MiB is rounded down
    ]
    told = [one["flag"], one["to"], other["flag"], other["to"]]
    assert admit(ask, tmp_path, described, flags, *told).code == 0
    name, _, size = one["to"].partition("=")
    told[1] = f"{name}={int(size.split()[0]) + 1} B"
    assert admit(ask, tmp_path, described, flags, *told).code == 1


@pytest.mark.shared
def test_a_size_that_a_foreign_text_states_is_a_field_of_its_device(ask: Ask) -> None:
    text = Path("../shared/data/topology/hwloc_power8_4xp100.xml")
    if not text.exists():
        pytest.skip("the shared topology texts are not here")  # of others: read where they lie, not copied
    answer = ask("admit", "--fleet", str(text), "--batch", "900000", "-o", "json")
    fields = [each["field"] for each in answer.document["alternatives"] if "capacity" in each.get("field", "")]
    assert fields == ["devices.gpu:0.memories[0].capacity"]
    assert not any(each.get("field") == "--sku" for each in answer.document["alternatives"])
