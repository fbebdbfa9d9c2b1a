"""Launch lines are read as a shell would read them, never run, and what they leave open is told."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.errors import DescriptionError
from fleet.launch.read import launches_of
from fleet.launch.words import MAX_TEXT, commands_of

NIXL = """'{"kv_connector": "NixlConnector", "kv_role": "%s"}'"""
PAIR = f"""#!/bin/sh
# prefill: don't trip over this quote
export HF_HOME=/models
VLLM_LOGGING_LEVEL=INFO CUDA_VISIBLE_DEVICES=0,1 vllm serve org/model \\
  --port 8100 --tensor-parallel-size 2 \\
  --max_model_len=32K --kv-transfer-config {NIXL % "kv_producer"} > p.log 2>&1 &
vllm serve org/model -tp 4 --max-model-len 16k \\
  --kv-transfer-config '{{"kv_connector": "NixlConnector",
     "kv_role": "kv_consumer"}}'   # decode
"""


def only(text: str):
    (launch,) = launches_of(text, "serve.sh")
    return launch


def test_two_commands_are_prefill_and_decode_with_their_own_degrees_and_lengths():
    prefill, decode = launches_of(PAIR, "serve.sh")
    assert (prefill.role, prefill.tp, prefill.max_len, prefill.line) == ("prefill", 2, 32_768, 4)
    assert (decode.role, decode.tp, decode.max_len, decode.line) == ("decode", 4, 16_000, 7)
    assert prefill.engine == decode.engine == "vllm-nixl"
    assert prefill.model == "org/model"


def test_roles_go_before_the_order_of_the_text():
    lines = PAIR.replace("kv_producer", "X").replace("kv_consumer", "kv_producer").replace("X", "kv_consumer")
    prefill, decode = launches_of(lines, "serve.sh")
    assert (prefill.tp, decode.tp) == (4, 2)


def test_sglang_says_its_phase_pages_and_share():
    launch = only(
        "python3 -m sglang.launch_server --model-path m --disaggregation-mode prefill --page-size 64 --tp 8"
        " --mem-fraction-static 0.8 --context-length 8192 --max-running-requests 16 --kv-cache-dtype fp8_e4m3"
    )
    assert (launch.server, launch.role, launch.block, launch.tp) == ("sglang", "prefill", 64, 8)
    assert (launch.utilization, launch.max_len, launch.max_seqs, launch.kv_dtype) == ("0.8", 8192, 16, "fp8")
    assert launch.engine == "sglang"
    assert any("mem-fraction-static" in note for note in launch.notes)


def test_unknown_flags_are_told_and_take_their_value_with_them():
    launch = only("vllm serve m --strange 7 --odd --block-size 32 stray")
    assert launch.block == 32
    assert any("--strange: not understood" in note for note in launch.notes)
    assert any("--odd: not understood" in note for note in launch.notes)
    assert any("'stray'" in note for note in launch.notes)


def test_a_connector_that_was_not_read_leaves_the_transfer_unpriced():
    launch = only('vllm serve m --kv-transfer-config \'{"kv_connector": "Pigeon"}\'')
    assert launch.engine is None
    assert "'Pigeon' moves was not read" in launch.unpriced[0]


def test_the_image_of_the_server_takes_its_flags():
    launch = only("docker run --gpus all vllm/vllm-openai:v9 --model org/m --tensor-parallel-size 2 \\\n --dtype half")
    assert (launch.server, launch.model, launch.tp, launch.weights_dtype) == ("vllm", "org/m", 2, "fp16")


def test_flags_that_change_bytes_and_are_not_priced_stand_in_the_way():
    launch = only("vllm serve m --enable-expert-parallel --data-parallel-size 1 --cpu-offload-gb 4 --enforce-eager")
    assert [words.split(":")[0] for words in launch.unpriced] == ["--enable-expert-parallel", "--cpu-offload-gb"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "holds no serving command"),
        ("echo hello", "holds no serving command"),
        ("vllm serve", "names no model"),
        ("vllm serve $MODEL", "left to a shell"),
        ("vllm serve m --max-model-len $(cat len)", "left to a shell"),
        ("vllm serve m --tp 2 --tensor-parallel-size 4", "keep one"),
        ("vllm serve m --model n", "keep one"),
        ("vllm serve m --tp zero", "is no count"),
        ("vllm serve m --tp 0", "is no count"),
        ("vllm serve m --tp", "has no value"),
        ("vllm serve m --gpu-memory-utilization 2", "--gpu-memory-utilization"),
        ("vllm serve m --kv-cache-dtype int3", "is not priced"),
        ("vllm serve m --config serve.yaml", "is not read"),
        ("vllm serve m --kv-transfer-config {", "is no JSON"),
        ("vllm serve m --kv-transfer-config '[1]'", "is no JSON object"),
        ("vllm serve m --kv-transfer-config " + "'" + "[" * 5000 + "'", "is no JSON"),
        ("vllm serve 'm", "does not end"),
        ("vllm serve m\nvllm serve m\nvllm serve m", "holds 3 serving commands"),
        ("vllm serve m\nvllm serve n", "prefill says m, decode n"),
        ("vllm serve m --kv-cache-dtype fp8\nvllm serve m", "prefill says fp8, decode nothing"),
        ("vllm serve m\npython -m sglang.launch_server --model-path m", "prefill says vllm, decode sglang"),
        (f"vllm serve m --kv-transfer-config {NIXL % 'kv_producer'}\n" * 2, "both commands are of prefill"),
        ("x" * (MAX_TEXT + 1), "no launch line"),
    ],
)
def test_what_cannot_be_meant_is_a_fault_in_words(text, told):
    with pytest.raises(DescriptionError) as caught:
        launches_of(text, "serve.sh")
    assert told in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_all_faults_of_a_file_are_told_at_once():
    with pytest.raises(DescriptionError) as caught:
        launches_of("vllm serve m --tp 0 --block-size x --kv-cache-dtype y\n", "serve.sh")
    assert len(caught.value.faults) == 3
    assert {fault.line for fault in caught.value.faults} == {1}


def test_nothing_is_run_or_expanded(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    launch = only("touch made; vllm serve m --served-model-name $NAME --port $PORT | tee made")
    assert launch.model == "m"
    for words in ("--served-model-name `touch made`", "$(touch made)", "$MORE_FLAGS", '"$@"'):
        with pytest.raises(DescriptionError, match="left to a shell, which is not asked: it may hold any flag"):
            only(f"vllm serve m {words} > made")
    assert not (tmp_path / "made").exists()


SERVE = "vllm serve org/m --tensor-parallel-size 2"
POD = """apiVersion: v1
kind: Pod
---
spec:
  containers:
  - name: server
    image: vllm/vllm-openai:v9
    %s
"""


@pytest.mark.parametrize(
    "text",
    [
        f"bash -c '{SERVE}'",
        f'docker run --rm image /bin/sh -lc "exec {SERVE} 2>&1"',
        "docker run vllm/vllm-openai -tp=2 --model org/m",
        "docker run --entrypoint vllm vllm/vllm-openai serve org/m -tp 2",
        POD % 'command: ["vllm", "serve"]\n    args: [org/m, -tp, "2"]',
        POD % 'args: ["--model", "org/m", "--tensor-parallel-size", "2"]',
        POD % "args:\n    - --model=org/m\n    - --tensor-parallel-size=2",
        POD % "command: --model org/m --tensor-parallel-size 2",
        POD % 'command: ["/bin/sh", "-c"]\n    args:\n    - |\n      vllm serve org/m \\\n        -tp 2',
    ],
)
def test_commands_are_found_in_wrappers_and_manifests(text):
    launch = only(text)
    assert (launch.server, launch.model, launch.tp, launch.notes, launch.unpriced) == ("vllm", "org/m", 2, (), ())


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("-tp2", "-tp2 is no flag; write -tp 2"),
        ("--tensor-parallel 2", "may be short for --tensor-parallel-size"),
        ("--kv-transfer-config.kv_connector NixlConnector", "is a part of --kv-transfer-config"),
        ("--api-key $(cat key) --tensor-parallel-size 2", "ended the command before it"),
        ("\\\n # a comment\n --tensor-parallel-size 2", "ended the command before it"),
    ],
)
def test_what_a_parser_or_shell_would_read_otherwise_is_refused(words, told):
    with pytest.raises(DescriptionError, match=told):
        only(f"vllm serve m {words}")


def test_short_flags_that_change_bytes_stand_in_the_way_and_others_are_told():
    launch = only("vllm serve m -tp 2 -dcp 2 -ep -O3 --hf-overrides '{}' --mamba-cache-dtype float32")
    assert (launch.tp, [words.split(":")[0] for words in launch.unpriced]) == (
        2,
        ["--decode-context-parallel-size", "--enable-expert-parallel", "--hf-overrides", "--mamba-cache-dtype"],
    )
    assert launch.notes == ("-O3: not understood; nothing is taken from it",)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a b\\\n  c", ("a", "b", "c")),
        ("a 'b # c' # d", ("a", "b # c")),
        ("a b#c", ("a", "b#c")),
        ('a "b\nc"', ("a", "b\nc")),
        ("a > out 2> err", ("a",)),
        ("a\r\n", ("a",)),
        ('a ""', ("a", "")),
    ],
)
def test_words_are_those_of_a_shell(text, words):
    assert commands_of(text, "x")[0].words == words


def test_commands_are_split_at_line_ends_and_operators():
    assert [c.words for c in commands_of("a 1 && b; c | d &\ne", "x")] == [("a", "1"), ("b",), ("c",), ("d",), ("e",)]
    assert [c.line for c in commands_of("\n\na \\\n b\nc", "x")] == [3, 5]


@settings(max_examples=300, deadline=None)
@given(text=st.text(alphabet="abv -=\"'\\\n#$`;&|<>(){}[]:0123\t\r.é", max_size=200))
def test_any_text_is_read_or_refused_and_nothing_else(text):
    try:
        found = launches_of("vllm serve m " + text, "x")
    except DescriptionError:
        return
    assert 1 <= len(found) <= 2


@given(words=st.lists(st.text(alphabet="abc '\"$\\{}:,#", min_size=1, max_size=12), min_size=1, max_size=6))
def test_quoted_words_come_back_as_they_were(words):
    import shlex

    assert commands_of("x " + " ".join(shlex.quote(word) for word in words), "x")[0].words == ("x", *words)
