"""Where the compiled call of a phase finds what: the columns of its plan, book and state, by number.

Plans are plain int64 so that one compiled function serves every model. Names of tensors are llama2.c's.
"""

from __future__ import annotations

WEIGHTS = (
    "token_embedding", "rms_att", "wq", "wk", "wv", "wo", "rms_ffn", "w1", "w2", "w3", "rms_final", "classifier",
)  # fmt: skip
"""The weights in the order of the plan; `classifier` is the table itself where it is shared."""

EMBEDDING, RMS_ATT, WQ, WK, WV, WO, RMS_FFN, W1, W2, W3, RMS_FINAL, CLASSIFIER = range(len(WEIGHTS))

ROWS = ("x", "xb", "xb2", "q", "k", "v", "hb", "hb2")
"""The activation rows, of `chunk` tokens each: dim, dim, dim, dim, kv_dim, kv_dim, hidden_dim, hidden_dim wide."""

MEMORY = (*ROWS, "att", "logits", "tokens", "next", "rope_cos", "rope_sin", "k_cache", "v_cache")
"""Everything else that a phase works on in its device's arena."""

X, XB, XB2, Q, K, V, HB, HB2, ATT, LOGITS, TOKENS, NEXT, ROPE_COS, ROPE_SIN, K_CACHE, V_CACHE = range(len(MEMORY))

# The plan. Addresses and strides are in bytes.
PHASE, ORDER, FIRST, PASSES, CHUNK, DECODES, WANTS_LOGITS, COUNTED = range(8)
DIM, HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, VOCAB, POSITIONS = range(8, 16)
K_STRIDE, V_STRIDE, WIDEST = 16, 17, 18
CONTINUES = 19
"""Decode goes on from the id that it chose last, which lies on the device: none is copied up."""
STEP_AT = 20
"""Where the number of each pass is written as it begins (an int64), or 0."""
SAMPLER = 21
"""The table of `executor.sampling.Sampler`, by which the host draws ids from logits that come down; 0: none do."""
OWN_EXP = 22
"""Whether `exact_exps` may stand for the C library's expf: it was compared."""
ADDRESS_OF_MEMORY = 23
ADDRESS_OF_WEIGHT = ADDRESS_OF_MEMORY + len(MEMORY)
STRIDE_OF_WEIGHT = ADDRESS_OF_WEIGHT + len(WEIGHTS)
PLAN_LENGTH = STRIDE_OF_WEIGHT + len(WEIGHTS)

# The table of arenas, a row each: [start, end) of its addresses, the ledger's codes of it and of its host end.
START, END, DEVICE_CODE, HOST_CODE = range(4)

# What the ledger's `op` column says of an arena: one code a tensor that is moved or multiplied.
OP_TOKENS, OP_NEXT, OP_LOGITS = len(WEIGHTS), len(WEIGHTS) + 1, len(WEIGHTS) + 2
OP_CODES = len(WEIGHTS) + 3

# The trace: a table of operations each. `KNOWN` (+ 1 where logits are computed): the first call of its kind;
# `ODD`: the first call that differs from its like; `NOW`: the call under way.
KNOWN, ODD, NOW = 0, 2, 3
TRACES = 4

# State, in and out. `TRACED` + table: rows of that table, -1 where no call was kept in it.
LEDGER_ROWS, PASSES_MADE, CALL_POSITION, CALL_TOKENS, TRACED = range(5)
STATE_LENGTH = TRACED + TRACES

# Outcomes.
DONE, LEDGER_FULL, TOKEN_OUTSIDE, OPERAND_OUTSIDE, TRACE_FULL = range(5)

TRACE_OPS = ("embed", "rmsnorm", "matmul", "rope", "attention", "add", "swiglu", "argmax")
OP_EMBED, OP_RMSNORM, OP_MATMUL, OP_ROPE, OP_ATTENTION, OP_ADD, OP_SWIGLU, OP_ARGMAX = range(len(TRACE_OPS))
TRACE_COLUMNS = 5
"""op, layer, weight or -1, and one or two extents (0: none)."""
NO_WEIGHT = -1

BOS = 1
"""llama2.c stops where this id is chosen."""
