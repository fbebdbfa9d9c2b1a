"""Fixes applied by a program that knows nothing of fleets: flags as told, and JSON Patches on `fleet show -o json`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.command_line import Ask, Document, asker, fleet, write_json
from tests.scenarios.test_commands_fixes import ASKED, REFUSED, in_one_memory
from tests.scenarios.test_commands_unread import WINDOWS

SHARED = Path("../shared/data/topology")


@pytest.fixture
def ask(capfd: pytest.CaptureFixture[str]) -> Ask:
    return asker(capfd)


def patched(document: Any, operations: list[Document]) -> Any:
    """RFC 6902, `add` alone: members are set, `-` appends. A path that is not there is a KeyError or IndexError."""
    for operation in operations:
        assert operation["op"] == "add"
        *way, last = operation["path"].lstrip("/").split("/")
        here = document
        for step in way:
            here = here[int(step)] if isinstance(here, list) else here[step]
        if isinstance(here, list):
            assert last == "-"
            here.append(operation["value"])
        else:
            here[last] = operation["value"]
    return document


def parts(change: Document) -> list[Document]:
    return [change, *change.get("and", [])]


def apply_all(ask: Ask, folder: Path, path: str | Path, flags: dict[str, str], more: list[str]) -> tuple[Document, int]:
    """Applies every alternative as a program would; (the refused plan, how many had a patch)."""
    words = [part for flag, value in flags.items() for part in (flag, value)]
    plan = ask("admit", "--fleet", path, *words, *more, "-o", "json").document
    assert plan["verdict"] == "refused"
    shown = ask("fleet", "show", path, *more, "-o", "json").document
    count = 0
    changes = [each for each in plan["alternatives"] if "reading" not in each]
    assert changes
    for change in changes:
        told = {part["flag"]: part["to"] for part in parts(change) if "flag" in part}
        assert any("field" in part for part in parts(change)) == ("patch" in change), change
        if "--in-use" in told:
            continue
        changed = dict(flags) | {flag: str(value) for flag, value in told.items() if value not in (None, True)}
        bare = [flag for flag, value in told.items() if value is True]
        for flag in [flag for flag, value in told.items() if value is None]:
            del changed[flag]
        source: str | Path = path
        if "patch" in change:
            count += 1
            source = write_json(folder / "patched.json", patched(json.loads(json.dumps(shown)), change["patch"]))
        line = [part for flag, value in changed.items() for part in (flag, value)]
        answer = ask("admit", "--fleet", source, *line, *bare, *(() if "patch" in change else more), "-o", "json")
        assert answer.code == 0, (change, answer.err)
    return plan, count


PATCHED = [
    "two devices of their own", "both devices of one SKU", "a pool for no type", "one link", "all host links",
    "a capacity beside an unknown way", "a capacity beside an unknown one", "the pool and the capacity",
]  # fmt: skip


@pytest.mark.parametrize("case", PATCHED)
def test_a_change_of_the_fleet_is_a_patch_that_admits(case: str, tmp_path: Path, ask: Ask) -> None:
    described, more, _, _ = REFUSED[case]
    path = write_json(tmp_path / "fleet.yaml", described)
    _, count = apply_all(ask, tmp_path, path, ASKED | more, [])
    assert count


def test_rows_of_patterns_and_of_both_ways_are_patched_link_by_link(tmp_path: Path, ask: Ask) -> None:
    described = fleet(peer="unknown") | {
        "links": [
            {"from": "host", "to": "gpu:*", "kind": "pcie", "bidirectional": "true"},
            {"from": "gpu:0", "to": "gpu:1", "kind": "pcie", "peer_access": "unknown", "bidirectional": "true"},
        ]
    }
    path = write_json(tmp_path / "fleet.yaml", described)
    plan, count = apply_all(ask, tmp_path, path, ASKED | {"--batch": "2000"}, [])
    assert count
    fix = plan["reasons"][0]["fix"]
    assert fix["flag"] == "--batch"
    [operation] = fix["patch"]
    assert operation["path"].startswith("/links/")
    assert operation["value"] == "staged"


def test_a_memory_of_two_devices_is_patched_in_both(tmp_path: Path, ask: Ask) -> None:
    path = write_json(tmp_path / "fleet.yaml", in_one_memory("300 KiB"))
    plan, _ = apply_all(ask, tmp_path, path, ASKED, [])
    [change] = [each for each in plan["alternatives"] if "patch" in each]
    assert len([each for each in change["patch"] if each["path"].endswith("/0/capacity_bytes")]) == 2


@pytest.mark.shared
@pytest.mark.parametrize(
    ("text", "batch", "more"),
    [
        ("hwloc_power8_4xp100.xml", "900000", []),
        ("smi_h100_8gpu_spaces.txt", "9000000", ["--sku", "h100-sxm-80"]),
    ],
)
def test_a_fix_of_a_foreign_text_is_a_patch_of_what_it_shows(
    text: str, batch: str, more: list[str], tmp_path: Path, ask: Ask
) -> None:
    path = SHARED / text
    if not path.exists():
        pytest.skip(f"the shared topology text {text} is not here")  # of others: read where it lies, not copied
    _, count = apply_all(ask, tmp_path, str(path), ASKED | {"--batch": batch}, more)
    assert count


@pytest.mark.parametrize("peer", ["direct", "unknown"])
def test_a_change_of_the_fleet_beside_an_unread_engine_is_a_patch(peer: str, tmp_path: Path, ask: Ask) -> None:
    model = str(write_json(tmp_path / "config.json", WINDOWS))
    path = write_json(tmp_path / "fleet.yaml", fleet(["100 KiB", "100 KiB"], peer=peer))
    flags = {"--model": model, "--engine": "mooncake", "--prompt-tokens": "97", "--new-tokens": "2"}
    plan, count = apply_all(ask, tmp_path, path, flags, [])
    assert count
    assert any(row["change"] and row["dimension"] == "capacity" for row in plan["counterfactuals"])


def test_the_exact_engine_and_a_stated_way_are_told_with_a_patch(tmp_path: Path, ask: Ask) -> None:
    model = str(write_json(tmp_path / "config.json", WINDOWS))
    asked = {"--model": model, "--engine": "trtllm", "--block-size": "64", "--prompt-tokens": "65"}
    flags = asked | {"--new-tokens": "2", "--batch": "64"}
    idle = write_json(tmp_path / "large.yaml", fleet("1 GiB", peer="direct"))
    words = [
        part for flag, value in (flags | {"--engine": "exact", "--block-size": "1"}).items() for part in (flag, value)
    ]
    needed = ask("admit", "--fleet", idle, *words, "-o", "json").document["memory"]
    size = max(each["total_bytes"] for each in needed if each["device"].startswith("gpu"))
    path = write_json(tmp_path / "fleet.yaml", fleet(f"{size} B", peer="unknown"))
    _, count = apply_all(ask, tmp_path, path, flags | {"--block-size": "128"}, [])
    assert count


@pytest.mark.parametrize("third", [[], ["64 MiB"]])
def test_a_card_and_its_slice_that_are_both_too_small_are_told_apart_with_what_is_short(
    third: list[str], tmp_path: Path, ask: Ask
) -> None:
    described = fleet(["200 KiB", "100 KiB", *third])
    described["devices"][1]["parent"] = "gpu:0"
    path = write_json(tmp_path / "fleet.yaml", described)
    placed = {"--prefill": "gpu:0", "--decode": "gpu:1"}
    plan, count = apply_all(ask, tmp_path, path, ASKED | placed, [])
    assert {"CARD_AND_SLICE", "EXCEEDS_CAPACITY"} <= {reason["code"] for reason in plan["reasons"]}
    assert count
    chosen = ask("admit", "--fleet", path, "--batch", "99", "-o", "json").document["placement"]
    assert chosen == {"prefill": "gpu:0", "decode": "gpu:2" if third else "gpu:0"}  # never a card beside its slice


def test_a_slice_is_not_made_larger_than_its_card_nor_a_memory_two_sizes(tmp_path: Path, ask: Ask) -> None:
    described = fleet(["200 KiB", "100 KiB", "64 MiB", "200 KiB"])
    described["devices"][1]["parent"] = "gpu:0"
    for number in (0, 3):
        described["devices"][number]["memories"][0] |= {"shared": "true", "physical": "pool"}
    path = write_json(tmp_path / "fleet.yaml", described)
    for name in ("gpu:1", "gpu:3"):
        plan, _ = apply_all(ask, tmp_path, path, ASKED | {"--prefill": "gpu:2", "--decode": name}, [])
        [row] = [each for each in plan["counterfactuals"] if each["dimension"] == "capacity"]
        assert {part["field"].split(".")[0] for part in parts(row["change"])} >= {"devices[0]", "devices[3]"}


def test_sequences_are_told_by_the_word_that_was_given(tmp_path: Path, ask: Ask) -> None:
    path = write_json(tmp_path / "fleet.yaml", fleet("2 MiB"))
    plan, _ = apply_all(ask, tmp_path, path, ASKED | {"--max-sequences": "64"}, [])
    [row] = [each for each in plan["counterfactuals"] if each["dimension"] == "sequences"]
    assert (row["change"]["flag"], row["change"]["to"]) == ("--max-sequences", plan["sequences"]["fit"])


def test_stated_degrees_are_changed_or_left_out_with_the_devices(tmp_path: Path, ask: Ask) -> None:
    config = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "num_hidden_layers": 4,
        "num_attention_heads": 8, "num_key_value_heads": 4, "intermediate_size": 160, "vocab_size": 512,
        "max_position_embeddings": 512, "torch_dtype": "bfloat16",
    }  # fmt: skip
    model = write_json(tmp_path / "config.json", config)
    described = fleet(["290000 B", "290000 B", "290000 B", "290000 B"], utilization="0.95")
    path = write_json(tmp_path / "fleet.yaml", described)
    for stated in ({"--tp": "1"}, {"--decode-tp": "1", "--prefill-tp": "1"}, {"--pp": "1"}, {}):
        flags = {"--prompt-tokens": "14", "--steps": "40", "--model": str(model)} | stated
        plan, _ = apply_all(ask, tmp_path, path, flags, [])
        told = {row["dimension"]: row["change"] for row in plan["counterfactuals"]}
        assert told["tensor-parallel degree"]
        assert told["pipeline stages"]
