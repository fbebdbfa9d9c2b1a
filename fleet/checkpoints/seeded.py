"""The embedded default model: a specification of a few numbers. `executor.weights` makes the values from it.

It exists so that a bare clone can run and prove a split without a download. It was never trained: it speaks no
language. Its seed was chosen by search (`benchmarks/search_seed.py`) so that greedy tokens are far from ties and
depend on the KV cache of the prompt; `tests/executor/test_seeded_model.py` checks both.
"""

from __future__ import annotations

import hashlib
import json

from fleet.checkpoints.llama2c import Dimensions, tensor_rows
from fleet.model import Model, TensorSpec

SEEDED_NAME = "seeded-260K"

GENERATOR = "splitmix64-uniform24/1"
"""Names the arithmetic that turns (seed, tensor, index) into a value; changed values need a new number."""

SEED = 33

SIZES = Dimensions(
    dim=64,
    hidden_dim=172,
    n_layers=5,
    n_heads=8,
    n_kv_heads=4,
    vocab_size=259,
    seq_len=256,
    shared_classifier=False,
)

# (offset, scale): a value is offset + scale * u, u uniform in [-1, 1). Powers of two and short binary fractions, so
# that each is exact in float32.
VALUES: dict[str, tuple[float, float]] = {
    "token_embedding": (0.0, 1.0),
    "rms_att": (1.0, 0.25),
    "wq": (0.0, 0.375),
    "wk": (0.0, 0.375),
    "wv": (0.0, 0.25),
    "wo": (0.0, 0.25),
    "rms_ffn": (1.0, 0.25),
    "w1": (0.0, 0.25),
    "w2": (0.0, 0.125),
    "w3": (0.0, 0.25),
    "rms_final": (1.0, 0.25),
    "wcls": (0.0, 4.0),
}

FIRST_PRINTABLE = 0x20 + 3
LAST_PRINTABLE = 0x7E + 3
UNPRINTABLE_SCALE = 0.25
"""Classifier rows of ids outside FIRST_PRINTABLE..LAST_PRINTABLE are scaled by this: greedy text stays printable."""


def spec_document(seed: int = SEED) -> dict[str, object]:
    """All that decides the values, as a JSON document."""
    return {
        "generator": GENERATOR,
        "seed": seed,
        "dimensions": {
            "dim": SIZES.dim,
            "hidden_dim": SIZES.hidden_dim,
            "n_layers": SIZES.n_layers,
            "n_heads": SIZES.n_heads,
            "n_kv_heads": SIZES.n_kv_heads,
            "vocab_size": SIZES.vocab_size,
            "seq_len": SIZES.seq_len,
            "shared_classifier": SIZES.shared_classifier,
        },
        "values": {name: list(pair) for name, pair in VALUES.items()},
        "printable": [FIRST_PRINTABLE, LAST_PRINTABLE, UNPRINTABLE_SCALE],
    }


def seeded_model() -> Model:
    """The embedded model: llama2.c's tensors in the order of version 0, without freq_cis; offsets are None."""
    tensors = tuple(
        TensorSpec(name=name, shape=shape, role=role, per_layer=per_layer)
        for name, shape, role, per_layer in tensor_rows(SIZES, 0)
        if role != "unread"
    )
    canonical = json.dumps(spec_document(), sort_keys=True, separators=(",", ":")).encode()
    return Model(
        name=SEEDED_NAME,
        family="llama",
        format="seeded",
        dim=SIZES.dim,
        hidden_dim=SIZES.hidden_dim,
        n_layers=SIZES.n_layers,
        n_heads=SIZES.n_heads,
        n_kv_heads=SIZES.n_kv_heads,
        head_dim=SIZES.head_dim,
        vocab_size=SIZES.vocab_size,
        seq_len=SIZES.seq_len,
        shared_classifier=SIZES.shared_classifier,
        tensors=tensors,
        digest=hashlib.sha256(canonical).hexdigest(),
    )
