"""Which device serves which phase. Equal devices make the oracle: prefill and decode on one device."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Placement:
    """phase -> device id."""

    prefill: str
    decode: str

    @property
    def is_oracle(self) -> bool:
        return self.prefill == self.decode

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices named, prefill's first, each once."""
        return (self.prefill,) if self.is_oracle else (self.prefill, self.decode)
