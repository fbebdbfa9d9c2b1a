"""What a report of `nvidia-smi` says of its cards beside the matrix: names, addresses, and a --sku they contradict."""

from __future__ import annotations

import pytest

from fleet.errors import DescriptionError
from fleet.readers.nvidia_smi import read

BLANKS = """\
        GPU0    GPU1    GPU2    CPU Affinity    NUMA Affinity
GPU0     X      NV2     SYS     0-7             0
GPU1    NV2      X      PHB     8-15            1
GPU2    SYS     PHB      X                      N/A
"""
TABLE = """\
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
|   0  NVIDIA L40S                    On  |   00000000:01:00.0 Off |                    0 |
| N/A   30C    P8             33W /  350W |       1MiB /  46068MiB |      0%      Default |
|   1  NVIDIA A100-SXM...             Off |   00000000:41:00.0 Off |                    0 |
"""


@pytest.mark.parametrize(
    ("around", "sku", "said"),
    [
        ("GPU models and configuration:\nGPU 0: NVIDIA A10\nGPU 1: NVIDIA A10\n", "h100-pcie-80", "is NVIDIA A10 in"),
        ("GPU 0,1,2: NVIDIA H100 PCIe\nGPU 0,1,2 Compute Capability: 9.0\n", "l40s", "is NVIDIA H100 PCIe in"),
        (TABLE, "h200-sxm-141", "is NVIDIA L40S in"),
        (TABLE.replace("L40S", "H200"), "h200-sxm-141", "is NVIDIA A100 in"),
    ],
)
def test_what_a_report_names_contradicts_another_sku(around: str, sku: str, said: str) -> None:
    with pytest.raises(DescriptionError, match=said):
        read(around + BLANKS, "t", sku=sku)


def test_the_table_gives_pci_addresses_and_a_cut_name_is_no_contradiction() -> None:
    reading = read(TABLE + BLANKS, "t")
    assert reading.fleet is not None
    assert [d.pci for d in reading.fleet.devices] == ["0000:01:00.0", "0000:41:00.0", None]
    assert reading.notes["gpu_names"] == {"GPU0": "NVIDIA L40S", "GPU1": "NVIDIA A100"}
    listed = "GPU 1: NVIDIA A100-SXM4-80GB (UUID: GPU-12ab)\n"
    whole = read(TABLE + listed + BLANKS, "t")
    assert whole.notes["gpu_names"]["GPU1"] == "NVIDIA A100-SXM4-80GB"
    with pytest.raises(DescriptionError, match=r"is NVIDIA L40S, 0000:01:00\.0 in line 2, but NVIDIA L4 in line 5"):
        read(TABLE + "GPU 0: NVIDIA L4\n" + BLANKS, "t")
    assert "gpu_names" not in read("GPU 0: lost its power\n" + BLANKS, "t").notes
