"""The shipped model that speaks: its file, the text it learned, what it says, and what it says without the handoff."""

from __future__ import annotations

import os
import subprocess
import sys
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from executor.tokenizer import byte_tokenizer
from executor.weights import open_weights
from fleet.checkpoints import load_model
from fleet.checkpoints.shipped import shipped_model_file, shipped_model_names
from scenarios.scenario import load_scenario
from scenarios.speaker.text import MAX_NOTE_BYTES, _waybill, note, opening, parcel
from tests.command_line import asker
from tests.numpy_reference import NumpyTransformer, walk
from tests.seeded_probe import SPOILERS, probe

NAME = "waybill-240K"
DIGEST = "a11eeed9c91da40d85ba883ac718a0dd55bdaca7b594782474640c81e73e0e52"
MARGIN = 0.5


@pytest.fixture
def ask(capfd):
    return asker(capfd)


@pytest.fixture(scope="module")
def model():
    return load_model(NAME)


@pytest.fixture(scope="module")
def weights(model):
    return open_weights(model)


def test_the_checkpoint_is_the_one_the_recipe_made_and_is_under_a_megabyte(model):
    assert shipped_model_names() == (NAME,)
    assert model.digest == DIGEST
    assert os.path.getsize(shipped_model_file(NAME) or "") < 1_000_000
    assert (model.name, model.format, model.vocab_size, model.seq_len) == (NAME, "llama2c-v0", 259, 256)


def test_a_file_of_the_name_is_taken_before_the_shipped_one(tmp_path, monkeypatch, ask):
    monkeypatch.chdir(tmp_path)
    (tmp_path / NAME).write_bytes(b"not a checkpoint")
    assert shipped_model_file(NAME) is None
    answer = ask("admit", "--fleet", "two-gpu-nvlink", "--model", NAME, "--prompt-tokens", "4", "--steps", "8")
    assert answer.code == 2


@given(st.integers(0, 2**32))
@settings(max_examples=200)
def test_a_note_is_ascii_that_fits_the_model_and_repeats_its_opening(seed):
    text = note(Random(seed))
    assert len(text.encode("ascii")) <= MAX_NOTE_BYTES
    assert note(Random(seed)) == text
    first, _, rest = text.partition(". ")
    sender = first.partition(" sends ")[0]
    start, _, end = first.partition(" from ")[2].partition(" by ")[0].partition(" to ")
    assert start != end
    assert sender in rest
    assert end in rest


def test_it_repeats_names_that_it_never_saw(model, weights):
    """Twelve openings drawn afresh: made-up names, too, are carried through the KV cache letter by letter."""
    random = Random(977)
    for _ in range(12):
        it = parcel(random)
        ids = byte_tokenizer().encode(opening(it))
        said = walk(NumpyTransformer(model, weights.tensor, 250, fast=True), ids, 250)
        expected = f"{opening(it)} {_waybill(it, random)}\n"
        assert byte_tokenizer().decode(said.tokens).decode() == expected
        assert min(said.margins[len(ids) - 1 :]) > MARGIN


def test_any_loss_of_the_cache_changes_what_it_says(model, weights):
    wanted = load_scenario("two-gpu-words")
    shown = probe(model, weights.tensor, wanted.prompt, wanted.steps, fast=False)
    assert {name: change for name, change in shown.first_change.items() if change is None} == {}
    assert set(shown.first_change) == set(SPOILERS)


def test_the_shipped_scenario_prints_words_and_a_deleted_handoff_garbles_them(ask):
    whole = ask("run", "two-gpu-words", "-o", "json")
    assert whole.code == 0
    assert "The waybill says: nine red lamps, Oslo to Lima by ship, sent by Mira." in whole.document["text"]
    broken = ask("run", "two-gpu-words", "--without", "handoff", "-o", "json")
    assert broken.code == 1
    assert "nine red lamps, Oslo" not in broken.document["text"]


def test_a_plan_of_a_shipped_model_runs_from_any_folder(tmp_path, monkeypatch, ask):
    assert ask("admit", "two-gpu-words", "--steps", "60", "--plan-out", str(tmp_path / "plan.json")).code == 0
    monkeypatch.chdir(tmp_path)
    assert ask("run", "plan.json").code == 0


def test_training_without_pytorch_names_the_extra(tmp_path):
    hidden = tmp_path / "torch.py"
    hidden.write_text("raise ImportError('hidden')")
    command = [sys.executable, "-m", "scenarios.speaker.train", str(tmp_path / "out.bin")]
    paths = os.pathsep.join([str(tmp_path), os.getcwd()])
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert done.stderr == "training needs PyTorch: install kvwaybill[train]\n"
    assert not (tmp_path / "out.bin").exists()
