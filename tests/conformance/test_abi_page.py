"""The page on topology ids is what the signatures say."""

from __future__ import annotations

from tests.conformance.abi_page import PAGE, entry_points, other_methods, page


def test_the_committed_page_equals_the_signatures() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run python -m tests.conformance.abi_page"


def test_every_call_that_touches_memory_names_its_device() -> None:
    assert other_methods() == ["arenas", "where", "poison_words", "poison", "close", "physical_devices"]
    needed = {"alloc", "alloc_and_transfer", "copy_h2d", "copy_d2h", "copy_p2p", "dispatch", "free", "synchronize"}
    assert needed <= {name for name, _ in entry_points()}


def test_the_page_shows_both_ends_of_a_peer_copy() -> None:
    row = next(line for line in page().splitlines() if line.startswith("| `copy_p2p`"))
    for part in ("`src_device`, `dst_device`", "`_p2p(src_device, dst_device, ...)`", "Copied.dst_topology_id"):
        assert part in row
