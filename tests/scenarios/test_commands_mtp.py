"""`admit --mtp`: multi-token-prediction layers are weights, caches and bytes of the handoff, or unknown in words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fleet.checkpoints import load_model
from fleet.models import kv
from tests.command_line import Ask, asker, write_json

CONFIGS = json.loads((Path(__file__).parents[1] / "fleet" / "library_counts.json").read_text())
ASKED = ("--fleet", "hgx-h100", "--isl", "64", "--osl", "8")
DRAFTED = CONFIGS["deepseek_v3"]["config"] | {"num_nextn_predict_layers": 1, "max_position_embeddings": 4096}


@pytest.fixture
def ask(capfd: pytest.CaptureFixture[str]) -> Ask:
    return asker(capfd)


@pytest.mark.parametrize("split", [(), ("--tp", "2")])
def test_their_weights_and_caches_are_priced_and_handed_over(tmp_path: Path, ask: Ask, split: tuple[str, ...]) -> None:
    path = write_json(tmp_path / "config.json", DRAFTED)
    model = load_model(str(path))
    assert len(model.mtp_layers) == 1
    plain, drafted = (
        json.loads(ask("admit", *ASKED, "--model", path, *split, *more, "-o", "json").out) for more in ((), ("--mtp",))
    )
    ranks = 2 if split else 1
    one = 64 * kv.token_bytes(model.mtp_layers[0], "bf16")
    assert drafted["handoff"]["bytes"] - plain["handoff"]["bytes"] == ranks * one
    held = [plan["memory"][0]["resident"]["weights"] for plan in (plain, drafted)]
    whole = sum(spec.nbytes for spec in model.mtp_tensors)
    assert whole // ranks <= held[1] - held[0] <= whole
    assert drafted["inputs"]["model"]["mtp"] is True
    assert "mtp" not in plain["inputs"]["model"]


def test_layers_whose_weights_were_compared_with_nothing_leave_the_plan_unverified(tmp_path: Path, ask: Ask) -> None:
    config = CONFIGS["glm4_moe"]["config"] | {"num_nextn_predict_layers": 1, "max_position_embeddings": 4096}
    path = write_json(tmp_path / "config.json", config)
    assert ask("admit", *ASKED, "--model", path).code == 0
    answer = ask("admit", *ASKED, "--model", path, "--mtp")
    assert answer.code == 3
    assert "weights of the MTP layers were compared with nothing" in answer.out


def test_a_model_without_them_says_so_and_stages_are_refused(tmp_path: Path, ask: Ask) -> None:
    plain = write_json(tmp_path / "plain.json", CONFIGS["llama"]["config"] | {"max_position_embeddings": 4096})
    assert "has no multi-token-prediction layers that are known" in ask("admit", *ASKED, "--model", plain, "--mtp").out
    path = write_json(tmp_path / "config.json", DRAFTED)
    answer = ask("admit", *ASKED, "--model", path, "--mtp", "--pp", "2")
    assert (answer.code, "which pipeline stage" in answer.err) == (2, True)
