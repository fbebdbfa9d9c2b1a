"""The two-GPU acceptance: `python -m scenarios.acceptance.two_gpu --out DIR [--golden DIR] [--scratch DIR] [--large]`.

Predictions are written before anything runs. Then: single runs and splits both ways, direct and staged, on llama2.c's
recorded runs and on made-up prompts; a proof with every sabotage; one plan under another order of visible devices; link
counters and rates; with --large a checkpoint of the 7B shape. Ends with 0 when all of it holds on two cards, 1 when
something does not, 3 on a machine with one card: everything runs there too, emulated, and claims no two devices.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from typing import Any

from executor.backends import cupy_gpu
from executor.cuda.driver import Card, DriverError
from fleet.dump import fleet_yaml
from fleet.errors import KvWaybillError
from scenarios.acceptance import parts
from scenarios.acceptance.cases import Case, freeze, golden_cases, plain_cases
from scenarios.acceptance.checkpoint import write_random_checkpoint
from scenarios.acceptance.fleets import agreement, planned_fleet, staged_text, topology_text
from scenarios.documents import write_document, write_text

YES, NO, BROKEN_INPUT, CANNOT_SAY = 0, 1, 2, 3
SKU = "h200-sxm-141"
_VOCAB = {"15M": 32000}
ONE_CARD = "\tGPU0\tGPU1\nGPU0\t X \tNV18\nGPU1\tNV18\t X \n"
"""The topology that a machine with one card plays, emulated."""


def main(arguments: list[str] | None = None) -> int:
    """See the module. Results go to --out; a table to stdout."""
    asked = _parser().parse_args(arguments)
    try:
        return accept(asked)
    except (KvWaybillError, DriverError) as error:
        sys.stderr.write(f"error: {error}\n")
        return CANNOT_SAY


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m scenarios.acceptance.two_gpu", description=__doc__)
    parser.add_argument("--out", required=True, help="folder for plans, results and the summary")
    parser.add_argument("--golden", help="folder with golden.json and stories260K.bin")
    parser.add_argument("--scratch", help="folder for checkpoints that are made up (15M shape; 27 GB with --large)")
    parser.add_argument("--large", action="store_true", help="also a 7B-shaped checkpoint and a 2,048-token prefill")
    parser.add_argument("--sku", default=SKU, help="the cards' figures in the fleet catalog")
    parser.add_argument("--quick", action="store_true", help="one length, no proof: to see that it runs")
    return parser


def accept(asked: argparse.Namespace) -> int:
    """The whole acceptance; gives the exit code."""
    os.makedirs(asked.out, exist_ok=True)
    driver = cupy_gpu.make_driver()
    cards = [driver.card(ordinal) for ordinal in range(driver.count())]
    two = len({card.uuid for card in cards}) > 1 and len({card.pci for card in cards}) > 1
    summary: dict[str, Any] = {
        "schema": "kvwaybill/acceptance/1", "versions": driver.versions(), "settings": driver.settings(),
        "cards": [{"ordinal": c.ordinal, "name": c.name, "pci": c.pci, "bytes": c.total_bytes} for c in cards],
        "two_uuids_and_pci_addresses": two,
        "peer_access": [
            {"src": a.ordinal, "dst": b.ordinal, "can": driver.can_access_peer(a.ordinal, b.ordinal)}
            for a in cards for b in cards if a.ordinal != b.ordinal
        ],
    }  # fmt: skip
    fleets, summary["fleet"] = _fleets(asked, cards, two)
    cases = list(_cases(asked))
    plans = freeze(cases, fleets, os.path.join(asked.out, "plans"))
    summary["frozen"] = {"plans": len(plans), "at": time.time()}
    bench = parts.Bench(out=asked.out, fleets=fleets, emulate=not two, cards=cards)
    summary["runs"] = parts.run_all(bench, cases, plans)
    if not asked.quick:
        summary["proof"] = parts.proof_of(bench, cases)
    if two:
        summary["other_order"] = parts.other_order(bench, cases)
        summary["links"] = parts.links(driver)
    write_document(os.path.join(asked.out, "summary.json"), summary)  # what follows may take minutes
    if asked.large:
        summary["large"] = parts.large(bench, os.path.join(asked.scratch or asked.out, "7B.bin"), summary.get("links"))
    return _finish(asked.out, summary, two)


def _fleets(asked: argparse.Namespace, cards: list[Card], two: bool) -> tuple[dict[bool, str], dict[str, Any]]:
    """The fleet files (by staged), and how their description came about."""
    text = topology_text() if two else None
    planned = planned_fleet(text or ONE_CARD, cards if two else [], asked.sku)
    paths = {staged: os.path.join(asked.out, f"fleet-{'staged' if staged else 'direct'}.yaml") for staged in (0, 1)}
    write_text(paths[0], fleet_yaml(planned))
    write_text(paths[1], staged_text(planned))
    told = agreement(planned) if two and text else {"agree": None, "why": "no topology of two cards to import"}
    return {bool(staged): path for staged, path in paths.items()}, told


def _cases(asked: argparse.Namespace) -> list[Case]:
    cases = [] if asked.golden is None else list(golden_cases(asked.golden))
    if asked.quick:
        return cases[:6] or list(plain_cases(None, 64, (16,), "embedded "))
    cases += plain_cases(None, 64, label="embedded ")
    if asked.scratch:
        path = os.path.join(asked.scratch, "15M.bin")
        write_random_checkpoint(path, "15M")
        cases += plain_cases(path, _VOCAB["15M"], (64,), "15M shape ")
    return cases


def _finish(out: str, summary: dict[str, Any], two: bool) -> int:
    wrong = parts.what_is_wrong(summary)
    summary["wrong"] = wrong
    summary["verdict"] = "different" if wrong else "accepted" if two else "cannot claim two devices"
    write_document(os.path.join(out, "summary.json"), summary)
    sys.stdout.write(parts.table(summary))
    if wrong:
        return NO
    return YES if two else CANNOT_SAY


if __name__ == "__main__":
    raise SystemExit(main())
