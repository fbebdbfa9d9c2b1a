"""One suite for every backend that is found, and for copies of it with a defect put back."""

from __future__ import annotations

import pytest

from executor.device import Backend, find_backends, load_backend, probe
from fleet.errors import BackendUnavailableError, KvWaybillError
from tests.conformance.bench import DEVICES
from tests.conformance.laws import LAWS, Law
from tests.conformance.mutants import MUTANTS, Mutant


def _loaded() -> dict[str, type[Backend] | None]:
    found: dict[str, type[Backend] | None] = {}
    for name in find_backends():
        try:
            found[name] = load_backend(name)
        except BackendUnavailableError:
            found[name] = None
    return found


BACKENDS = _loaded()
MOVERS = [name for name, backend in BACKENDS.items() if backend is None or backend.moves_data]
FOUR = list(MUTANTS.values())[:4]
BOUND = [
    (name, law)
    for name, backend in BACKENDS.items()
    for law in LAWS.values()
    if not law.moves_data or backend is None or backend.moves_data
]


def _runnable(name: str) -> type[Backend]:
    backend, answer = BACKENDS[name], probe(name)
    if backend is None or (backend.moves_data and isinstance(answer, str)):
        pytest.skip(f"backend {name} cannot run here: {answer}")
    if isinstance(answer, list) and len(answer) < len(DEVICES) and hasattr(backend, "emulating"):
        emulating: type[Backend] = backend.emulating()  # one card plays both
        return emulating
    return backend


@pytest.mark.parametrize(("name", "law"), BOUND, ids=lambda v: v.name if isinstance(v, Law) else v)
def test_backend_keeps_the_law(name: str, law: Law) -> None:
    law.check(_runnable(name))


def _judge(law: Law, backend: type[Backend]) -> str:
    try:
        law.check(backend)
    except AssertionError:
        return "broken"
    except KvWaybillError:
        return "refused"  # the defect made the ABI itself refuse a call on the way to the question
    return "kept"


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=lambda mutant: mutant.name)
@pytest.mark.parametrize("name", MOVERS)
def test_defect_is_caught_by_its_law(name: str, mutant: Mutant) -> None:
    backend = _runnable(name)
    if not backend.layouts and all(law.startswith("packed") for law in mutant.caught_by):
        pytest.skip(f"backend {name} has no layout but plain, so it cannot have this defect")
    if name == "cupy" and mutant not in FOUR:
        pytest.skip("defects that make the processor read a card's memory end the process: tests/gpu has them")
    with mutant.mutation(backend) as defective:
        caught = {law.name for law in LAWS.values() if _judge(law, defective) == "broken"}
    assert mutant.caught_by <= caught, f"{mutant.name} was caught by {sorted(caught)} only"
    if mutant.only:
        assert caught == mutant.caught_by


def test_every_law_is_broken_by_some_defect() -> None:
    assert set().union(*(mutant.caught_by for mutant in MUTANTS.values())) == set(LAWS)


def test_the_four_defects_of_the_issue_break_one_law_each() -> None:
    assert [mutant.name for mutant in FOUR] == [
        "process_wide_handle",
        "topology_ignored_at_allocation",
        "copy_down_without_topology",
        "no_peer_movement",
    ]
    assert all(mutant.only and len(mutant.caught_by) == 1 for mutant in FOUR)


def test_only_the_null_backend_is_excused_from_moving_data() -> None:
    excused = {name for name, backend in BACKENDS.items() if backend is not None and not backend.moves_data}
    assert excused == {"null"}


@pytest.mark.parametrize("law", [law for law in LAWS.values() if law.moves_data], ids=lambda law: law.name)
def test_a_backend_that_moves_nothing_breaks_every_law_of_data(law: Law) -> None:
    with pytest.raises(AssertionError):
        law.check(load_backend("null"))


def test_backends_are_found_by_file_name_and_named_alike() -> None:
    assert {"null", "numba"} <= set(BACKENDS)
    assert all(backend.name == name for name, backend in BACKENDS.items() if backend is not None)
    assert isinstance(probe("null"), str)
    assert isinstance(probe("numba"), list)


def test_an_unknown_backend_is_refused_with_the_known_names() -> None:
    with pytest.raises(KvWaybillError, match=r"cuba.*null, numba"):
        load_backend("cuba")
