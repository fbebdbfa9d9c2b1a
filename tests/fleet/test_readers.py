"""Foreign texts as a whole: recognised by content, refused with the known formats, the same fleet each time."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.errors import DescriptionError
from fleet.load import load_fleet
from fleet.readers import format_names, matching, read_foreign, recognise
from fleet.render import fleet_document
from fleet.yaml_source import MAX_BYTES

SMI = "\tGPU0\tGPU1\nGPU0\t X \tNV4\nGPU1\tNV4\t X \n"
ROCM = "=== Link Type between two GPUs ===\n     GPU0 GPU1\nGPU0 0    XGMI\nGPU1 XGMI 0\n"
NCCL = '<system><cpu numaid="0"><pci busid="0000:01:00.0" class="0x030200"/></cpu></system>'
HWLOC = '<topology><object type="Machine"><object type="PCIDev" pci_type="0302 [10de:1]"/></object></topology>'
TEXTS = {"nvidia-smi": SMI, "rocm-smi": ROCM, "nccl-xml": NCCL, "hwloc-xml": HWLOC}


@pytest.mark.parametrize("name", sorted(TEXTS))
def test_a_text_is_recognised_by_content(name: str) -> None:
    text = TEXTS[name]
    assert name in format_names()
    assert matching(text) == (name,)
    assert recognise("\ufeff" + text) == name
    found = read_foreign("\ufeff" + text, "given.txt")
    assert found.fleet is not None
    assert found.fleet == read_foreign(text, "given.txt", format=name.replace("-", "_").upper()).fleet


@pytest.mark.parametrize("name", sorted(TEXTS))
def test_a_fleet_read_from_a_text_survives_its_own_document(name: str) -> None:
    import json

    fleet = read_foreign(TEXTS[name], "given.txt").fleet
    assert fleet is not None
    again = load_fleet("again.json", text=json.dumps(fleet_document(fleet)))
    assert again.digest == fleet.digest


@pytest.mark.parametrize(
    ("text", "format", "said"),
    [
        ("", None, "is empty"),
        ("schema: kvwaybill/fleet/1", None, "looked for nvidia-smi, rocm-smi"),
        ("<html></html>", None, "holds no topology that is known here"),
        (SMI, "nvidia-smj", "did you mean nvidia-smi"),
        (SMI, "hwloc-xml", "is no well-formed XML"),
        (NCCL, "hwloc-xml", "the root is <system>"),
        (NCCL, "nvidia-smi", "holds no topology matrix"),
        (HWLOC, "rocm-smi", "holds no topology of rocm-smi"),
    ],
)
def test_what_fits_no_reader_is_told(text: str, format: str | None, said: str) -> None:
    with pytest.raises(DescriptionError) as caught:
        read_foreign(text, "given.txt", format=format)
    assert said in str(caught.value)


def test_a_text_beyond_the_limit_is_refused_unread() -> None:
    with pytest.raises(DescriptionError, match="larger than 16 MiB"):
        read_foreign("x" * (MAX_BYTES + 1), "given.txt")
    assert recognise("x" * (MAX_BYTES + 1)) is None


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=200))
def test_any_text_is_read_or_told_by_every_reader(text: str) -> None:
    told = 0
    for name in (None, *format_names()):
        try:
            read_foreign(text, "fuzz.txt", format=name)
        except DescriptionError as error:
            told += bool(error.faults)
        else:
            told += 1
    assert told == len(format_names()) + 1


def test_tables_of_two_makers_in_one_text_are_both_told() -> None:
    """The table of rocm-smi once hid the matrix of nvidia-smi."""
    amd = "Link Type between two GPUs\n       GPU0   GPU1\nGPU0   0      XGMI\nGPU1   XGMI   0\n"
    nvidia = "\tGPU0\tGPU1\nGPU0\tX\tNV4\nGPU1\tNV4\tX\n"
    assert matching(amd) == ("rocm-smi",)
    assert matching(amd + nvidia) == ("nvidia-smi", "rocm-smi")
    with pytest.raises(DescriptionError, match="several formats at once"):
        read_foreign(amd + nvidia, "both.txt")
