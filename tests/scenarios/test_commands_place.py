"""`kvwaybill place` from the command line: what it finds, how it says so, and how it ends."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from fleet.yaml_source import parse_text
from scenarios.place_schema import PLACEMENTS
from scenarios.scenario import scenario_text
from scenarios.shapes import Sink
from tests.command_line import Ask, asker, fleet, link, write_json

DOCS = Path(__file__).parents[2] / "docs"


MIXED = """schema: kvwaybill/fleet/1
name: mixed
devices:
  - {id: gpu:0, sku: h100-sxm-80}
  - {id: gpu:1, sku: a100-sxm-80}
  - {id: gpu:2, sku: h100-sxm-80}
  - {id: gpu:3, sku: a100-sxm-80}
switches: [{id: pcie, kind: pcie, host: host}]
links:
  - {from: host, to: "gpu:*", kind: pcie, bandwidth: 50 GB/s, latency: 5 us, bidirectional: true}
  - {from: "gpu:*", to: pcie, kind: pcie, bandwidth: 50 GB/s, latency: 5 us, peer_access: direct, bidirectional: true}
"""
"""Two cards of either kind: three workers of a phase are unlike."""


@pytest.fixture
def ask(capfd: pytest.CaptureFixture[str]) -> Ask:
    return asker(capfd)


def sound(document: dict[str, Any]) -> dict[str, Any]:
    """The document, once its shape was looked at and it went through JSON whole."""
    sink = Sink("place")
    PLACEMENTS(document, "", sink)
    sink.raise_if_any()
    return document


def test_the_shipped_case_of_two_roots_is_what_its_file_says_and_place_avoids_it(ask: Ask) -> None:
    said = parse_text(scenario_text("same-node-locality"), "s").root.plain(notes=True)["x-place"]
    answer = ask("place", "same-node-locality", "-o", "json")
    assert answer.code == 0
    document = sound(answer.document)
    best, apart = document["placements"]
    assert [best["prefill"], best["decode"]] == [[[said["best"]["prefill"]]], [[said["best"]["decode"]]]]
    assert (best["staged"], str(best["alike"])) == (False, said["best"]["alike"])
    assert (apart["staged"], str(apart["alike"])) == (True, said["apart"]["alike"])
    own = document["asked"]
    assert [own["prefill"], own["decode"], own["verdict"]] == [said["own"][n] for n in ("prefill", "decode", "verdict")]
    assert own["better"] == best["alike"]
    ratio = own["handoff"]["seconds"] / best["handoff"]["seconds"]
    assert ratio == pytest.approx(4.5, abs=0.05)
    assert own["why_not_first"].startswith("handoff 4.5 times as long: 120.7 us against 26.83 us, over host memory")
    text = ask("place", "same-node-locality")
    assert "24 pairs go before it" in text.out
    assert "handoff, unscored" in text.out, "no time without its error, or the word for none"


def test_pools_of_the_report_are_shared_out_over_the_roots(ask: Ask) -> None:
    words = ("place", "same-node-locality", "--prefill-workers", "2", "--decode-workers", "4")
    near = sound(ask(*words, "--routing", "nearest", "-o", "json").document)
    anyone = sound(ask(*words, "-o", "json").document)
    assert near["placements"][0]["prefill"] == [["gpu:0"], ["gpu:4"]]
    assert not near["placements"][0]["staged"]
    assert anyone["placements"][0]["staged"]
    assert near["routing"] == "nearest"
    assert "gpu:1-2,gpu:5-6" in ask(*words, "--routing", "nearest").out


@pytest.mark.parametrize(
    ("words", "code", "verdict"),
    [
        (["--fleet", "hgx-h100"], 0, "admitted"),
        (["--fleet", "gb200-nvl72", "--prefer", "spread"], 0, "admitted"),
        (["--fleet", "pcie-l40s"], 3, "unverified"),
        (["--fleet", "two-gpu-unknown"], 3, "unverified"),
        (["two-gpu-tight"], 1, "refused"),
        (["--fleet", "hgx-h100", "--batch", "4000000", "--prompt-tokens", "9", "--steps", "20"], 2, None),
        (["--fleet", "hgx-h100", "--batch", "1000000", "--prompt-tokens", "9", "--steps", "120"], 1, "refused"),
        (["--fleet", "hgx-h100", "--prefill-workers", "1-3", "--decode-tp", "1,2"], 0, "admitted"),
        (["--fleet", "hgx-h100", "--batch", "1,8", "--objective", "throughput"], 0, "admitted"),
        (["--fleet", "two-gpu-tight", "--steps", "96", "--batch", "1,2"], 1, "refused"),
        (["--fleet", "hgx-h100", "--pareto", "--objective", "devices"], 0, "admitted"),
    ],
)  # fmt: skip
def test_every_verdict_has_its_code_and_a_sound_document(words: list[str], code: int, verdict: str, ask: Ask) -> None:
    answer = ask("place", *words, "-o", "json")
    assert answer.code == code, answer.err
    if verdict is None:
        return
    document = sound(answer.document)
    assert document["verdict"] == verdict
    assert bool(document["placements"]) == (verdict == "admitted")
    assert all(each["handoff"]["seconds"] is not None for each in document["placements"])
    assert document["limits"]
    text = ask("place", *words)
    assert text.code == code
    assert text.out.startswith(f"place: {verdict.upper()}")


def test_where_none_fits_the_changes_that_would_admit_one_are_told_and_are_admitted(ask: Ask) -> None:
    answer = ask("place", "two-gpu-tight", "-o", "json")
    changes = answer.document["alternatives"]
    steps = next(change for change in changes if change.get("flag") == "--steps")
    assert steps["placement"] == {"prefill": "gpu:0", "decode": "gpu:1"}
    assert not any(change.get("flag") in ("--prefill", "--decode") for change in changes)
    mended = ask("place", "two-gpu-tight", "--steps", str(steps["to"]))
    assert mended.code == 0
    assert ask("place", "two-gpu-tight", "--steps", str(steps["to"] + 1)).code == 1
    # The changes are told in admit's options, of which place lacks some (--pp).
    assert "would be admitted by kvwaybill admit (prefill gpu:0, decode gpu:1)" in ask("place", "two-gpu-tight").out


def test_more_ranks_are_offered_in_the_words_of_place_where_they_are_admitted(ask: Ask, tmp_path: Path) -> None:
    path = write_json(tmp_path / "fleet.json", fleet(["1480 KiB"] * 4))
    words = ("place", "--fleet", path, "--prompt-tokens", "40", "--steps", "256", "--batch", "2")
    changes = ask(*words, "-o", "json").document["alternatives"]
    ranks = [change for change in changes if "-tp" in change.get("flag", "")]
    assert ranks
    options = [str(word) for part in (ranks[0], *ranks[0].get("and", [])) for word in (part["flag"], part["to"])]
    assert ask(*words).code == 1
    assert ask(*words, *options).code == 0


def test_every_fault_of_the_options_is_told_at_once(ask: Ask) -> None:
    answer = ask(
        "place", "--fleet", "hgx-h100", "--require", "same-rack", "--prefer", "spred", "--exclude", "gpu:9", "--avoid",
        "gup:1", "--objective", "coast", "--price", "h100=2", "--price", "h100-sxm-80=x", "--top", "0", "--prefill-tp",
        "0", "--decode-workers", "5-2", "--max-devices", "1", "--routing", "far",
    )  # fmt: skip
    assert answer.code == 2
    told = answer.err.splitlines()
    assert len(told) == 12
    assert any("did you mean spread?" in line for line in told)
    assert any("did you mean gpu:1?" in line for line in told)
    assert any("did you mean cost?" in line for line in told)
    assert any("h100=2" not in line and "'h100' is no card" in line and "h100-sxm-80" in line for line in told)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--require", "spread"], "--require spread excludes every pair; without it 56 pairs are left"),
        (["--require", "spread", "--require", "same-node"], "contradict each other"),
        (["--prefer", "spread", "--prefer", "same-node"], "contradict each other, and decide nothing of a pair"),
        (["--objective", "devices", "--objective", "ttft"], "ttft and devices are several orders"),
        (
            ["--prefill-workers", "2", "--require", "spread"],
            "--require spread excludes every pool; without it",
        ),
        (["--prefill-workers", "2", "--prefill", "gpu:0"], "--prefill excludes every pool; without it there are some"),
        (["--prefill-workers", "2", "--exclude", "gpu:0-5"], "takes 3 devices, and --exclude leaves 2"),
        (["--prefill-workers", "2", "--max-devices", "2"], "takes 3 devices, and --max-devices leaves 2"),
        (["--prefill-workers", "2", "--decode-tp", "8", "--max-devices", "8"], "takes 10 devices"),
        (["--fleet", "hgx-a100"], "--fleet is given 2 times"),
        (["--exclude", "gpu:*"], "--exclude excludes every pair; without it 56 pairs are left"),
        (["--prefill", "gpu:1", "--decode", "gpu:1"], "a split needs two"),
        (["--prefill", "gpu:1", "--exclude", "gpu:1"], "--exclude leaves nothing of --prefill gpu:1"),
        (["--objective", "cost"], "cost needs --price SKU=AMOUNT"),
        (["--prefill-tp", "3"], "do not divide by 3 ranks"),
        (["--prefill-workers", "9"], "takes 10 devices, and the fleet has 8"),
        (["--batch", "1,99999999"], "is no number from 1 to 1,048,576"),
        (["--prompt-tokens", "99999999999999999"], "--prompt-tokens 99999999999999999 is out of range; use 1 to"),
        (["--prefill-workers", "1-1000", "--decode-workers", "1-1000"], "name fewer than"),
    ],
)
def test_bad_questions_are_refused_in_words(words: list[str], told: str, ask: Ask) -> None:
    answer = ask("place", "--fleet", "hgx-h100", *words)
    assert answer.code == 2
    assert told in answer.err


def test_without_a_fleet_or_with_another_document_a_line_says_what_to_do(ask: Ask, tmp_path: Path) -> None:
    assert "name a --fleet" in ask("place").err
    plan = tmp_path / "plan.json"
    plan.write_text(ask("admit", "two-gpu", "-o", "json").out)
    assert "place takes a scenario" in ask("place", plan).err
    assert ask("place", "--fleet", "one-gpu").code == 2
    assert "a split needs two" in ask("place", "--fleet", "one-gpu").err


def test_prices_and_preferences_show_in_the_table(ask: Ask, tmp_path: Path) -> None:
    made = fleet(["64 MiB", "64 MiB", "64 MiB"])
    made["links"] = [k for k in made["links"] if {k["from"], k["to"]} != {"gpu:0", "gpu:2"}]
    made["links"] += [
        link(*ends, peer_access="direct", bandwidth="1 GB/s") for ends in (("gpu:0", "gpu:2"), ("gpu:2", "gpu:0"))
    ]
    path = write_json(tmp_path / "fleet.json", made)
    answer = ask("place", "--fleet", path, "--price", "card=1.5", "--avoid", "gpu:1", "--top", "9", "-o", "json")
    rows = sound(answer.document)["placements"]
    assert {name for worker in (*rows[0]["prefill"], *rows[0]["decode"]) for name in worker} == {"gpu:0", "gpu:2"}
    assert all(row["cost_per_hour"] == 3.0 for row in rows)
    assert "breaks what is preferred: avoid gpu:1" in {row["why_not_first"] for row in rows}
    assert "an hour" in ask("place", "--fleet", path, "--price", "card=1.5").out


def test_it_is_told_that_a_prompt_is_priced_one_position_a_call(ask: Ask) -> None:
    words = ("place", "--fleet", "two-gpu-nvlink", "--isl", "40", "--osl", "9")
    assert "one position a call; --prefill-chunk N computes N a call" in ask(*words).out
    assert "a call" not in ask(*words, "--prefill-chunk", "40").out
    assert "a call" not in ask("place", "--fleet", "two-gpu-nvlink").out


def test_devices_that_others_fill_are_passed_over(ask: Ask, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    words = ("--fleet", "hgx-h100", "--prompt-tokens", "41", "--steps", "96")
    taken = ("--prefill", "gpu:0", "--decode", "gpu:1", "--batch", "400000")
    assert ask("admit", *words, *taken, "--plan-out", plan).code == 0
    answer = ask("place", *words, "--batch", "400000", "--in-use", plan, "-o", "json")
    assert answer.code == 0
    document = sound(answer.document)
    assert document["placements"][0]["prefill"] == [["gpu:2"]]
    assert sum(each["alike"] for each in document["placements"]) == 30
    assert sum(each["count"] for each in document["others"]) == 26
    assert {code for each in document["others"] for code in each["codes"]} <= {"EXCEEDS_BUDGET", "EXCEEDS_FREE"}


def test_unpriced_handoffs_are_found_and_said_to_be_in_no_order(ask: Ask, tmp_path: Path) -> None:
    made = fleet("64 MiB")
    for each in made["links"]:
        del each["bandwidth"]
    answer = ask("place", "--fleet", write_json(tmp_path / "fleet.json", made), "-o", "json")
    assert answer.code == 0
    assert "no placement has a priced handoff" in answer.err
    assert answer.document["placements"][0]["handoff"]["seconds"] is None


def test_the_page_of_documents_names_every_field(ask: Ask) -> None:
    page = (DOCS / "documents.md").read_text()
    section = page.partition("## Placements")[2].partition("\n## ")[0]
    document = ask("place", "same-node-locality", "-o", "json").document
    document |= ask("place", "--fleet", "hgx-h100", "--prefill-workers", "1", "-o", "json").document
    names = {*document, *document["placements"][0], *document["search"], *document["constraints"]}
    assert [name for name in sorted(names) if f"`{name}`" not in section] == []


def test_examples_of_the_page_of_place_do_what_it_says(
    ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (DOCS / "place.md").read_text()
    lines = re.findall(r"^    kvwaybill (place .*?)(?:  +# code (\d))?$", page, re.MULTILINE)
    assert len(lines) >= 5
    (tmp_path / "mixed.yaml").write_text(MIXED)
    monkeypatch.chdir(tmp_path)
    for line, code in lines:
        assert ask(*line.split()).code == int(code or 0), line


def test_place_loads_neither_numba_nor_cupy(ask: Ask) -> None:
    import subprocess

    program = (
        "import sys; from scenarios.cli.__main__ import main; main(['place', '--fleet', 'hgx-h100', '-o', 'json']);"
        " sys.stderr.write(str({'numba', 'cupy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr == "set()"
    assert json.loads(done.stdout)["verdict"] == "admitted"


def test_cards_that_no_price_names_are_told(ask: Ask, tmp_path: Path) -> None:
    path = tmp_path / "mixed.yaml"
    path.write_text(
        "schema: kvwaybill/fleet/1\nname: mixed\ndevices:\n  - {id: gpu:0, sku: l4}\n"
        "  - {id: gpu:1, sku: h100-sxm-80}\n"
        "links:\n  - {from: host, to: 'gpu:*', kind: pcie, bidirectional: true}\n"
        "  - {from: gpu:0, to: gpu:1, kind: pcie, peer_access: direct, bidirectional: true}\n"
    )
    answer = ask("place", "--fleet", str(path), "--objective", "cost", "--price", "l4=0.7")
    assert answer.code == 0
    assert "--price names no h100-sxm-80" in answer.err


def test_the_whole_pareto_set_is_told_and_workers_of_ranks_stand_in_brackets(ask: Ask) -> None:
    sizes = ("--prefill-workers", "1,2", "--decode-workers", "1-4", "--prefill-tp", "1,2")
    words = ("place", "--fleet", "hgx-h100", *sizes)
    front = sound(ask(*words, "--pareto", "-o", "json").document)["placements"]
    assert len(front) > 5
    assert all(row["pareto"] and row["proven"] for row in front)
    assert len(sound(ask(*words, "--pareto", "--top", "2", "-o", "json").document)["placements"]) == 2
    assert "[gpu:0-1]" in ask(*words, "--pareto").out


def test_what_is_broken_and_what_leaves_too_few_devices_are_told(ask: Ask) -> None:
    text = ask("place", "--fleet", "hgx-h100", "--prefill-workers", "2", "--decode-workers", "6", "--avoid", "gpu:0")
    assert "breaks avoid gpu:0" in text.out
    few = ("place", "--fleet", "hgx-h100", "--prefill-workers", "2", "--require", "same-domain", "--exclude", "gpu:0-5")
    assert "and --exclude leaves 2" in ask(*few).err
    near = ask(
        "place", "--fleet", "gb200-nvl72", "--prefill-workers", "2", "--decode-workers", "3", "--require", "same-node",
        "--routing", "nearest",
    )  # fmt: skip
    assert near.code == 2
    assert "--require same-node excludes every pool" in near.err


def test_place_prices_staged_legs_pipelined_where_asked(ask: Ask) -> None:
    words = ("place", "--fleet", "two-gpu-staged", "--mtp", "-o", "json")
    one, other = (ask(*words, *more).document["placements"][0] for more in ((), ("--staging", "pipelined")))
    assert other["handoff"]["seconds"] < one["handoff"]["seconds"]
    assert other["slack_bytes"] == one["slack_bytes"]


def test_unlike_cards_in_a_phase_are_found_and_told_and_are_a_scenario_of_simulate(ask: Ask, tmp_path: Path) -> None:
    """No pool of equal cards is that large; once such a question was refused."""
    from fleet.load import load_fleet
    from scenarios.simulation.plant import build
    from scenarios.simulation.read_spec import load_spec
    from scenarios.wanted import prepare, wanted_of

    (tmp_path / "mixed.yaml").write_text(MIXED)
    out = tmp_path / "best.yaml"
    words = ("place", "--fleet", tmp_path / "mixed.yaml", "--prefill-workers", "3", "--objective", "throughput")
    told = sound(ask(*words, "-o", "json", "--simulation-out", out).document)
    first = told["placements"][0]
    cards = {"h100-sxm-80": 1, "a100-sxm-80": 2}  # decode is the slower side: an H100
    assert {each["sku"]: each["workers"] for each in first["cards"]["prefill"]} == cards
    assert told["search"]["mixtures"] == {"searched": 4, "possible": 4}
    text = ask(*words).out
    assert "prefill 1 x h100-sxm-80 + 2 x a100-sxm-80" in text
    spec = load_spec(str(out))
    assert [[name] for name in spec.prefill.devices] == first["prefill"]
    assert [[name] for name in spec.decode.devices] == first["decode"]
    model = prepare(wanted_of("two-gpu", {})).ask.model
    build(spec, load_fleet("elsewhere.yaml", text=MIXED), model)  # the same fleet, whose links stand in another file
    plant = build(spec, load_fleet(spec.fleet), model)
    assert plant.refused is None
    assert len(plant.workers) == 4
    rate = first["tokens_per_s_per_device"] * first["devices"]
    assert spec.arrivals is not None
    assert spec.answers is not None
    assert spec.arrivals.rate * spec.answers.value == pytest.approx(rate)


def test_what_a_simulation_file_cannot_say_is_refused_and_nothing_is_written_of_a_refusal(ask: Ask, tmp_path) -> None:
    out = tmp_path / "best.yaml"
    said = ask("place", "--fleet", "hgx-h100", "--utilization-of", "free", "--simulation-out", out)
    assert (said.code, out.exists()) == (2, False)
    assert "cannot say --utilization-of" in said.err
    none = ask("place", "two-gpu-tight", "--simulation-out", out)
    assert (none.code, out.exists()) == (1, False)
    assert "no scenario was written" in none.err
    assert ask("place", "two-gpu", "--simulation-out", tmp_path / "none" / "x.yaml").code == 2
    assert ask("place", "two-gpu", "--simulation-out", "-").code == 2


@pytest.mark.parametrize(("chunk", "warned"), [((), True), (("--prefill-chunk", "8"), False)])
def test_a_rate_of_one_position_a_call_is_told_as_the_file_is_written(
    ask: Ask, tmp_path: Path, chunk: tuple[str, ...], warned: bool
) -> None:
    said = ask("place", "two-gpu", *chunk, "--simulation-out", tmp_path / "best.yaml")
    assert said.code == 0
    assert ("which no engine does; --prefill-chunk N prices it" in said.err) == warned


def test_the_command_that_simulates_a_written_scenario_can_be_pasted_into_a_shell(ask: Ask, tmp_path: Path) -> None:
    out = tmp_path / "weiß nicht.yaml"
    said = ask("place", "two-gpu", "--simulation-out", out)
    told = next(line for line in said.err.splitlines() if "kvwaybill simulate" in line)
    assert shlex.split(told.partition("; ")[2]) == ["kvwaybill", "simulate", str(out)]


@pytest.mark.parametrize("command", ["admit", "place"])
def test_a_flag_that_names_an_unknown_device_is_told_as_it_is_written(ask: Ask, command: str) -> None:
    said = ask(command, "two-gpu", "--in-use", "gpu:99=1GiB")
    assert said.code == 2
    assert "--in-use" in said.err
    assert "---" not in said.err
