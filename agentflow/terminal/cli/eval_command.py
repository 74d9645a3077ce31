"""`agentflow eval`: run a dataset, and compare the results with a baseline."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

import click

from agentflow.errors import UsageError
from agentflow.terminal.cli.failures import FAILED, CommandError, say
from agentflow.terminal.cli.loading import load_value
from agentflow.terminal.printer import make_console
from agentflow.testing.evaluation import Dataset, compare, read_baseline
from agentflow.testing.evaluation.dataset import RunOptions


@click.command()
@click.argument("dataset", metavar="MODULE:DATASET")
@click.option("--baseline", metavar="FILE", help="Compare with these results; exit code 1 if something is worse.")
@click.option("--save", "files", multiple=True, metavar="FILE", help="Write the results: .json or .xml (JUnit).")
@click.option("--repeats", type=click.IntRange(min=1), metavar="N", help="Number of runs of each case.")
@click.option(
    "--retries", type=click.IntRange(min=0), default=0, metavar="N", help="Retries of a failed call or check."
)
@click.option(
    "--concurrency",
    type=click.IntRange(min=1),
    default=8,
    show_default=True,
    metavar="N",
    help="Number of concurrent calls.",
)
@click.option("--timeout", type=click.FloatRange(0, min_open=True), metavar="SECONDS", help="Time limit of a call.")
@click.option(
    "--tolerance",
    type=click.FloatRange(0, 1, max_open=True),
    default=0.0,
    metavar="SHARE",
    help="How much lower the pass rate of a case can be than in the baseline.",
)
@click.option(
    "--min-rate", type=click.FloatRange(0, 1), metavar="SHARE", help="The minimum pass rate; 1 if there is no baseline."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--schema", metavar="FILE", help="Only write the JSON schema of the YAML files.")
def eval(  # noqa: A001 - the command's name
    dataset: str,
    baseline: str | None,
    files: Sequence[str],
    repeats: int | None,
    retries: int,
    concurrency: int,
    timeout: float | None,
    tolerance: float,
    min_rate: float | None,
    as_json: bool,
    schema: str | None,
) -> int:
    """Run a dataset, show the results, and compare them with a baseline."""
    found = load_value(dataset, Dataset, "shop.evals:refunds")
    options: RunOptions = {"concurrency": concurrency, "retries": retries, "timeout": timeout}
    if repeats is not None:
        options["repeats"] = repeats
    try:
        if schema is not None:
            Dataset.save_schema(schema, found.known)
            return 0
        known = None if baseline is None else read_baseline(baseline)  # before the calls, which cost money
        if known is not None and known.dataset != found.name:
            raise UsageError(f"The baseline is of the dataset {known.dataset!r:.80}, not {found.name!r:.80}.")
        report = asyncio.run(found.evaluate(**options))
        for file in files:
            report.save(file)
        comparison = None if known is None else compare(report, known, tolerance=tolerance)
    except (UsageError, OSError) as error:
        raise CommandError(str(error)) from error
    problems = () if comparison is None else comparison.problems
    least = 1.0 if min_rate is None and comparison is None else min_rate
    if least is not None and report.rate.mean < least - 1e-9:  # a mean of floats can be slightly too small
        problems = (*problems, f"the pass rate is {report.rate.mean:.0%}, but should be at least {least:.0%}")
    if as_json:
        say(json.dumps({**report.to_dict(), "problems": problems}))
    else:
        console = make_console()
        console.print(report)
        if comparison is not None:
            console.print(comparison)
        for problem in problems:
            say(f"agentflow: {problem}", err=True)
    return FAILED if problems else 0
