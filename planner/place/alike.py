"""Pools as swaps see them: which workers, and pairs of workers, are alike; the same for every batch."""

from __future__ import annotations

from dataclasses import dataclass

from planner.place.regions import Worker
from planner.place.symmetry import Symmetry


@dataclass(slots=True, eq=False)
class Pack:
    """The workers of a pool. `pairs` are the numbers of the kinds of pairs between its phases, in the order met;
    `ups` and `downs` how many workers of each kind prefill and decode have.
    """

    prefill: tuple[Worker, ...]
    decode: tuple[Worker, ...]
    pairs: tuple[int, ...]
    ups: tuple[tuple[int, int], ...]
    downs: tuple[tuple[int, int], ...]

    @property
    def workers(self) -> tuple[Worker, ...]:
        """All of them, prefill's first."""
        return (*self.prefill, *self.decode)


class Alike:
    """Numbers of kinds: equal ones are workers, or pairs of workers, that swaps turn into each other.

    `first_worker` and `first_pair` are the first that was met of each kind.
    """

    def __init__(self, symmetry: Symmetry) -> None:
        self.symmetry = symmetry
        self.first_worker: list[Worker] = []
        self.first_pair: list[tuple[Worker, Worker]] = []
        self._pairs: dict[tuple[Worker, Worker], int] = {}
        self._workers: dict[Worker, int] = {}
        self._of_pairs: dict[object, int] = {}
        self._of_workers: dict[object, int] = {}
        self._packs: dict[tuple[tuple[Worker, ...], tuple[Worker, ...]], Pack] = {}

    def pair(self, prefill: Worker, decode: Worker) -> int:
        """The number of a pair's kind."""
        found = self._pairs.get((prefill, decode))
        if found is None:
            key = (len(prefill), self.symmetry.tuple_class((*prefill, *decode)))
            found = self._pairs[prefill, decode] = self._of_pairs.setdefault(key, len(self.first_pair))
            if found == len(self.first_pair):
                self.first_pair.append((prefill, decode))
        return found

    def worker(self, worker: Worker) -> int:
        """The number of a worker's kind."""
        found = self._workers.get(worker)
        if found is None:
            key = self.symmetry.tuple_class(worker)
            found = self._workers[worker] = self._of_workers.setdefault(key, len(self.first_worker))
            if found == len(self.first_worker):
                self.first_worker.append(worker)
        return found

    def pack(self, prefill: tuple[Worker, ...], decode: tuple[Worker, ...]) -> Pack:
        """A pool with its kinds."""
        found = self._packs.get((prefill, decode))
        if found is None:
            pairs = dict.fromkeys(self.pair(one, other) for other in decode for one in prefill)
            found = Pack(prefill, decode, tuple(pairs), self._counted(prefill), self._counted(decode))
            self._packs[prefill, decode] = found
        return found

    def _counted(self, side: tuple[Worker, ...]) -> tuple[tuple[int, int], ...]:
        kinds: dict[int, int] = {}
        for worker in side:
            number = self.worker(worker)
            kinds[number] = kinds.get(number, 0) + 1
        return tuple(kinds.items())
