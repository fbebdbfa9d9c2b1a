"""Any Python program under the driver's witness: started, traced, and its copies set beside a plan if one is given."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from fleet.errors import BackendError, DescriptionError
from fleet.identity import uuid_key

__all__ = ["LIMITS", "against_plan", "witness_program"]

Document = dict[str, Any]
LIMITS = (
    "The driver's records are of copies and memsets: what a kernel itself reads or writes over a link, what a network"
    " card moves (RDMA), and what another process does is not seen.",
    "Bytes are payload. Small copies that CUDA inlines are recorded too; graphs give a record for each copy node.",
)
_PYTHONS = ("python", "python3")


def witness_program(command: Sequence[str]) -> Document:
    """Runs `python PROGRAM ...` and gives what the driver saw (`kvwaybill/witness/1`), with the program's exit code.

    Raises DescriptionError for anything but a Python program, BackendError when it left no record.
    """
    if not command:
        raise DescriptionError.at("command line", "COMMAND", "is missing; write: kvwaybill witness -- python PROGRAM")
    interpreter, *program = command
    if not os.path.basename(interpreter).startswith(_PYTHONS) or not program:
        told = f"{interpreter!r}: only Python programs can be traced; write: kvwaybill witness -- python PROGRAM"
        raise DescriptionError.at("command line", "COMMAND", told)
    with tempfile.TemporaryDirectory() as folder:
        result = os.path.join(folder, "trace.json")
        started = sys.executable if interpreter in _PYTHONS else interpreter
        try:
            done = subprocess.run(
                [started, "-m", "executor.observers.shim", result, *program], env=_environment(), check=False
            )
        except OSError as error:
            raise DescriptionError.at("command line", "COMMAND", f"{interpreter} cannot be started: {error}") from error
        if not os.path.exists(result):
            raise BackendError(f"the program ended with code {done.returncode} and left no record of its copies")
        with open(result, encoding="utf-8") as file:
            seen = json.load(file)
    uuids = {entry["ordinal"]: entry["uuid"] for entry in seen.get("devices", ())}
    for row in seen.get("copies", ()):
        row |= {"src_uuid": uuids.get(row["src_ordinal"]), "dst_uuid": uuids.get(row["dst_ordinal"])}
    return {"schema": "kvwaybill/witness/1", "program_code": done.returncode, **seen, "limits": list(LIMITS)}


def _environment() -> dict[str, str]:
    """Ours, with this project's packages where the program's interpreter finds them."""
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths)}


def against_plan(seen: Document, plan: Document) -> list[Document]:
    """Each edge of the plan beside what was seen of it: [{src, dst, kind, predicted_*, observed_*, verdict}].

    Ends are the planned UUIDs, or the ordinals of the ids where the plan knows no UUID. What was seen between other
    ends is `unplanned`. Kinds are the driver's own: a peer edge that was staged shows as a copy down and one up.
    """
    ordinals = _ordinals(seen, plan)
    left: dict[tuple[str, Any, Any], list[int]] = {}
    for row in seen.get("copies", ()):
        if row.get("looks"):
            continue  # what the traced run's own witnesses read to look: in the list, and of no edge
        held = left.setdefault((row["kind"], row["src_ordinal"], row["dst_ordinal"]), [0, 0])
        held[0] += row["bytes"]
        held[1] += row["copies"]
    rows = []
    for edge in plan["edges"]:
        key = (edge["kind"], ordinals.get(edge["src"]), ordinals.get(edge["dst"]))
        nbytes, copies = left.pop(key, (0, 0))
        same = (nbytes, copies) == (edge["bytes"], edge["copies"])
        verdict = "match" if same else "missing" if not copies else "mismatch"
        rows.append(_row(edge, edge["bytes"], edge["copies"], nbytes, copies, verdict))
    for (kind, src, dst), (nbytes, copies) in left.items():
        ends = {"src": _told(src), "dst": _told(dst), "kind": kind}
        rows.append(_row(ends, 0, 0, nbytes, copies, "unplanned"))
    return rows


def _told(ordinal: int | None) -> str:
    return "host" if ordinal is None else f"cuda:{ordinal}"


def _row(ends: Mapping[str, Any], bytes_: int, copies: int, seen: int, seen_copies: int, verdict: str) -> Document:
    return {
        "src": ends["src"], "dst": ends["dst"], "kind": ends["kind"], "predicted_bytes": bytes_,
        "predicted_copies": copies, "observed_bytes": seen, "observed_copies": seen_copies, "verdict": verdict,
    }  # fmt: skip


def _ordinals(seen: Document, plan: Document) -> dict[str, int]:
    """CUDA ordinal by device id; hosts and processors have none."""
    by_uuid = {uuid_key(entry["uuid"]): entry["ordinal"] for entry in seen.get("devices", ())}
    found = {}
    for device in plan["orders"]["devices"]:
        if device["kind"] != "gpu":
            continue
        known = by_uuid.get(uuid_key(device.get("uuid"))) if device.get("uuid") else device.get("index")
        if known is not None:
            found[device["id"]] = known
    return found
