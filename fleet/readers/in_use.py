"""What others hold of a fleet's memory now: admitted plans, nvidia-smi's CSV, or the pods of a cluster. By content.

`DEVICE=BYTES` in place of a text states the use of one device, and stands against every text.

A reader says what its text says and no more: a row that names a GPU by UUID, PCI address or index, a plan's device, or
that some devices of a node are taken without saying which. `planner.in_use` finds the devices of a fleet for them.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal

from fleet.errors import DescriptionError
from fleet.units import UnitError, parse_bytes
from fleet.yaml_source import printable

__all__ = ["STATED", "Holding", "InUse", "SomeOf", "read_in_use", "read_stated"]

STATED = "--in-use"
"""The source of what is stated in words."""

MAX_ROWS = 100_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Holding:
    """Bytes that somebody holds of one device; None = unknown. `whole`: the device is given to him alone.

    The device is named by its id (`device`), by UUID, by PCI address, or by its index on `node` (None: the only node).
    `capacity_bytes`: the size that the text states for the device.
    """

    what: str
    bytes: int | None = None
    device: str | None = None
    uuid: str | None = None
    pci: str | None = None
    index: int | None = None
    node: str | None = None
    whole: bool = False
    capacity_bytes: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class SomeOf:
    """`count` devices of a node are taken; which ones is not said. `profile`: slices of this profile, None: cards.

    `count` None: what of its GPUs and slices is taken is not said either, as of shares.
    """

    what: str
    node: str
    count: int | None
    profile: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class InUse:
    """One text. `told`: what it says that names no device. `plan_ids` and `fleets` (name, digest): of plans."""

    source: str
    format: Literal["plan", "nvidia-smi", "pods", "stated"]
    holdings: tuple[Holding, ...] = ()
    some: tuple[SomeOf, ...] = ()
    told: tuple[str, ...] = ()
    plan_ids: tuple[str, ...] = ()
    fleets: tuple[tuple[str, str], ...] = ()


def read_stated(word: str, devices: Collection[str]) -> InUse | None:
    """What `gpu:1=12 GiB` states; None where the word begins with no device of these. Raises DescriptionError."""
    name, equals, size = word.rpartition("=")
    if not equals or name not in devices:
        return None
    try:
        held = parse_bytes(size)
    except UnitError as error:
        raise DescriptionError.at("command line", f"--in-use {name}", str(error)) from None
    return InUse(source=STATED, format="stated", holdings=(Holding(what=word, bytes=held, device=name),))


def read_in_use(text: str, source: str) -> InUse:
    """What a text says is in use. Raises DescriptionError with every fault; of plans the caller checks the document."""
    start = text.lstrip("\ufeff \t\r\n")[:1]
    if not start:
        raise DescriptionError.at(source, "", "is empty; give a plan, nvidia-smi's CSV, or kubectl get pods -o json")
    if start != "{":
        from fleet.readers.in_use_smi import read_smi

        return read_smi(text, source)
    from fleet.checkpoints.json_text import parse_object

    document, _ = parse_object(text.encode("utf-8", "surrogatepass"), source)
    return read_in_use_document(document, source)


def read_in_use_document(document: dict[str, Any], source: str) -> InUse:
    """A parsed JSON text: plans of kvwaybill, or the pods of a cluster."""
    schema = document.get("schema")
    if isinstance(schema, str) and schema.startswith("kvwaybill/"):
        from fleet.readers.in_use_plan import read_plans

        return read_plans(document, schema, source)
    if document.get("kind") in ("List", "PodList", "Pod"):
        from fleet.readers.in_use_pods import read_pods

        return read_pods(document, source)
    kind = document.get("kind")
    what = f"kind {printable(kind)}" if isinstance(kind, str) else "JSON of no kind that is known here"
    raise DescriptionError.at(source, "", f"is {what}; give an admitted plan, or kubectl get pods -o json")
