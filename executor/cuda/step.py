"""Whether a decode step of a model goes in one launch on a card, and that launch (`executor.cuda.source_step`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from executor.cuda.source_step import STEP_BLOCKS, STEP_FEEDERS, STEP_PARTS, STEP_QUEUE_BYTES, STEP_THREADS
from executor.cuda.source_step_attention import STEP_LARGEST_HEAD

if TYPE_CHECKING:
    from executor.cuda.kernels import Kernels
    from executor.cuda.steps import Memory

__all__ = ["STEP_PARAMETERS", "launch_step", "room_of_step"]

STEP_PARAMETERS = "p" * 27 + "i" * 10
"""In the letters of `executor.cuda.kernels.PARAMETERS`."""

_PIECE = 16
_OWN_BYTES = 20 << 10
"""At most, of what the kernel itself declares in shared memory."""
_LONG_ROW = 4096
"""Elements of a row from which a step goes in parts: at the shape of Llama-2-7B, fp32, they took 7,435 us a token and
one launch 8,549 (H200); with four layers of that shape one launch was the faster one (947 and 1,035). Narrow types
follow it without a measurement of the whole shape."""
_MATRICES = ("wq", "wk", "wv", "wo", "w1", "w2", "w3")
_GAINS = ("rms_att", "rms_ffn", "rms_final")


def room_of_step(kernels: Kernels, memory: Memory) -> int | None:
    """Bytes of shared memory that a block asks for; None where a step goes in a launch a part.

    Rows have to be whole pieces of 16 bytes on such bounds, as copies into shared memory want them, and the longest x
    has to fit beside the queues.
    """
    model = memory.model
    if model.dim >= _LONG_ROW or model.head_dim > STEP_LARGEST_HEAD:
        return None
    per_piece = _PIECE // memory.wide
    extents = (model.dim, model.kv_dim, model.hidden_dim)
    starts = [memory.at(f"weights/{name}") for name in (model.classifier_name, *_MATRICES)]
    starts += [memory.cache(tensor, 0) for tensor in ("k", "v")]
    if any(extent % per_piece for extent in extents) or model.head_dim % 4 or any(at % _PIECE for at in starts):
        return None
    attention = STEP_THREADS // 32 * (2 + model.head_dim)
    longest = max(model.dim + STEP_PARTS * model.n_heads, model.hidden_dim, attention)
    room = STEP_QUEUE_BYTES + 4 * longest
    blocks, most = kernels.driver.blocks_together()
    return room if 0 < blocks <= STEP_BLOCKS and room + _OWN_BYTES <= most else None


def launch_step(kernels: Kernels, memory: Memory, source: int, first: int, wants_logits: bool, room: int) -> None:
    """One token, whose id lies at `source`, at the position in memory; `first`: of the first word of bits."""
    model, at = memory.model, memory.at
    weight = {name: at(f"weights/{name}") for name in (*_MATRICES, *_GAINS)}
    args = [source, kernels.fault, at("act/next"), memory.bits, memory.position, at("weights/token_embedding")]
    args += [weight[name] for name in ("rms_att", "wq", "wk", "wv", "wo", "rms_ffn", "w1", "w2", "w3", "rms_final")]
    args += [at(f"weights/{model.classifier_name}"), at("work/rope_cos"), at("work/rope_sin")]
    args += [at(f"act/{name}") for name in ("x", "q", "xb", "hb", "hb2", "logits")]
    args += [memory.cache(tensor, 0) for tensor in ("k", "v")]
    args += [first, model.dim, model.kv_dim, model.hidden_dim, model.n_layers, model.n_heads, model.n_kv_heads]
    args += [model.vocab_size, memory.positions, int(wants_logits)]
    blocks, _ = kernels.driver.blocks_together()
    threads = STEP_THREADS + 32 * STEP_FEEDERS
    kernels.launch(kernels.named("decode_step"), (blocks, 1), threads, args, room, together=True)
