"""A computed tensor table beside the tensors of the files: what differs, with both figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from fleet.checkpoints.json_text import shorten
from fleet.checkpoints.stored import Stored
from fleet.model import TensorSpec

TOLD = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Agreement:
    """What a config computes and what the files hold. Names are complete; `words` tells the first few.

    `shapes` and `types`: (tensor, computed, read). A tensor that differs in both stands under `shapes`. `renamed`: the
    missing and the extra tensors are equal in number, shapes and bytes, and differ in name alone.
    """

    computed_bytes: int
    read_bytes: int | None
    missing: tuple[str, ...]
    extra: tuple[str, ...]
    shapes: tuple[tuple[str, str, str], ...]
    types: tuple[tuple[str, str, str], ...]
    extra_bytes: int
    renamed: bool = False

    @property
    def same_layout(self) -> bool:
        """Every computed tensor is there in its shape, maybe under another name: the config's sizes hold."""
        return (self.renamed or not self.missing) and not self.shapes

    @property
    def exact(self) -> bool:
        """Nothing differs."""
        return self.same_layout and not self.extra and not self.types

    def words(self) -> tuple[str, ...]:
        """One sentence for each sort of difference; none when there is none."""
        said = []
        if self.renamed:
            pairs = f"{some(self.missing, 1)} computed, {some(self.extra, 1)} read"
            said.append(f"{len(self.missing):,} tensors have other names than the config gives them: {pairs}")
        elif self.missing:
            said.append(f"the config computes {len(self.missing):,} tensors that no file holds: {some(self.missing)}")
        if self.shapes:
            rows = [f"{name} computed {ours}, read {theirs}" for name, ours, theirs in self.shapes]
            said.append(f"{len(rows):,} tensors have another shape than the config computes: {some(rows, 3, '; ')}")
        if self.extra and not self.renamed:
            held = f"{len(self.extra):,} tensors ({self.extra_bytes:,} B)"
            said.append(f"the files hold {held} that the config does not compute: {some(self.extra)}")
        if self.types:
            rows = [f"{name} computed {ours}, read {theirs}" for name, ours, theirs in self.types]
            said.append(f"{len(rows):,} tensors have another type than the config computes: {some(rows, 3, '; ')}")
        if said or self.computed_bytes != self.read_bytes:
            read = "unknown" if self.read_bytes is None else f"{self.read_bytes:,}"
            said.append(f"weights: {self.computed_bytes:,} B computed from the config, {read} B read from the files")
        return tuple(said)


def compare(computed: Sequence[TensorSpec], stored: Stored) -> Agreement:
    """Sets the two side by side by name. Types are told apart by bytes an element, which is what is priced.

    Packed bytes of equal size are equal: how a writer folds them into axes says nothing about the model.
    """
    held = {tensor.name: tensor for tensor in stored.tensors}
    missing: list[tuple[str, tuple[int, ...], int]] = []
    shapes: list[tuple[str, str, str]] = []
    types: list[tuple[str, str, str]] = []
    named: set[str] = set()
    for spec in computed:
        one = spec.nbytes // spec.repeat
        for name in spec.names():
            named.add(name)
            found = held.get(name)
            if found is None:
                missing.append((name, spec.shape, one))
            elif found.shape != spec.shape and not (spec.dtype == "u8" and found.nbytes == one):
                shapes.append((name, str(list(spec.shape)), f"{found.dtype} {list(found.shape)}"))
            elif found.nbytes != one:
                types.append((name, spec.dtype, found.dtype))
    extra = [tensor for tensor in stored.tensors if tensor.name not in named]
    return Agreement(
        computed_bytes=sum(spec.nbytes for spec in computed),
        read_bytes=stored.nbytes,
        missing=tuple(name for name, _, _ in missing),
        extra=tuple(tensor.name for tensor in extra),
        extra_bytes=sum(tensor.nbytes or 0 for tensor in extra),
        shapes=tuple(shapes),
        types=tuple(types),
        renamed=bool(missing) and Counter((s, n) for _, s, n in missing) == Counter((t.shape, t.nbytes) for t in extra),
    )


def some(rows: Sequence[str], limit: int = TOLD, between: str = ", ") -> str:
    """The first `limit` of `rows`, and how many more there are."""
    more = f"{between}and {len(rows) - limit:,} more" if len(rows) > limit else ""
    return between.join(shorten(row, 160) for row in rows[:limit]) + more
