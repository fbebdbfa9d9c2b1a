"""TTFT and TPOT in plans: worked by hand, kept apart from bytes and fit, told with their error or as unscored."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from fleet.load import load_fleet
from planner.rates import fleet_at
from scenarios.calibration import overlay
from scenarios.explain import explain
from scenarios.planning import make_plan
from scenarios.wanted import prepare, wanted_of
from tests.command_line import Ask, asker, write_json

Document = dict[str, Any]
LAYERS, WIDTH, VOCABULARY = 2, 256, 512


@pytest.fixture
def ask(capfd: pytest.CaptureFixture[str]) -> Ask:
    return asker(capfd)


def config(tmp_path: Path) -> Path:
    """A dense decoder: 2 layers of 4 x 256 x 256 and 3 x 256 x 512, and a head of 512 x 256; bf16."""
    return write_json(tmp_path / "config.json", {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": WIDTH, "intermediate_size": 512,
        "num_hidden_layers": LAYERS, "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": VOCABULARY,
        "max_position_embeddings": 4096, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
        "rms_norm_eps": 1e-5, "hidden_act": "silu",
    })  # fmt: skip


def machine(tmp_path: Path, name: str = "box.yaml", **more: Any) -> Path:
    """Two cards of 1 TB/s and 10 TFLOP/s in bf16; links of 10 GB/s and 1 us, host links of 1 GB/s and 2 us."""
    sku = {
        "kind": "gpu", "memories": [{"name": "hbm", "capacity": "8 GiB", "bandwidth": "1000 GB/s"}],
        "runtime": "0 B", "compute": {"bf16": "10 TFLOP/s"},
    } | more.pop("sku", {})  # fmt: skip
    between = {"kind": "nvlink", "bandwidth": "10 GB/s", "latency": "1 us", "peer_access": "direct"}
    links = [{"from": "gpu:0", "to": "gpu:1", **between, "bidirectional": "true"} | more.pop("peer", {})]
    links += [
        {"from": "host", "to": f"gpu:{n}", "kind": "pcie", "bandwidth": "1 GB/s", "latency": "2 us",
         "bidirectional": "true"}
        for n in (0, 1)
    ]  # fmt: skip
    devices = [{"id": f"gpu:{n}", "sku": "card"} for n in (0, 1)]
    fleet = {"schema": "kvwaybill/fleet/1", "name": "box", "skus": {"card": sku}, "devices": devices, "links": links}
    return write_json(tmp_path / name, fleet | more)


Plan = Callable[..., Document]


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    def made(fleet: Path, **words: Any) -> Document:
        asked = {"prompt_tokens": 8, "new_tokens": 3, "prefill_chunk": 8, "efficiency": "compute=1,memory=1"} | words
        return make_plan(prepare(wanted_of(None, {"fleet": str(fleet), "model": str(config(tmp_path)), **asked})))

    return made


def test_ttft_and_tpot_by_hand(tmp_path: Path, plan: Plan) -> None:
    made = plan(machine(tmp_path))
    body = LAYERS * (4 * 256 * 256 + 3 * 256 * 512)
    norms = (2 * LAYERS + 1) * WIDTH
    weights, head = 2 * (body + norms), 2 * 512 * 256
    one_tera, flops = Fraction(1, 10**12), Fraction(1, 10**13)
    row = 2 * WIDTH
    # prefill: 8 tokens at once, 1 logit; 36 attended pairs of 4 heads x 128; the cache read once and written.
    pair, token = LAYERS * 2 * 4 * 128, LAYERS * 4 * 128 * 2
    prefill = max((weights + 8 * row) * one_tera, 2 * 8 * body * flops)
    prefill += max(head * one_tera, 2 * 512 * 256 * flops) + max(token * 16 * one_tera, pair * 36 * flops)
    moved = 2 * Fraction(2, 10**6) + Fraction(8 * 4 + 4, 10**9)
    handoff = 2 * LAYERS * Fraction(1, 10**6) + Fraction(8 * token, 10**10)
    time = made["time"]
    assert time["ttft_s"] == pytest.approx(float(prefill + moved + handoff), rel=1e-12)
    # decode: 2 passes at positions 8 and 9, which attend to 9 + 10.
    step = (weights + row) * one_tera + head * one_tera
    decode = 2 * step + token * (9 + 10 + 2) * one_tera
    decode_rows = 3 * Fraction(2, 10**6) + Fraction(3 * 4, 10**9)
    assert time["tpot_s"] == pytest.approx(float((decode + decode_rows) / 2), rel=1e-12)
    assert time["handoff"]["seconds"] == made["handoff"]["seconds"]


def test_a_rate_changes_times_and_no_byte_and_no_verdict(tmp_path: Path, plan: Plan) -> None:
    slow = plan(machine(tmp_path))
    fast = plan(machine(tmp_path, sku={"compute": {"bf16": "900 TFLOP/s"}}))
    assert fast["time"]["ttft_s"] <= slow["time"]["ttft_s"]
    for field in ("verdict", "memory", "edges", "waybill", "handoff"):
        assert fast[field] == slow[field]


def test_a_rate_that_nobody_states_leaves_both_times_null_and_names_it(tmp_path: Path, plan: Plan) -> None:
    made = plan(machine(tmp_path, sku={"compute": {"fp8": "1 TFLOP/s"}}))
    assert (made["time"]["ttft_s"], made["time"]["tpot_s"]) == (None, None)
    assert made["time"]["unpriced"] == ["compute.bf16 of gpu:0 is unknown", "compute.bf16 of gpu:1 is unknown"]
    assert made["verdict"] == "admitted"


def test_what_is_not_admitted_has_no_time(tmp_path: Path, plan: Plan) -> None:
    tight = {"memories": [{"name": "hbm", "capacity": "2 MiB", "bandwidth": "1000 GB/s"}]}
    refused = plan(machine(tmp_path, sku=tight))
    assert refused["verdict"] == "refused"
    assert (refused["time"]["ttft_s"], refused["time"]["tpot_s"]) == (None, None)
    assert "not admitted" in refused["time"]["basis"]
    unknown = plan(machine(tmp_path, "unknown.yaml", peer={"peer_access": "unknown"}))
    assert unknown["verdict"] == "unverified"
    assert unknown["time"]["ttft_s"] is None


def test_a_refused_plan_tells_bytes_and_no_time_of_any_row(ask: Ask) -> None:
    refused = make_plan(prepare(wanted_of("two-gpu-tight", {})))
    granted = make_plan(prepare(wanted_of("two-gpu", {})))
    assert refused["verdict"] == "refused"
    parts = [*refused["waybill"], refused["handoff"], *(leg for row in refused["waybill"] for leg in row["legs"])]
    assert all(part.get("seconds") is None for part in parts)
    assert refused["time"]["basis"] == "refused: what is not admitted has no time"
    assert [(row["bytes"], row["copies"]) for row in refused["waybill"]] == [
        (row["bytes"], row["copies"]) for row in granted["waybill"]
    ]
    assert all(one.follows for one in explain(refused, None) if "time" in one.subject)
    assert " us" not in ask("admit", "two-gpu-tight").out


def test_passes_that_end_in_the_prompt_have_no_first_token_and_no_time_to_it(tmp_path: Path, plan: Plan) -> None:
    made = plan(machine(tmp_path), new_tokens=None, steps=4)
    assert (made["time"]["ttft_s"], made["time"]["tpot_s"]) == (None, None)
    one = plan(machine(tmp_path), new_tokens=1)
    assert one["time"]["ttft_s"] == one["time"]["prefill"]["seconds"]
    assert one["time"]["tpot_s"] is None


def test_observed_rates_are_used_when_asked_for_and_told(tmp_path: Path, plan: Plan) -> None:
    seen = {"declared": "10 GB/s", "observed": {"value": "5 GB/s", "tool": "a tool", "error": "8 %"}}
    latency = {"declared": "1 us", "observed": {"value": "2 us", "tool": "a tool", "error": "0.03"}}
    fleet = machine(tmp_path, peer={"bandwidth": seen, "latency": latency})
    declared, observed = plan(fleet), plan(fleet, rates="observed")
    assert observed["handoff"]["seconds"] == pytest.approx(2 * declared["handoff"]["seconds"])
    leg, before = (made["waybill"][4]["legs"][0] for made in (observed, declared))
    assert (leg["basis"], leg["error"]) == ("observed", 0.08)
    assert (before["basis"], before.get("error")) == ("declared", None)
    assert observed["inputs"]["pricing"]["rates"] == "observed"
    assert observed["inputs"]["fleet"] == declared["inputs"]["fleet"]
    assert observed["edges"] == declared["edges"]
    assert observed["memory"] == declared["memory"]
    assert not [each.subject for each in explain(observed, None) if not each.follows]
    told = {each.subject: each.figure for each in explain(observed, None)}
    assert str(told["handoff k gpu:0->gpu:1 time"]).endswith("error 8 %")
    assert str(told["handoff time"]).endswith("error 8 %")
    assert str(told["TTFT"]).endswith("unscored")  # no run was compared with the roofline
    assert load_fleet(str(fleet)).digest == fleet_at(load_fleet(str(fleet)), "declared").digest


def test_text_says_the_error_of_each_row_where_one_is_stated_and_unscored_otherwise(tmp_path: Path, ask: Ask) -> None:
    both = {"observed": {"value": "5 GB/s", "tool": "a tool", "error": "8 %"}}
    latency = {"observed": {"value": "2 us", "tool": "a tool", "error": "3 %"}}
    fleet = machine(tmp_path, peer={"bandwidth": both, "latency": latency})
    words = ("--fleet", fleet, "--model", config(tmp_path), "--prompt-tokens", "8", "--new-tokens", "3")
    text = ask("admit", *words, "--rates", "observed").out
    rows = [line for line in text.splitlines() if line.startswith(("  handoff", "  prefill", "  decode"))]
    assert [line.rstrip().endswith("error 8 %") for line in rows] == [False, False, True, True, False, False]
    assert all(line.rstrip().endswith(("unscored", "error 8 %")) for line in rows)
    plain = ask("admit", "--fleet", machine(tmp_path, "plain.yaml"), *words[2:]).out
    assert "time, unscored" in plain
    for word in ("TTFT", "TPOT", "Handoff"):
        (line,) = [line for line in plain.splitlines() if line.startswith(word)]
        assert "unscored" in line


@pytest.mark.parametrize("scenario", ["one-gpu", "two-gpu", "two-gpu-staged", "two-gpu-host", "gpu-and-cpu"])
@pytest.mark.parametrize("rates", ["declared", "observed"])
def test_every_time_of_the_shipped_scenarios_follows_from_its_parts(scenario: str, rates: str) -> None:
    made = make_plan(prepare(wanted_of(scenario, {"rates": rates})))
    assert not [each.subject for each in explain(made, None) if not each.follows]
    if scenario == "one-gpu":
        assert made["handoff"]["seconds"] is None  # no link is passed
        assert made["time"]["handoff"]["within_memory"] is True
        (rate,) = {(u["per_second"], u["share"]) for u in made["time"]["used"] if u["what"] == "memory"}
        assert made["time"]["handoff"]["seconds"] == pytest.approx(2 * made["handoff"]["bytes"] / (rate[0] * rate[1]))
        assert made["time"]["ttft_lower_bound"]
    if scenario == "two-gpu-host":
        assert "on the host" in made["time"]["unpriced"][0]
    if scenario == "two-gpu-staged":
        assert made["time"]["handoff"]["staging"] == "sequential"
        assert made["time"]["handoff"]["pipelined_s"] < made["time"]["handoff"]["seconds"]


def test_a_plan_says_which_staging_its_times_are_of_and_bytes_are_the_same() -> None:
    one, other = (make_plan(prepare(wanted_of("two-gpu-staged", {"staging": each}))) for each in (None, "pipelined"))
    assert (one["time"]["handoff"]["staging"], other["time"]["handoff"]["staging"]) == ("sequential", "pipelined")
    assert one["time"]["handoff"]["pipelined_s"] == other["time"]["handoff"]["seconds"] == other["handoff"]["seconds"]
    assert other["time"]["handoff"]["sequential_s"] == one["time"]["handoff"]["seconds"] == one["handoff"]["seconds"]
    assert other["time"]["ttft_s"] < one["time"]["ttft_s"]
    assert other["inputs"]["pricing"] == {"staging": "pipelined"}
    assert [row.get("staging") for row in other["waybill"] if row["phase"] == "handoff"] == ["pipelined"] * 2
    for name in ("memory", "edges", "orders", "verdict"):
        assert one[name] == other[name]
    assert not [each.subject for each in explain(other, None) if not each.follows]
    sooner = {**other, "waybill": [{**row, "seconds": (row["seconds"] or 0) / 2} for row in other["waybill"]]}
    assert any(each.subject.startswith("handoff k") for each in explain(sooner, None) if not each.follows)
    direct = make_plan(prepare(wanted_of("two-gpu", {"staging": "pipelined"})))
    assert not [row for row in direct["waybill"] if "staging" in row]


CHANGES: dict[str, tuple[tuple[Any, ...], Any, str]] = {
    "a piece": (("prefill", "compute", 0, "pieces", 0, "seconds"), 1.0, "prefill compute gpu:0"),
    "a share": (("used", 0, "share"), 0.5, "prefill compute gpu:0"),
    "a rate": (("used", 2, "per_second"), 1, "decode compute gpu:1"),
    "a phase": (("decode", "seconds"), 1.0, "decode time"),
    "the first token": (("ttft_s",), 1.0, "TTFT"),
    "the others": (("tpot_s",), 1.0, "TPOT"),
    "no rates": (("used",), [], "prefill compute gpu:0"),
}


@pytest.mark.parametrize("case", CHANGES)
def test_a_time_that_does_not_follow_is_told(case: str) -> None:
    path, value, subject = CHANGES[case]
    made = copy.deepcopy(make_plan(prepare(wanted_of("two-gpu", {}))))
    here: Any = made["time"]
    for step in path[:-1]:
        here = here[step]
    here[path[-1]] = value
    assert subject in {each.subject for each in explain(made, None) if not each.follows}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--rates", "guessed"), "use declared or observed"),
        (("--staging", "parallel"), "use sequential or pipelined"),
        (("--efficiency", "compute=2"), "lies outside 0 < share <= 1"),
        (("--efficiency", "disk=0.5"), "write compute=0.6,memory=0.8"),
        (("--efficiency", "memory=0.5,memory=0.6"), "write compute=0.6,memory=0.8"),
        (("--efficiency", ""), "write e.g. 0.9"),
        (("--efficiency", "compute"), "write e.g. 0.9"),
    ],
)
def test_wrong_words_of_pricing_are_code_2(words: tuple[str, ...], told: str, ask: Ask) -> None:
    answer = ask("admit", "two-gpu", *words)
    assert answer.code == 2
    assert told in answer.err


def test_ranks_share_the_work_and_pay_for_their_sums_by_hand(tmp_path: Path, plan: Plan) -> None:
    four = json.loads(machine(tmp_path).read_text())
    four["devices"] = [{"id": f"gpu:{n}", "sku": "card"} for n in range(4)]
    direct = {"kind": "nvlink", "bandwidth": "10 GB/s", "latency": "1 us", "peer_access": "direct"}
    four["links"] = [
        {"from": f"gpu:{a}", "to": f"gpu:{b}", **direct} for a in range(4) for b in range(4) if a != b
    ] + [
        {"from": "host", "to": f"gpu:{n}", "kind": "pcie", "bandwidth": "1 GB/s", "latency": "2 us",
         "bidirectional": "true"}
        for n in range(4)
    ]  # fmt: skip
    made = plan(write_json(tmp_path / "four.yaml", four), prefill="gpu:0,gpu:1", decode="gpu:2,gpu:3")
    prefill = made["time"]["prefill"]
    # 8 tokens x 256 x 2 B in halves; 2 sums a layer, 2 rounds each, 2 layers: 8 rounds of 2,048 B and 1 us.
    assert prefill["sums_s"] == pytest.approx(float(8 * (Fraction(1, 10**6) + Fraction(2048, 10**10))))
    whole = plan(write_json(tmp_path / "four.yaml", four), prefill="gpu:0", decode="gpu:2")["time"]["prefill"]
    halves = [sum(p["flops"] for p in one["pieces"]) for one in prefill["compute"]]
    assert 2 * halves[0] == 2 * halves[1] == sum(p["flops"] for p in whole["compute"][0]["pieces"])


def test_a_calibration_lays_its_worst_held_out_error_beside_its_figures(tmp_path: Path) -> None:
    line = {"alpha_s": 3e-6, "beta_bytes_per_s": 9e9, "worst_fitted": 0.01, "worst_held_out": 0.0512345678}
    edge = {
        "src": "gpu:0", "dst": "gpu:1", "kind": "p2p", "access": "peer", "sizes": [4096, 2**28], "memory": None,
        "train": {**line, "not_a_line": False}, "single": {**line, "not_a_line": False},
    }  # fmt: skip
    text, _ = overlay({"edges": [edge], "cards": []}, load_fleet(str(machine(tmp_path))))
    laid = tmp_path / "laid.yaml"
    laid.write_text(text)
    (link,) = [each for each in load_fleet(str(laid)).links if (each.src, each.dst) == ("gpu:0", "gpu:1")]
    assert link.bandwidth.observed is not None
    assert link.bandwidth.observed.error == Fraction(51235, 10**6)
