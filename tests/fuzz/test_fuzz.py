"""Every reader under damaged input: a value or words, never another exception, never a hang, memory bounded."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.mutations import damaged
from tests.fuzz.targets import CORPUS, TARGETS, outcome, seeds

MOST_GROWTH = 400 << 20
EXAMPLES = int(os.environ.get("KVWAYBILL_FUZZ_EXAMPLES", "60"))


def test_every_target_has_a_corpus_and_every_corpus_a_target():
    assert {entry.name for entry in CORPUS.iterdir()} == set(TARGETS)
    assert all(seeds(target) for target in TARGETS)


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_the_kept_inputs_are_read_or_told(target, tmp_path):
    """At least one of each corpus is whole: mutations of files that all fail at the first byte would try nothing."""
    told = [outcome(target, data, tmp_path) for data in seeds(target)]
    assert any(not isinstance(result, str) for result in told), told


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_damaged_inputs_are_read_or_told(target, tmp_path):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    @settings(max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(damaged(seeds(target)))
    def tried(data: bytes) -> None:
        outcome(target, data, tmp_path)

    tried()
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < MOST_GROWTH


BOMBS = {
    "yaml aliases": b"a: &a [x,x,x,x,x,x,x,x]\n" + b"".join(
        b"%c: &%c [*%c,*%c,*%c,*%c,*%c,*%c,*%c,*%c]\n" % ((98 + i, 98 + i) + (97 + i,) * 8) for i in range(20)
    ),
    "xml entities": b'<?xml version="1.0"?><!DOCTYPE system [<!ENTITY a "aaaaaaaaaa">' + b"".join(
        b'<!ENTITY %c "%b">' % (98 + i, b"&%c;" % (97 + i) * 10) for i in range(12)
    ) + b"]><system>&m;</system>",
    "deep json": b'{"a":' * 200_000,
    "deep yaml": b"[" * 200_000,
    "long number": b'{"schema": "kvwaybill/plan/1", "x": ' + b"9" * 400_000 + b"}",
    "gguf with 2^60 tensors": b"GGUF\3\0\0\0" + (1 << 60).to_bytes(8, "little") * 2,
    "gguf with a string of 2^60": b"GGUF\3\0\0\0" + (0).to_bytes(8, "little") + (1).to_bytes(8, "little")
    + (1 << 60).to_bytes(8, "little"),
    "safetensors with a header of 2^60": (1 << 60).to_bytes(8, "little") + b"{",
    "checkpoint of 2^31 dimensions": b"\xff\xff\xff\x7f" * 7,
    "one line of a megabyte": b"x" * 1_000_000,
    "a hundred thousand lines": b"1,2,3\n" * 100_000,
    "a gzip": b"\x1f\x8b\x08" + bytes(5000),
}  # fmt: skip

_UNDER_A_LIMIT = """
import resource, sys, json
from pathlib import Path
from tests.fuzz.targets import TARGETS, outcome
folder = Path(sys.argv[1])
for target in TARGETS:
    outcome(target, b"x", folder)
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (600 << 20),) * 2)
resource.setrlimit(resource.RLIMIT_CPU, (120, 120))
bomb = (folder / "bomb").read_bytes()
print(json.dumps({target: isinstance(outcome(target, bomb, folder), str) for target in TARGETS}))
"""


@pytest.mark.parametrize("name", sorted(BOMBS))
def test_bombs_are_told_within_bounded_memory(name, tmp_path):
    """Each bomb before every reader, in a process that may take 600 MiB beyond what imports took."""
    (tmp_path / "bomb").write_bytes(BOMBS[name])
    command = [sys.executable, "-c", _UNDER_A_LIMIT, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert all(json.loads(done.stdout).values()), done.stdout


@given(st.sampled_from(sorted(TARGETS)), st.binary(max_size=300))
@settings(max_examples=EXAMPLES, deadline=None)
def test_noise_is_told(tmp_path_factory, target, data):
    outcome(target, data, tmp_path_factory.getbasetemp())
