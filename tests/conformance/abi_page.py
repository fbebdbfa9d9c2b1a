"""Writes docs/topology-ids.md from the signatures of the device ABI: `python -m tests.conformance.abi_page`."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

from executor import events
from executor.device import Backend

PAGE = Path(__file__).resolve().parents[2] / "docs" / "topology-ids.md"
DEVICE_PARAMETERS = ("device", "src_device", "dst_device", "host_role")
HEAD = """\
# How topology ids reach each entry point

Generated from the signatures of `executor.device.Backend`; a test fails when this page and the code differ.
Write it again with `python -m tests.conformance.abi_page`.

Every call names its device by id. The base class looks the id up among the `DeviceSpec`s of the orders, each of which
carries its `topology_id`; an id outside them is refused. The arena table then tells, from the *address* of every buffer
of the call, whose memory it is; a buffer of another device is refused. Only then is the hook called, with the whole
`DeviceSpec` of each end, while the device is selected. Events carry the topology ids of the ends (none for a host), and
are made by the base class after the hook returned.

"""


def _methods() -> list[tuple[str, Callable[..., Any]]]:
    members = inspect.getmembers(Backend, inspect.isfunction)
    public = [(name, f) for name, f in members if not name.startswith("_")]
    return sorted(public, key=lambda member: inspect.getsourcelines(member[1])[1])


def entry_points() -> list[tuple[str, Callable[..., Any]]]:
    """Public methods of the ABI that name a device or host role, in the order of the source."""
    return [(name, f) for name, f in _methods() if set(inspect.signature(f).parameters) & set(DEVICE_PARAMETERS)]


def other_methods() -> list[str]:
    """Public methods that concern no single device."""
    named = {name for name, _ in entry_points()}
    return [name for name, _ in _methods() if name not in named]


def _nodes(function: Callable[..., Any], seen: set[str]) -> Iterator[ast.Call]:
    """The calls that a method makes, those of the methods of its own that it calls included."""
    for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(function)))):
        if not isinstance(node, ast.Call):
            continue
        yield node
        called = node.func
        if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name) and called.value.id == "self":
            inner = inspect.getattr_static(Backend, called.attr, None)
            if inspect.isfunction(inner) and called.attr not in seen:
                seen.add(called.attr)
                yield from _nodes(inner, seen)


def _hooks(function: Callable[..., Any]) -> list[str]:
    found = []
    for call in _nodes(function, set()):
        if isinstance(call.func, ast.Attribute) and call.func.attr == "_hook":
            found += [a.attr for a in call.args if isinstance(a, ast.Attribute) and hasattr(Backend, a.attr)]
    return list(dict.fromkeys(found))


def _hook_text(name: str) -> str:
    parameters = list(inspect.signature(getattr(Backend, name)).parameters.values())
    ends = [p.name for p in parameters if "DeviceSpec" in str(p.annotation)]
    return f"`{name}({', '.join(ends)}, ...)`" if len(parameters) > 1 + len(ends) else f"`{name}({', '.join(ends)})`"


def _event_texts(function: Callable[..., Any]) -> list[str]:
    kinds = {kind.__name__: kind for kind in get_args(events.Event)}
    made = [
        call.func.id for call in _nodes(function, set()) if isinstance(call.func, ast.Name) and call.func.id in kinds
    ]
    fields = {name: [f for f in kinds[name].__dataclass_fields__ if "topology_id" in f] for name in made}
    return [f"`{name}.{field}`" for name, names in fields.items() for field in names]


def page() -> str:
    """The page as it must be."""
    rows = ["| entry point | named by | buffers found by address | hook, and the ends it gets | topology id reported |"]
    rows.append("|---|---|---|---|---|")
    for name, function in entry_points():
        parameters = inspect.signature(function).parameters.values()
        ends = ", ".join(f"`{p.name}`" for p in parameters if p.name in DEVICE_PARAMETERS)
        buffers = ", ".join(
            f"`{p.name}`" for p in parameters if "Buffer" in str(p.annotation) or p.annotation == "Host"
        )
        hooks = ", ".join(_hook_text(hook) for hook in _hooks(function))
        told = ", ".join(_event_texts(function))
        rows.append(f"| `{name}` | {ends} | {buffers or '-'} | {hooks or '-'} | {told or '-'} |")
    rest = ", ".join(f"`{name}`" for name in other_methods())
    return HEAD + "\n".join(rows) + f"\n\nMethods that concern no single device: {rest}.\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
