"""A progress bar for `batch`."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from agentflow.agent.orchestration.batch import BatchProgress


@contextmanager
def progress_bar(text: str = "calls", console: Console | None = None) -> Generator[Callable[[BatchProgress], None]]:
    """Show a progress bar on standard error while a block runs; nothing is printed if the output is not a terminal.

    Args:
        text: The text before the bar.
        console: The rich console to use instead.

    Yields:
        The function to pass as `batch(progress=...)`.
    """
    console = console or Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    failures = TextColumn("{task.fields[failures]}", style="red")
    with Progress(*columns, failures, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(text, total=None, failures="")

        def show(progress: BatchProgress) -> None:
            failed = f"{progress.failed} failed" if progress.failed else ""
            bar.update(task, completed=progress.done, total=progress.total, failures=failed)

        yield show
