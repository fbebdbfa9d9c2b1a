"""docs/families.md, written from the tables: `python -m fleet.models.page > docs/families.md`; a test compares them."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from fleet.models.blueprint import Family
from fleet.models.families import FAMILIES
from fleet.models.kv import KV_TYPES
from fleet.models.layers import KINDS
from fleet.models.resident import MEASURED
from fleet.models.wrappers import NOT_PRICED, WRAPPERS

_HEAD = """# Families of models, formulas, and how far each was verified

Written from the tables in `fleet/models/`; do not edit by hand (`python -m fleet.models.page > docs/families.md`).

T tokens; e bytes of an element; e_s bytes of an element of the state; nk KV heads; dk, dv width of a key, a value;
W window or chunk; r latent (kv_lora_rank); p rotary part (qk_rope_head_dim); i indexer key; nv value heads; kc kernel
of the convolution; n heads of a state; d, hd their width; N state columns; g groups; inner channels of Mamba 1.
`kvwaybill model show MODEL --explain` prints the numbers, and the config field that each came from."""

_KINDS = """## Layer kinds
growing: with every token. bounded: up to the window. constant: one state a sequence, whatever the tokens. A convolution
keeps kernel - 1 columns (as vLLM does; the transformers cache keeps one more). `window` figures hold min(T, W) tokens
in bounded layers; `full` figures hold every token, as an engine does that evicts none; both are printed."""

_TYPES = """## Types of a cache
`--kv-dtype`. Weights in FP8 or 4 bit do not change it unless the checkpoint sets a cache type (`kv_cache_scheme`,
`kv_cache_quant_algo`). A state is kept in the type that the config names (`mamba_ssm_dtype`), else fp32 is taken, and
that is said."""

_FAMILIES = """## Families
`weights`: types whose bytes are given. A total in any other type is shown as computed and left unknown
(`weights_bytes: null`), because nobody compared it. `checked with`: *published configs and totals* are parameters,
caches and bytes of real models; *the library's count* is of small configs of odd sizes, parameters and layer kinds as
transformers 5.24.0 builds them. Weights of an unquantised checkpoint are parameters times width; router correction
biases, which libraries keep as buffers, stand apart. A field that changes layouts in some family and was read by nobody
makes a model unknown, and so does program code of its own."""

_WRAPPERS = """## Multimodal wrappers
The language model in `text_config` is priced. Of towers only Gemma 3's SigLIP is counted; every other is named as left
out."""

_SCHEMES = """## Quantised weights
| scheme | stored for a matrix [out, in] |
|---|---|
| fp8 in tiles | 1 B an element, 4 B a tile (`weight_block_size`) |
| fp8, a scale a tensor | 1 B an element, two scales of 4 B |
| mxfp4 | experts only: half a byte an element, 1 B for 32 along the input |
| nvfp4 | half a byte an element, 1 B for 16 along the input, two scales of 4 B |
| bitsandbytes int8 | 1 B an element, 4 B a row, 1 B a matrix |

Embeddings, head, norms, routers and what the config excludes stay as they are. GPTQ, AWQ, compressed-tensors, mixed
precision and 4-bit bitsandbytes are named and not computed; with the safetensors files at hand their bytes are read."""

_RESIDENT = """## Loaded is not stored
An engine pads what it loads; no formula says by how much. Measured, to 0.01 GiB:"""


def families_page() -> str:
    """The whole page, ending with a newline."""
    compared = (
        (f.model_type, f.kinds, ", ".join(f.compared) or "none", f.checked, f.words) for f in _sorted_families()
    )
    blocks = [
        _HEAD,
        _KINDS,
        _table(
            ("kind", "grows", "bytes of a layer", "on a tensor-parallel rank", "note"),
            ((k.name, k.growth, f"`{k.formula}`", k.tensor_parallel, k.note) for k in KINDS.values()),
        ),
        _TYPES,
        _table(("type", "an element"), ((f"`{t.name}`", t.words) for t in KV_TYPES.values())),
        _FAMILIES,
        _table(("model_type", "layers", "weights", "checked with", "note"), compared),
        _WRAPPERS,
        _table(("wrapper", "its language model"), sorted(WRAPPERS.items())),
        "## Known not to be understood",
        _table(("model_type", "why"), sorted(NOT_PRICED.items())),
        _SCHEMES,
        _RESIDENT,
        _table(
            ("family", "parameters", "stored in", "engine", "ranks", "GiB a rank", "source"),
            (
                (r.family, f"{r.parameters:,}", r.quantisation or "16 bit", r.engine, str(r.ranks), r.gib, r.source)
                for r in MEASURED
            ),
        ),
    ]
    return "\n\n".join(blocks) + "\n"


def _sorted_families() -> list[Family]:
    return sorted(FAMILIES.values(), key=lambda family: family.model_type)


def _table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    return "\n".join([*lines, *(f"| {' | '.join(cell or '-' for cell in row)} |" for row in rows)])


if __name__ == "__main__":
    sys.stdout.write(families_page())
