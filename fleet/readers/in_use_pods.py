"""`kubectl get pods -o json`: which nodes' GPUs are given to pods. A pod owns its GPUs whole, and does not say which.

Counted are limits of `nvidia.com/gpu`, `amd.com/gpu`, `gpu.intel.com/*` and MIG slices (`nvidia.com/mig-1g.10gb`), as
the scheduler counts: the sum over containers, or the largest init container if that is more. A container that is told
its GPUs (`NVIDIA_VISIBLE_DEVICES` with UUIDs) names them. Pods that have ended hold nothing. Shares of GPUs, and counts
that are no whole number, leave what is in use on the node unknown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from fleet.errors import DescriptionError
from fleet.readers.in_use import MAX_ROWS, Holding, InUse, SomeOf
from fleet.yaml_source import printable

_WHOLE = re.compile(r"nvidia\.com/gpu|amd\.com/gpu|gpu\.intel\.com/(?:i915|xe)")
_SLICE = re.compile(r"nvidia\.com/mig-([0-9]{1,2}g\.[0-9]{1,3}gb(?:\.me)?)")
_SHARED = re.compile(
    r".{0,100}/(?:gpu|mig|vgpu|vcuda|gpumem|gpu-mem|gpu-memory|gpu\.shared|.{0,60}\.shared)[a-z0-9.-]*"
)
_UUIDS = re.compile(r"(?:GPU|MIG)-[0-9A-Fa-f-]{8,64}(?:,(?:GPU|MIG)-[0-9A-Fa-f-]{8,64}){0,63}")
_ENDED = ("Succeeded", "Failed")


def read_pods(document: dict[str, Any], source: str) -> InUse:
    """The pods of a list, or one pod. Raises DescriptionError for a list that is none."""
    items = [document] if document.get("kind") == "Pod" else document.get("items")
    if not isinstance(items, list) or len(items) > MAX_ROWS:
        raise DescriptionError.at(source, "items", f"is no list of at most {MAX_ROWS:,} pods")
    holdings: list[Holding] = []
    some: list[SomeOf] = []
    told: list[str] = []
    pods = [item for item in items if isinstance(item, dict) and item.get("kind", "Pod") == "Pod"]
    if items and not pods:
        raise DescriptionError.at(source, "items", "holds no pod, but other things; give kubectl get pods -A -o json")
    if any(not isinstance(pod.get("spec"), dict) for pod in pods):
        raise DescriptionError.at(source, "items", "has a pod without spec; give kubectl get pods -A -o json, whole")
    for pod in pods:
        _read_pod(pod, holdings, some, told)
    if not (holdings or some or told):
        told.append(f"{source}: no pod of it has a GPU, so nothing is subtracted (all namespaces: kubectl get pods -A)")
    return InUse(source=source, format="pods", holdings=tuple(holdings), some=tuple(some), told=tuple(told))


def _read_pod(pod: dict[str, Any], holdings: list[Holding], some: list[SomeOf], told: list[str]) -> None:
    meta, spec, status = (_mapping(pod.get(name)) for name in ("metadata", "spec", "status"))
    name = printable(f"pod {meta.get('namespace', 'default')}/{meta.get('name', '?')}", 120)
    if status.get("phase") in _ENDED:
        return
    limits = _limits(spec)
    odd = sorted(key for key, count in limits.items() if count is None)
    told += [f"{name} asks for {printable(key, 80)}, and how much of a device that is cannot be told" for key in odd]
    wholes = sum(count for key, count in limits.items() if count and _WHOLE.fullmatch(key))
    slices = {found[1]: count for key, count in limits.items() if count and (found := _SLICE.fullmatch(key))}
    if not wholes and not slices and not odd:
        return
    node = spec.get("nodeName")
    if not isinstance(node, str):
        told.append(f"{name} waits for GPUs and is on no node yet")
        return
    if odd:
        some.append(SomeOf(what=name, node=node, count=None))
    uuids = [uuid for container in _containers(spec, "containers") for uuid in _uuids(container)]
    named = list(dict.fromkeys(uuids))
    holdings += [Holding(what=name, uuid=uuid, node=node, whole=True) for uuid in named]
    cards = wholes - sum(1 for uuid in named if uuid.startswith("GPU"))
    if cards > 0:
        some.append(SomeOf(what=name, node=node, count=cards))
    if not any(uuid.startswith("MIG") for uuid in named):
        some += [SomeOf(what=name, node=node, count=n, profile=profile) for profile, n in sorted(slices.items())]


def _limits(spec: dict[str, Any]) -> dict[str, int | None]:
    """{resource: count} of a pod; None for a resource of GPUs that is no whole number of devices."""
    running: dict[str, int | None] = {}
    for container in _containers(spec, "containers"):
        for key, count in _counted(container):
            held = running.get(key, 0)
            running[key] = None if count is None or held is None else held + count
    for container in _containers(spec, "initContainers"):
        for key, count in _counted(container):
            held = running.get(key, 0)
            running[key] = None if count is None or held is None else max(held, count)
    return running


def _counted(container: dict[str, Any]) -> Iterator[tuple[str, int | None]]:
    resources = _mapping(container.get("resources"))
    for key, value in (_mapping(resources.get("requests")) | _mapping(resources.get("limits"))).items():
        if _WHOLE.fullmatch(key) or _SLICE.fullmatch(key):
            text = str(value)
            yield key, int(text) if re.fullmatch(r"[0-9]{1,6}", text, re.ASCII) else None
        elif _SHARED.fullmatch(key):
            yield key, 0 if str(value) == "0" else None


def _uuids(container: dict[str, Any]) -> list[str]:
    """The GPUs that the environment of a container names by UUID."""
    for row in _list(container.get("env")):
        entry = _mapping(row)
        value = entry.get("value")
        if entry.get("name") == "NVIDIA_VISIBLE_DEVICES" and isinstance(value, str) and _UUIDS.fullmatch(value):
            return value.split(",")
    return []


def _containers(spec: dict[str, Any], name: str) -> list[dict[str, Any]]:
    return [container for container in _list(spec.get(name)) if isinstance(container, dict)]


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
