"""What is asked of a placement: a prompt (ids, or only their count), passes, cache positions, modes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Attention = Literal["device", "host"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """How ids are chosen where not greedily: llama2.c's `-t`, `-p` and `-s`.

    Logits are divided by `temperature` (above 0, taken as f32). `top_p` strictly between 0 and 1 leaves the smallest
    set of ids whose probabilities exceed it, 0 and 1 leave all. `seed`, from 1 up, starts llama2.c's generator.
    """

    temperature: float
    top_p: float
    seed: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """One request. P = prompt_tokens (BOS included), N = passes after the clamp, positions = KV cache length.

    `prompt_ids` is None when only a count was given: such a workload can be priced, not run.
    `kv_extent` is `filled`, `allocated` or `blocks:N` and is about the transfer. `sampling` None: greedy.
    `engine` None: ours. `prefix_hit` tokens of the prompt are on decode already; `whole_windows`: windows are not used;
    `host_buffer`: the handoff goes by host memory even where a peer copy could go direct.
    """

    prompt_tokens: int
    passes: int
    positions: int
    prompt_ids: tuple[int, ...] | None = None
    batch: int = 1
    attention: Attention = "device"
    kv_extent: str = "filled"
    kv_dtype: str = "fp32"
    weights_dtype: str = "fp32"
    prefill_chunk: int = 1
    layout: str = "plain"
    sampling: Sampling | None = None
    engine: str | None = None
    prefix_hit: int = 0
    whole_windows: bool = False
    host_buffer: bool = False

    @property
    def prefill_passes(self) -> int:
        """min(P, N)."""
        return min(self.prompt_tokens, self.passes)

    @property
    def decode_passes(self) -> int:
        """max(0, N - P): what a run makes when BOS does not stop it."""
        return max(0, self.passes - self.prompt_tokens)

    @property
    def hands_over(self) -> bool:
        """The handoff runs whenever N > P."""
        return self.passes > self.prompt_tokens

    @property
    def block_tokens(self) -> int | None:
        """N of `blocks:N`, None for the other extents."""
        return int(self.kv_extent.removeprefix("blocks:")) if self.kv_extent.startswith("blocks:") else None

    @property
    def cache_positions(self) -> int:
        """Positions a KV cache really holds: rounded up to whole blocks under `blocks:N`."""
        block = self.block_tokens
        return self.positions if block is None else -(-self.positions // block) * block
