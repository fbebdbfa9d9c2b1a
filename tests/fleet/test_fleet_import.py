"""Foreign texts as fleets, measurements laid over a fleet file, and the canonical text."""

from __future__ import annotations

import glob
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.catalog import catalog_names
from fleet.dump import fleet_yaml
from fleet.errors import DescriptionError
from fleet.importing import import_fleet
from fleet.load import load_fleet
from fleet.machine import Fleet
from fleet.overlay import lay_over
from fleet.readers import Observation, read_foreign
from fleet.yaml_source import parse_text
from tests.strategies import fleet_files, written

GB = 10**9
SHARED = Path(__file__).parents[2] / ".." / "shared" / "data"
TEXTS = sorted(glob.glob(str(SHARED / "topology" / "*.txt")) + glob.glob(str(SHARED / "topology" / "*.xml")))
MACHINES = sorted(glob.glob(str(SHARED / "vx_fleet" / "*.vx")))

OTHER_CARDS = {
    "hwloc_power8_4xp100.xml": "is Tesla P100-SXM2-16GB in this text, but --sku names NVIDIA L40S",
    "nccl_azure_ncv4_4gpu_self_nvlink.xml": r"is PCI 10de:20b5 \(a100-pcie-80\) in this text",
    "rccl_3gpu_pcie.xml": "is a card of AMD in this text",
    "rocm_showtopo_4gpu_xgmi.txt": "is a card of AMD in this text",
}
"""Inputs that name their cards; what is said when --sku names an L40S."""

MATRIX = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tNV4\t0-9\t0\nGPU1\tNV4\t X \t0-9\t0\n"
BANDWIDTH = """nvbandwidth Version: v0.5
Running device_to_device_memcpy_read_ce.
memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)
           0         1
 0       N/A    {there}
 1    {back}       N/A
"""
ONTO = """# what stands in the cellar
schema: kvwaybill/fleet/1
name: pair  # a name
skus:
  card: {kind: gpu, memories: [{name: hbm, capacity: 48 GiB}], runtime: 1 GiB}
devices:
  - {id: gpu:0, sku: card}
  - {id: gpu:1, sku: card}  # the slow one
links:
  # the bridge
  - from: gpu:0
    to: gpu:1
    kind: nvlink
    bandwidth: 50 GB/s  # the data sheet
    peer_access: direct
    bidirectional: true
  - {from: host, to: gpu:0, kind: pcie, bandwidth: 010 GB/s}
"""


def without_places(fleet: Fleet) -> Fleet:
    return replace(
        fleet,
        source="",
        warnings=(),
        hosts=tuple(replace(row, where="") for row in fleet.hosts),
        devices=tuple(replace(row, where="", capacity_field="") for row in fleet.devices),
        switches=tuple(replace(row, where="") for row in fleet.switches),
        nics=tuple(replace(row, where="") for row in fleet.nics),
        links=tuple(replace(row, where="") for row in fleet.links),
    )


def refusal(*arguments: str, **options: str) -> str:
    with pytest.raises(DescriptionError) as caught:
        import_fleet(*arguments, **options)
    return str(caught.value)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "topo.txt").write_text(MATRIX)
    (tmp_path / "onto.yaml").write_text(ONTO)
    (tmp_path / "rates.txt").write_text(BANDWIDTH.format(there="47.25", back="46.5"))
    return tmp_path


def again(fleet: Fleet) -> Fleet:
    return load_fleet("again.yaml", text=fleet_yaml(fleet))


# the canonical text


@settings(deadline=None, max_examples=25)
@given(fleet_files(), st.randoms(use_true_random=False))
def test_the_canonical_text_gives_the_same_fleet_and_is_the_same_for_any_order(data, shuffle):
    fleet = load_fleet("f.yaml", text=written(data))
    text = fleet_yaml(fleet)
    assert without_places(again(fleet)) == without_places(fleet)
    assert again(fleet).digest == fleet.digest
    assert fleet_yaml(again(fleet)) == text
    assert fleet_yaml(load_fleet("f.yaml", text=written(data, shuffle))) == text


@pytest.mark.parametrize("name", catalog_names())
def test_the_canonical_text_of_each_shipped_fleet_reads_back(name):
    fleet = load_fleet(name)
    assert without_places(again(fleet)) == without_places(fleet)
    assert parse_text(fleet_yaml(fleet), name).faults == ()


@settings(deadline=None, max_examples=50)
@given(st.text(st.characters(blacklist_categories=["Cc", "Cs"]), min_size=1, max_size=40))
def test_any_prose_survives_the_canonical_text(label):
    skus = "skus: {card: {kind: gpu, memories: [{name: m}]}}\n"
    head = f"schema: kvwaybill/fleet/1\nname: n\n{skus}devices: [{{id: gpu:0, sku: card}}]\n"
    fleet = replace(load_fleet("f", text=head), label=label)
    assert parse_text(fleet_yaml(fleet), "f").data["label"] == label  # type: ignore[index,call-overload]


# foreign texts


def test_a_matrix_is_a_fleet_wherever_a_fleet_is_asked_for(files):
    fleet = load_fleet(str(files / "topo.txt"))
    assert [device.id for device in fleet.devices] == ["gpu:0", "gpu:1"]
    assert fleet.devices[0].memory.capacity.value is None
    assert any("--sku" in text for text in fleet.warnings)
    named = load_fleet(str(files / "topo.txt"), sku="a100-sxm-80")
    assert named.devices[0].memory.capacity.value == 81920 * 2**20
    rates = {(link.src, link.dst): link.bandwidth.value for link in named.links}
    assert rates["gpu:0", "gpu:1"] == 4 * 25 * GB


def test_an_import_is_a_fleet_file_of_the_same_fleet(files):
    imported = import_fleet(str(files / "topo.txt"), sku="a100-sxm-80")
    assert imported.text.startswith("schema: kvwaybill/fleet/1\n")
    assert load_fleet("x.yaml", text=imported.text).digest == imported.fleet.digest
    assert imported.fleet.digest == load_fleet(str(files / "topo.txt"), sku="a100-sxm-80").digest


def test_a_sku_for_a_fleet_file_is_of_no_use_and_said_so(files):
    fleet = load_fleet(str(files / "onto.yaml"), sku="l40s")
    assert "--sku l40s concerns nothing here" in fleet.warnings[0]
    assert fleet.digest == load_fleet(str(files / "onto.yaml")).digest


def test_a_fleet_file_is_imported_as_its_canonical_self(files):
    imported = import_fleet(str(files / "onto.yaml"))
    assert imported.text == fleet_yaml(load_fleet(str(files / "onto.yaml")))


def test_text_of_no_known_format_is_told_with_what_was_looked_for(files):
    (files / "x.txt").write_text("some words: and: more\n")
    with pytest.raises(DescriptionError, match=r"looked for nvidia-smi, .*nvbandwidth"):
        load_fleet(str(files / "x.txt"))
    (files / "y.txt").write_text("some words\n")
    with pytest.raises(DescriptionError, match=r"must be a mapping that begins with schema.*looked for nvidia-smi"):
        load_fleet(str(files / "y.txt"))
    assert "looked for nvidia-smi" in refusal(str(files / "y.txt"))


def test_a_wrong_format_by_name_is_a_fault_and_so_is_an_unknown_one(files):
    assert "XML" in refusal(str(files / "topo.txt"), format="hwloc-xml")
    assert "did you mean nvidia-smi?" in refusal(str(files / "topo.txt"), format="nvidia-smy")
    assert "did you mean l40s?" in refusal(str(files / "topo.txt"), sku="l40z")


LISTED = "GPU 0: {name} (UUID: GPU-00000000-0000-4000-8000-000000000001)\n" + MATRIX


@pytest.mark.parametrize("name", ["NVIDIA A100-SXM4-40GB", "NVIDIA L40", "Tesla V100-SXM2-32GB"])
def test_a_sku_of_another_card_than_the_text_names_is_refused_with_both_names(files, name):
    (files / "topo.txt").write_text(LISTED.format(name=name))
    told = refusal(str(files / "topo.txt"), sku="a100-sxm-80")
    assert f"topo.txt:3:1 gpu:0 is {name} in this text, but --sku names NVIDIA A100 SXM 80 GB (a100-sxm-80)" in told


def test_what_a_reader_doubts_is_told_of_a_fleet_that_is_used_directly(files):
    """Once kept by `fleet import` alone: a plan on the same text told nothing of it."""
    (files / "topo.txt").write_text("nvidia-smi topo -mp\n\tGPU0\tGPU1\nGPU0\tX\tPIX\nGPU1\tPIX\tX\n")
    fleet = load_fleet(str(files / "topo.txt"))
    assert any("topo -mp shows the PCIe path only" in told for told in fleet.warnings)
    assert set(fleet.warnings) == set(import_fleet(str(files / "topo.txt")).warnings)
    assert len(set(fleet.warnings)) == len(fleet.warnings)


def test_lists_of_two_machines_in_one_text_are_both_told(files):
    first = "GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-00000000-0000-4000-8000-000000000001)\n"
    (files / "topo.txt").write_text(first + first.replace("0001)", "0002)") + MATRIX)
    told = refusal(str(files / "topo.txt"))
    assert "topo.txt:2:1 GPU0 is NVIDIA A100-SXM4-80GB, GPU-00000000-0000-4000-8000-000000000001 in line 1, but" in told
    (files / "topo.txt").write_text(first + first + MATRIX)
    assert load_fleet(str(files / "topo.txt")).devices[0].uuid == "GPU-00000000-0000-4000-8000-000000000001"
    (files / "topo.txt").write_text(first + first.replace("GPU 0", "GPU 2").replace("0001)", "0002)") + MATRIX)
    assert "nvidia-smi -L names GPU2, the matrix GPU0, GPU1 alone" in refusal(str(files / "topo.txt"))
    (files / "topo.txt").write_text(first + first.replace("GPU 0", "GPU 1") + MATRIX)
    assert "gives one uuid to two cards" in refusal(str(files / "topo.txt"))


def test_the_card_that_the_text_names_may_be_named_again(files):
    (files / "topo.txt").write_text(LISTED.format(name="NVIDIA A100-SXM4-80GB"))
    assert load_fleet(str(files / "topo.txt"), sku="a100-sxm-80").devices[0].sku == "a100-sxm-80"


def test_a_name_that_may_be_the_card_is_taken_for_it_and_told(files):
    (files / "topo.txt").write_text(LISTED.format(name="NVIDIA A100-SXM-Custom"))
    fleet = load_fleet(str(files / "topo.txt"), sku="a100-sxm-80")
    assert "the text names NVIDIA A100-SXM-Custom; taken for NVIDIA A100 SXM 80 GB, as --sku says" in fleet.warnings


def test_more_lanes_than_the_card_has_are_told(files):
    fleet = load_fleet(str(files / "topo.txt"), sku="l40s")
    assert any("shows 4 NVLinks between two cards, l40s has none" in told for told in fleet.warnings)
    assert not [told for told in load_fleet(str(files / "topo.txt"), sku="a100-sxm-80").warnings if "NVLinks" in told]


# measurements


def test_measurements_alone_are_no_fleet(files):
    assert "--onto FLEET" in refusal(str(files / "rates.txt"))
    with pytest.raises(DescriptionError, match="--onto FLEET"):
        load_fleet(str(files / "rates.txt"))


def test_measurements_fill_observed_and_leave_declared_alone(files):
    before = {(k.src, k.dst): k.bandwidth for k in load_fleet(str(files / "onto.yaml")).links}
    laid = import_fleet(str(files / "rates.txt"), onto=str(files / "onto.yaml"))
    after = {(k.src, k.dst): k.bandwidth for k in laid.fleet.links}
    assert {way: q.declared for way, q in after.items()} == {way: q.declared for way, q in before.items()}
    assert {way: q.observed and q.observed.value for way, q in after.items()} == {
        ("gpu:0", "gpu:1"): 47_250_000_000,
        ("gpu:1", "gpu:0"): 46_500_000_000,
        ("host", "gpu:0"): None,
    }
    seen = after["gpu:0", "gpu:1"].observed
    assert seen is not None
    assert (seen.provenance, seen.source) == ("measured", "nvbandwidth")


def test_comments_and_everything_else_of_the_file_are_kept(files):
    laid = import_fleet(str(files / "rates.txt"), onto=str(files / "onto.yaml"))
    for line in ONTO.splitlines():
        if "bidirectional" not in line and "50 GB/s" not in line:
            assert line.split("#")[0].rstrip() in laid.text
    for comment in ("# what stands in the cellar", "# a name", "# the slow one", "# the bridge", "# the data sheet"):
        assert comment in laid.text
    assert load_fleet("x", text=laid.text).digest == laid.fleet.digest
    twice = import_fleet(str(files / "rates.txt"), onto=_written(files / "once.yaml", laid.text))
    assert (twice.text, twice.fleet.digest) == (laid.text, laid.fleet.digest)


def _written(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def test_equal_measurements_of_both_directions_still_say_so_for_each(files):
    (files / "rates.txt").write_text(BANDWIDTH.format(there="40.0", back="40.0"))
    laid = import_fleet(str(files / "rates.txt"), onto=str(files / "onto.yaml"))
    assert {k.bandwidth.observed.value for k in laid.fleet.links if k.bandwidth.observed} == {40 * GB}


def test_an_observation_above_the_declared_rate_is_kept_and_warned_of(files):
    (files / "rates.txt").write_text(BANDWIDTH.format(there="52.0", back="40.0"))
    laid = import_fleet(str(files / "rates.txt"), onto=str(files / "onto.yaml"))
    assert any("observed 52 GB/s is above the declared 50 GB/s" in text for text in laid.warnings)
    link = next(k for k in laid.fleet.links if (k.src, k.dst) == ("gpu:0", "gpu:1"))
    assert (link.bandwidth.value, link.bandwidth.observed and link.bandwidth.observed.value) == (50 * GB, 52 * GB)


def test_a_contradiction_names_both_sources(files):
    laid = import_fleet(str(files / "rates.txt"), onto=str(files / "onto.yaml"))
    seen = Observation(src="gpu:0", dst="gpu:1", quantity="bandwidth", value=41 * GB, tool="another tool")
    fleet, told = lay_over(laid.fleet, [seen])
    assert told == (
        "gpu:0 -> gpu:1 bandwidth: another tool says 41 GB/s, nvbandwidth said 47.25 GB/s; 41 GB/s is kept",
    )
    assert fleet.digest != laid.fleet.digest


def test_a_measured_pair_without_a_link_is_said_not_to_be_kept(files):
    text = ONTO.replace("kind: nvlink", "kind: nvlink").replace("    bidirectional: true\n", "")
    laid = import_fleet(str(files / "rates.txt"), onto=_written(files / "o.yaml", text))
    assert any("the fleet has no such link, so it is not kept: gpu:1 -> gpu:0" in told for told in laid.warnings)


def test_over_templates_and_shipped_fleets_the_file_is_written_out_anew_and_said_so(files):
    laid = import_fleet(str(files / "rates.txt"), onto="two-gpu-nvlink")
    assert load_fleet("x", text=laid.text).digest == laid.fleet.digest
    text = ONTO.replace("from: gpu:0\n    to: gpu:1", 'from: gpu:0\n    to: "gpu:*"')
    laid = import_fleet(str(files / "rates.txt"), onto=_written(files / "o.yaml", text))
    assert any("was written out anew" in told for told in laid.warnings)
    assert load_fleet("x", text=laid.text).digest == laid.fleet.digest


def test_what_is_no_measurement_cannot_be_laid_over_a_fleet(files):
    assert "leave --onto out" in refusal(str(files / "topo.txt"), onto=str(files / "onto.yaml"))
    assert "is a fleet file" in refusal(str(files / "onto.yaml"), onto=str(files / "onto.yaml"))
    assert "only one of FILE and --onto" in refusal("-", onto="-")


# every shared input


@pytest.mark.shared
@pytest.mark.parametrize("path", [*TEXTS, *MACHINES] or [""], ids=os.path.basename)
@pytest.mark.parametrize("sku", [None, "l40s"])
def test_every_shared_input_is_a_fleet_that_reads_back_or_is_refused_in_words(path, sku):
    if not path:
        pytest.skip("shared/data/topology is not beside the project")
    if sku is not None and os.path.basename(path) in OTHER_CARDS:
        with pytest.raises(DescriptionError, match=OTHER_CARDS[os.path.basename(path)]):
            load_fleet(path, sku=sku)
        return
    if read_foreign(Path(path).read_text(), "x", sku=sku).fleet is None:
        with pytest.raises(DescriptionError, match=r"describes no device|--onto FLEET"):
            load_fleet(path, sku=sku)
        return
    fleet = load_fleet(path, sku=sku)
    assert without_places(again(fleet)) == without_places(fleet)
    assert fleet_yaml(again(fleet)) == fleet_yaml(fleet)


def test_the_committed_json_schema_is_that_of_the_models():
    from fleet.schema import fleet_schema

    committed = Path(__file__).parents[2] / "schemas" / "fleet.schema.json"
    assert json.loads(committed.read_text(encoding="utf-8")) == fleet_schema()
