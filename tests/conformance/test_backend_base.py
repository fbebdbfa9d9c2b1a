"""What the base class and discovery do beside the laws: tiers, names, collisions, missing libraries."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import executor.backends
from executor.arena import poison_word
from executor.device import Backend, DeviceSpec, HostSpec, find_backends, load_backend, probe
from executor.events import Copied, Event
from executor.kernels import run_op
from executor.processor import processor_entry
from fleet.discovery.processor import machine_hash
from fleet.errors import BackendError, BackendUnavailableError, InconclusiveError, PlacementError
from tests.conformance.bench import LABEL, bench, numbers

TOY = """
from executor.backends.null import Backend as Null

class Backend(Null):
    name = "toy"

def probe():
    return ["a toy"]
"""


def _spec(name: str, topology_id: int, kind: str = "gpu", host: str = "host") -> DeviceSpec:
    return DeviceSpec(id=name, topology_id=topology_id, kind=kind, index=0, fence_bytes=64, host=host)  # type: ignore[arg-type]


@pytest.fixture
def numba() -> type[Backend]:
    return load_backend("numba")


def test_tier_is_on_device_only_when_every_device_is_really_there(numba: type[Backend]) -> None:
    gpu, cpu = _spec("gpu:0", 500), _spec("cpu:0", 0, "cpu")
    assert [numba(devices).tier for devices in ([gpu], [cpu], [gpu, cpu])] == ["emulated", "on-device", "emulated"]
    assert numba([cpu, _spec("cpu:1", 3001, "cpu")]).tier == "emulated"  # one processor is no two devices


def test_fences_beyond_this_machine_are_refused_before_anything_is_mapped(numba: type[Backend]) -> None:
    huge = DeviceSpec(id="gpu:0", topology_id=500, kind="gpu", index=0, fence_bytes=1 << 50)
    with pytest.raises(InconclusiveError, match=r"this machine has [0-9,]+ B"):
        numba([huge])


def test_the_one_physical_device_of_numba_is_the_processor(numba: type[Backend]) -> None:
    (device,) = numba([_spec("gpu:0", 500), _spec("gpu:1", 501)]).physical_devices()
    assert device.pop("name") == probe("numba")[0]
    where = {"machine": device.pop("machine"), "socket": device.pop("socket")}
    assert device == {"device": "cpu:0", "ordinal": 0, "uuid": None, "pci": None}
    assert where == {"machine": machine_hash(), "socket": processor_entry()["socket"]}


def test_the_host_end_of_a_copy_is_the_device_own_host(numba: type[Backend]) -> None:
    events: list[Event] = []
    with numba([_spec("node3/gpu:0", 3001, host="node3/host")], listener=events.append) as backend:
        backend.alloc_and_transfer("node3/gpu:0", "w", numbers(4), LABEL)
    assert events[-1] == Copied("h2d", "node3/host", "node3/gpu:0", None, 3001, 16, LABEL)


def test_shared_names_and_topology_ids_are_refused(numba: type[Backend]) -> None:
    with pytest.raises(PlacementError, match="share a name"):
        numba([_spec("gpu:0", 500), _spec("gpu:0", 501)])
    with pytest.raises(PlacementError, match="share a name"):
        numba([_spec("gpu:0", 500)], [HostSpec(name="gpu:0", fence_bytes=4)])
    with pytest.raises(PlacementError, match="share a topology id: 500, 500"):
        numba([_spec("gpu:0", 500), _spec("gpu:1", 500)])


def test_arenas_whose_names_collide_have_different_poison_all_the_same(numba: type[Backend]) -> None:
    words: dict[int, str] = {}
    names = (f"rack{number * number % 997}/gpu:{number}" for number in range(100_000))
    one, two = next((seen, name) for name in names if (seen := words.setdefault(poison_word(name, 0), name)) != name)
    with numba([_spec(one, 1), _spec(two, 2)], request=5) as backend:
        assert backend.arenas()[one].poison != backend.arenas()[two].poison


def test_a_device_computes_what_the_host_computes(numba: type[Backend]) -> None:
    x, w, out = numbers(6).reshape(2, 3), numbers(12, -1.3).reshape(4, 3), np.empty((2, 4), np.float32)
    run_op("matmul", out, x, w)
    with bench(numba) as b:
        there = b.backend.alloc("gpu:1", "out", (2, 4), "fp32")
        b.backend.dispatch("gpu:1", "matmul", there, b.staged("gpu:1", "x", x), b.staged("gpu:1", "w", w), label=LABEL)
        assert np.array_equal(there.array, out)


def test_a_poisoned_token_id_is_a_device_fault(numba: type[Backend]) -> None:
    with bench(numba) as b:
        table, x = b.staged("gpu:0", "table", numbers(8).reshape(4, 2)), b.backend.alloc("gpu:0", "x", (1, 2), "fp32")
        tokens = b.backend.alloc("gpu:0", "tokens", (1,), "int32")
        with pytest.raises(BackendError, match=r"token id \d+ at index 0 is not below 4"):
            b.backend.dispatch("gpu:0", "embed", x, table, tokens, label=LABEL)


def test_a_new_file_is_a_new_backend(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "toy_box.py").write_text(TOY)
    monkeypatch.setattr(executor.backends, "__path__", [*executor.backends.__path__, str(tmp_path)])
    assert "toy" in find_backends()
    assert load_backend("toy").name == "toy"
    assert probe("toy") == ["a toy"]


def test_a_backend_without_its_library_says_so_in_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "lacking_one.py").write_text("import library_that_is_not_there\n")
    monkeypatch.setattr(executor.backends, "__path__", [*executor.backends.__path__, str(tmp_path)])
    with pytest.raises(BackendUnavailableError, match=r"backend lacking needs a library .*library_that_is_not_there"):
        load_backend("lacking")
    assert "library_that_is_not_there" in probe("lacking")


def test_listing_backends_loads_none_of_them() -> None:
    code = (
        "import sys; from executor.device import find_backends; assert 'numba' in find_backends();"
        "loaded = {'numba', 'cupy', 'executor.kernels'} & set(sys.modules); assert not loaded, loaded"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
