"""Compute rates of devices and stated errors of observations: read, kept, written out, refused when wrong."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest

from fleet.catalog.skus import sku_names
from fleet.dump import fleet_yaml
from fleet.errors import DescriptionError
from fleet.load import load_fleet
from fleet.machine import Fleet
from fleet.readers.skus import find_sku
from fleet.render import fleet_document
from fleet.units import MAX_FIGURE, UnitError, format_flops, parse_flops
from tests.command_line import write_json

TERA = 10**12
TEXT = """
schema: kvwaybill/fleet/1
name: made
skus:
  card:
    kind: gpu
    memories: [{name: hbm, capacity: 8 GiB}]
    runtime: 0 B
    compute: {bf16: 989 TFLOP/s, fp32: {declared: 67 TFLOP/s, observed: {value: 49.7 TFLOP/s, tool: a, error: 3 %}}}
devices:
  - {id: gpu:0, sku: card}
  - {id: gpu:1, sku: card, compute: {fp8: 2 PFLOP/s}}
  - {id: gpu:2, sku: card, compute: {}}
  - {id: part, parent: gpu:0, sku: card, memories: [{name: hbm, capacity: 1 GiB}]}
  - {id: half, parent: gpu:0, sku: card, memories: [{name: hbm, capacity: 1 GiB}], compute: {bf16: 100 TFLOP/s}}
"""


@pytest.fixture
def made(tmp_path: Path) -> Fleet:
    path = tmp_path / "made.yaml"
    path.write_text(TEXT)
    return load_fleet(str(path))


def rates(fleet: Fleet) -> dict[str, dict[str, int | None]]:
    return {device.id: {name: rate.value for name, rate in device.compute} for device in fleet.devices}


EXPECTED: dict[str, dict[str, int | None]] = {
    "gpu:0": {"bf16": 989 * TERA, "fp32": 67 * TERA},
    "gpu:1": {"fp8": 2000 * TERA},
    "gpu:2": {},
    "part": {},
    "half": {"bf16": 100 * TERA},
}


def test_a_device_has_its_own_rates_else_those_of_its_sku_and_a_slice_not_those_of_its_card(made: Fleet) -> None:
    assert rates(made) == EXPECTED
    first = next(device for device in made.devices if device.id == "gpu:0")
    observed = first.flops("fp32").observed
    assert observed is not None
    assert (observed.value, observed.error) == (497 * 10**11, Fraction(3, 100))
    assert first.flops("tf32").value is None


def test_rates_and_errors_survive_the_canonical_text_and_the_document(made: Fleet, tmp_path: Path) -> None:
    written = tmp_path / "written.yaml"
    written.write_text(fleet_yaml(made))
    shown = write_json(tmp_path / "shown.json", fleet_document(made))
    for again in (load_fleet(str(written)), load_fleet(str(shown))):
        assert rates(again) == EXPECTED
        assert again.digest == made.digest


def test_another_rate_or_error_is_another_fleet(made: Fleet, tmp_path: Path) -> None:
    for number, (old, new) in enumerate((("989 TFLOP/s", "990 TFLOP/s"), ("error: 3 %", "error: 4 %"))):
        path = tmp_path / f"{number}.yaml"
        path.write_text(TEXT.replace(old, new))
        assert load_fleet(str(path)).digest != made.digest


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("bf16: 989 TFLOP/s", "bf32: 989 TFLOP/s", "compute.bf32"),
        ("989 TFLOP/s", "989 TFLOPS", "FLOP/s"),
        ("989 TFLOP/s", "989 TB/s", "FLOP/s"),
        ("989 TFLOP/s", "0 TFLOP/s", "0 is no figure here"),
        ("989 TFLOP/s", "989", "unit missing"),
        ("error: 3 %", "error: 300 %", "largest relative error"),
        ("error: 3 %", "error: 0", "largest relative error"),
    ],
)
def test_a_wrong_rate_or_error_is_told_at_its_line(old: str, new: str, told: str, tmp_path: Path) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text(TEXT.replace(old, new, 1))
    with pytest.raises(DescriptionError) as caught:
        load_fleet(str(path))
    assert told in str(caught.value)
    assert "wrong.yaml:9:" in str(caught.value)


@pytest.mark.parametrize("value", [1, 999, 10**12, 494_500_000_000_000, MAX_FIGURE])
def test_rates_are_read_back_as_written(value: int) -> None:
    assert parse_flops(format_flops(value)) == value


def test_a_rate_that_is_no_whole_number_of_operations_is_refused() -> None:
    with pytest.raises(UnitError, match="whole number of operations per second"):
        parse_flops("0.5 FLOP/s")


def test_every_card_of_the_catalog_but_one_states_compute_and_whether_it_was_looked_up(tmp_path: Path) -> None:
    silent = set()
    for name in sku_names():
        path = tmp_path / f"{name}.yaml"
        path.write_text(f"schema: kvwaybill/fleet/1\nname: one\ndevices: [{{id: card:0, sku: {name}}}]\n")
        (card,) = load_fleet(str(path)).devices
        silent |= set() if card.compute else {name}
        for _, rate in card.compute:
            assert rate.declared is not None
            assert rate.declared.verified is not rate.declared.source.startswith("from memory")
    assert silent == {"rtx-5090", "host-x86-2s"}


def test_shipped_fleets_state_what_their_skus_state() -> None:
    for fleet, sku in (
        ("two-gpu-nvlink", "h100-sxm-80"),
        ("one-gpu", "h200-sxm-141"),
        ("two-gpu-pcie", "h100-pcie-80"),
    ):
        shipped = {name: rate.value for name, rate in find_sku(sku).compute}
        assert rates(load_fleet(fleet))["gpu:0"] == shipped
