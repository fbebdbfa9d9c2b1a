"""What an engine was seen to load, beside what the checkpoint holds: kernels pad, and no formula says by how much.

Only published measurements stand here, as printed: GiB with two decimals. For every other model the checkpoint's bytes
are all that is known, and the engine may pad.
"""

from __future__ import annotations

from dataclasses import dataclass

from fleet.model import Model
from fleet.units import GIB

_TABLE = "llm-d-incubation/llm-d-planner, docs/empirical-vllm-memory-results.md"


@dataclass(frozen=True, kw_only=True, slots=True)
class Loaded:
    """One measurement: `hundredths` of a GiB on each of `ranks`, of the model with so many parameters of a family."""

    family: str
    parameters: int
    quantisation: str | None
    engine: str
    ranks: int
    hundredths: int
    source: str

    @property
    def gib(self) -> str:
        """The figure as it was printed."""
        return f"{self.hundredths // 100}.{self.hundredths % 100:02d}"

    def bounds(self) -> tuple[int, int]:
        """The bytes between which the printed figure lies: half a hundredth of a GiB to both sides."""
        return (2 * self.hundredths - 1) * GIB // 200, (2 * self.hundredths + 1) * GIB // 200


MEASURED: tuple[Loaded, ...] = (
    Loaded(
        family="gpt_oss", parameters=116829156672, quantisation="mxfp4 experts", engine="vLLM", ranks=1,
        hundredths=6438, source=_TABLE,
    ),
    Loaded(
        family="gpt_oss", parameters=20914757184, quantisation="mxfp4 experts", engine="vLLM", ranks=1,
        hundredths=1347, source=_TABLE,
    ),
    Loaded(
        family="llama", parameters=8030261248, quantisation=None, engine="vLLM", ranks=1, hundredths=1499,
        source=_TABLE,
    ),
    Loaded(
        family="qwen3", parameters=32762123264, quantisation=None, engine="vLLM", ranks=1, hundredths=6103,
        source=_TABLE,
    ),
    Loaded(
        family="qwen3", parameters=32762123264, quantisation=None, engine="vLLM", ranks=2, hundredths=3059,
        source=_TABLE,
    ),
)  # fmt: skip


def loaded_of(model: Model) -> tuple[Loaded, ...]:
    """The measurements of this very model in 16 bit or in its own quantisation; empty where nobody published one."""
    if model.quantisation is None and model.weights_dtype not in ("bf16", "fp16"):
        return ()
    return tuple(
        row
        for row in MEASURED
        if (row.family, row.parameters, row.quantisation) == (model.family, model.parameters, model.quantisation)
    )


def padding_bounds(row: Loaded, weights_bytes: int) -> tuple[int, int] | None:
    """Bytes that the engine held beyond the checkpoint's: at least, at most. None where a rank's share is not known."""
    if row.ranks != 1:
        return None
    least, most = row.bounds()
    return least - weights_bytes, most - weights_bytes
