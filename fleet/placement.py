"""Which devices serve which phase. Equal devices make the oracle: prefill and decode on one device, or one worker.

A device id holds no comma, so the devices of a worker of several GPUs are told as `gpu:0,gpu:1` in one text.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

PHASES = ("prefill", "decode")
_RANGE = re.compile(r"(.*?)([0-9]{1,6})-([0-9]{1,6})")
MOST_DEVICES = 4096


@dataclass(frozen=True, kw_only=True, slots=True)
class Placement:
    """phase -> device id, or the ids of a worker joined by commas.

    `tp`, `pp`: (prefill, decode) tensor-parallel degree and pipeline stages; None for `tp`: all devices of a phase, in
    one stage each.
    """

    prefill: str
    decode: str
    tp: tuple[int, int] | None = None
    pp: tuple[int, int] = (1, 1)

    def ranks(self, phase: str) -> tuple[str, ...]:
        """The devices of a phase, in the order of their ranks."""
        text: str = self.prefill if phase == "prefill" else self.decode
        return tuple(text.split(","))

    def pipeline(self, phase: str) -> int:
        """Pipeline stages of a phase."""
        return self.pp[PHASES.index(phase)]

    def tensor_parallel(self, phase: str) -> int:
        """Ranks of one stage of a phase."""
        return len(self.ranks(phase)) // self.pipeline(phase) if self.tp is None else self.tp[PHASES.index(phase)]

    @property
    def is_split(self) -> bool:
        """Whether a phase has more than one rank: such a placement is priced, and run by nobody."""
        return "," in self.prefill or "," in self.decode

    @property
    def is_oracle(self) -> bool:
        return self.prefill == self.decode

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices named, prefill's first, each once."""
        return tuple(dict.fromkeys((*self.ranks("prefill"), *self.ranks("decode"))))


def device_list(text: str, known: Collection[str]) -> str:
    """`gpu:0-3`, `gpu:0,gpu:2` or an id as ids joined by commas. An id that is `known` is never taken for a range.

    Raises ValueError in words for an empty part, a range that runs backwards or is absurdly long.
    """
    out: list[str] = []
    for part in text.split(","):
        name = part.strip()
        if not name:
            raise ValueError(f"{text!r} has an empty part; write gpu:0,gpu:1 or gpu:0-1")
        found = None if name in known else _RANGE.fullmatch(name)
        if found is None:
            out.append(name)
            continue
        first, last = int(found[2]), int(found[3])
        if last < first or last - first >= MOST_DEVICES:
            raise ValueError(f"{name!r} runs from {first} to {last}; write the lower number first, e.g. gpu:0-3")
        out += [f"{found[1]}{number}" for number in range(first, last + 1)]
    if len(set(out)) != len(out):
        twice = next(name for name in out if out.count(name) > 1)
        raise ValueError(f"{text!r} names {twice} twice; a rank has a device of its own")
    return ",".join(out)
