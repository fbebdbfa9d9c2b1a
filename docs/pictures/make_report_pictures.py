"""Makes the pictures of docs/reports.md anew: `python docs/pictures/make_report_pictures.py`, about a minute.

They come from the specifications that `kvwaybill report` draws. All are of shipped scenarios but the observation, whose
log is made up here, and the history, whose runs are: a handoff that takes longer from run to run.
"""

from __future__ import annotations

import copy
import random
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from scenarios.documents import write_data, write_document
from scenarios.reports.figures import figures_of
from scenarios.reports.history import Seen, history_document
from scenarios.reports.read import read_report_document
from scenarios.reports.render import png_of
from scenarios.reports.specs import spec_of

HERE = Path(__file__).parent
SCALE = {"matrix": 0.75}
MADE = {
    "tight.json": (["admit", "two-gpu-tight"], ("memory",)),
    "staged.json": (["admit", "two-gpu-staged"], ("timeline",)),
    "run.json": (["run", "two-gpu"], ("edges",)),
    "proof.json": (["prove", "two-gpu"], ("matrix",)),
    "chat.json": (["simulate", "chat"], ("latency", "links", "occupancy")),
    "pools.json": (["sweep", "chat-pools", "--fresh"], ("pareto",)),
}
"""File -> the command that makes it, and the pictures that are taken of it."""
ENGINE = "admit --fleet two-gpu-nvlink --engine vllm-nixl --isl 100 --osl 10 --plan-out"
LOG = (
    "INFO 12:00:01 KV Transfer metrics: Num successful transfers=4, Avg xfer time (ms)=0.081, "
    "Avg MB per transfer=0.137, Avg number of descriptors=70.0\n"
)
"""Made up: 7 blocks of 16 tokens, of 5 layers x (K, V) x 32 numbers of 4 B, are 143,360 B (0.13672 MiB)."""


def draw(kind: str, document: dict[str, Any], names: tuple[str, ...]) -> None:
    for figure in figures_of(kind, document):
        if figure.name in names:
            write_data(
                str(HERE / f"report-{figure.name}.png"), png_of(spec_of(figure), scale=SCALE.get(figure.name, 0.9))
            )


def history(run: dict[str, Any], plan: dict[str, Any]) -> dict[str, Any]:
    chance = random.Random(3)
    seen = []
    for number in range(12):
        made = copy.deepcopy(run) | {"tier": "on-device"}
        for span in made["spans"]:
            if span["phase"] == "handoff":
                span["end_ns"] = span["start_ns"] + int(13_058 * (1 + 0.02 * number + chance.uniform(-0.03, 0.03)))
        made["spans"] = [span for span in made["spans"] if span["phase"] == "handoff"]
        seen.append(Seen(source=f"run-{number}.json", document=made, plan=plan))
    return history_document(seen)


def observed(folder: str) -> dict[str, Any]:
    """A plan of the embedded model beside a line that vLLM would print of it."""
    plan, log = f"{folder}/engine.json", Path(folder) / "decode.log"
    log.write_text(LOG)
    for command in ([*ENGINE.split(), plan], ["compare", plan, str(log), "-o", "json"]):
        done = subprocess.run([sys.executable, "-m", "scenarios.cli", "-q", *command],
                              cwd=folder, capture_output=True, check=True)  # fmt: skip
    path = Path(folder) / "observed.json"
    path.write_bytes(done.stdout)
    return read_report_document(str(path))[1]


def main() -> None:
    with TemporaryDirectory() as folder:
        draw("comparison", observed(folder), ("closely",))
        for name, (command, pictures) in MADE.items():
            done = subprocess.run([sys.executable, "-m", "scenarios.cli", "-q", *command, "-o", "json"],
                                  cwd=folder, capture_output=True, check=False)  # fmt: skip
            path = Path(folder) / name
            path.write_bytes(done.stdout)
            draw(*read_report_document(str(path)), pictures)
        plan = Path(folder) / "plan.json"
        subprocess.run([sys.executable, "-m", "scenarios.cli", "-q", "admit", "two-gpu", "--plan-out", str(plan)],
                       cwd=folder, capture_output=True, check=True)  # fmt: skip
        told = history(read_report_document(f"{folder}/run.json")[1], read_report_document(str(plan))[1])
        write_document(f"{folder}/history.json", told)
        draw(*read_report_document(f"{folder}/history.json"), ("history",))


if __name__ == "__main__":
    main()
