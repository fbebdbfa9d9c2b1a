"""`kvwaybill simulate`: requests over time on the fleet model."""

from __future__ import annotations

from typing import Annotated

import typer

from scenarios.cli import options as opt
from scenarios.cli.console import Console
from scenarios.cli.frame import YES, command, exit_code
from scenarios.cli.kinds import refuse_other_kinds
from scenarios.cli.reporting import Report, ReportOption, check_report, print_report, show_refusal, show_report

TraceOption = Annotated[
    str | None, typer.Option("--trace", metavar="FILE", help="Requests of a trace, in place of the scenario's.")
]
RecordsOut = Annotated[
    str | None, typer.Option("--records-out", metavar="FILE.jsonl", help="Write a record of each request here.")
]


def register(app: typer.Typer) -> None:
    """Adds the command."""

    @command(app, "simulate")
    def simulate(
        console: Console,
        scenario: Annotated[str, typer.Argument(metavar="SCENARIO", help="Simulation, scenario, or shipped name.")],
        trace: TraceOption = None,
        fleet: Annotated[str | None, typer.Option("--fleet", help="Another fleet.")] = None,
        model: Annotated[str | None, typer.Option("--model", help="Another model.")] = None,
        rate: Annotated[
            float | None, typer.Option("--rate", min=1e-6, max=1e7, metavar="R", help="Drawn requests a second.")
        ] = None,
        requests: Annotated[
            int | None, typer.Option("--requests", min=1, max=20_000_000, metavar="N", help="How many are drawn.")
        ] = None,
        seed: Annotated[int | None, typer.Option("--seed", min=0, help="Another seed of drawn requests.")] = None,
        records_out: RecordsOut = None,
        observed: Annotated[
            str | None, typer.Option("--observed", metavar="FILE.jsonl", help="Observed latencies to compare with.")
        ] = None,
        output: ReportOption = Report.text,
    ) -> int:
        """Simulate requests over time on admitted devices. 0 simulated, 1 refused, 3 cannot say.

        Latencies, goodput under SLOs, queues and bytes by edge. A simulation file names pools of prefill and decode
        devices and the requests: docs/simulation.md. The workload of a run scenario comes at a constant rate.
        """
        from scenarios.simulation.questions import Asked, load_question, run_question
        from scenarios.simulation.run import refusal_text

        refuse_other_kinds(scenario, ("simulation-scenario", "scenario"), "simulate takes a simulation or a scenario")
        check_report(output, timed=True)
        if records_out is not None:
            opt.check_out("--records-out", records_out)
        asked = Asked(fleet=fleet, model=model, seed=seed, trace=trace, rate=rate, requests=requests)
        done = run_question(load_question(scenario), asked, console.note)
        if done.document is None:
            if not show_refusal(output, scenario, done.verdict, refusal_text(done.plant)):
                console.result(refusal_text(done.plant))
            return exit_code(done.verdict)
        if observed is not None:
            from scenarios.simulation.observed import comparison, read_observed

            seen = read_observed(observed, len(done.traffic.arrival))
            done.document["observed"] = comparison(seen, done.traffic, done.outcome)
        if records_out is not None:
            from scenarios.documents import write_lines
            from scenarios.simulation.records import records

            write_lines(records_out, records(done.plant, done.traffic, done.outcome))
            console.note(f"records written to {records_out}")
        if output is Report.json:
            console.document(done.document)
        elif output is Report.chrome_trace:
            from scenarios.reports.read import RECORDS, records_of
            from scenarios.reports.trace import trace_text
            from scenarios.simulation.records import records

            lines = records_of(records(done.plant, done.traffic, done.outcome))
            print_report(trace_text([(RECORDS, lines, scenario)]))
        elif not show_report(console, output, done.document, "simulate"):
            from scenarios.simulation.text import simulation_text

            console.result(simulation_text(done.document, **console.look))
        return YES
