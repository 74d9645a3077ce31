"""`backtest`: replay many recorded runs with a change, and report the decisions that would have been different.

Rules:

1. With `workers=0` all logs are evaluated in this process; otherwise in worker processes (`spawn`), each of which
   evaluates one log at a time.
2. If a worker process exceeds the limit or dies, the evaluation of its log ends, and the result contains the reason.
3. In worker processes, output of hooks goes to standard error, and the library logs nothing.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from multiprocessing import connection
from pathlib import Path
from typing import Any, Final

from loguru import logger

from agentflow._support.shown import described
from agentflow.errors import StoreError, UsageError
from agentflow.recording.backtest.judging import RunResult, Variant, judge
from agentflow.recording.backtest.report import BacktestReport, ResultFile
from agentflow.recording.keeping import LogStore
from agentflow.recording.reading import LogReader, read_lines

__all__ = ["backtest"]

_START: Final = 60.0
"""Seconds after which a process should have started and imported its modules."""


def backtest(
    runs: str | Path | LogStore | Iterable[str | Path | LogStore],
    make: Callable[[], Variant],
    *,
    workers: int = 0,
    limit: float = 60.0,
    results: str | Path | None = None,
) -> BacktestReport:
    """Replay recorded runs with a change, each up to its first difference from the recording.

    No model is called and no tool runs, unless the variant has a live `model`. Inside a running event loop use
    `asyncio.to_thread(backtest, ...)`.

    Args:
        runs: A run log, a folder of them (`*.jsonl`), a store, or several of these.
        make: Creates the agent and the change. It is called for each run, so that hooks share no state.
        workers: The number of worker processes; 0 means this process. With workers, `make` should be a module-level function.
        limit: The maximum number of seconds for each run in a worker process.
        results: A file that stores the results. A later backtest with the same settings reuses them.

    Raises:
        UsageError: There are no runs, a name or number is wrong, or `results` has other settings.
        StoreError: A log, a store or the results cannot be read.

    Example:
        >>> from agentflow.recording import Recorder
        >>> recorder = Recorder("runs/")
        >>> agent = Agent("a", ScriptedModel(["Hello!"]), hooks=[recorder])
        >>> reply = agent.call("Hi").block()
        >>> recorder.close()
        >>> print(backtest("runs/", lambda: Variant(agent)))
        1 runs: 1 as recorded, 0 changed, 0 not comparable
    """
    if workers < 0 or not limit > 0:
        raise UsageError(
            f"backtest: workers={workers}, limit={limit} are invalid; workers must be at least 0, and limit above 0."
        )
    file = ResultFile(None if results is None else Path(results), make().settings())
    found: list[RunResult] = []
    sources = [runs] if isinstance(runs, str | Path | LogStore) else list(runs)

    def jobs() -> Iterator[_Job]:
        for name, data in _logs(sources):
            digest = hashlib.sha256(data).hexdigest()
            known = [each for each in file.known if (each.log, each.digest) == (name, digest)]
            found.extend(known)
            if all(each.run for each in known):  # a result without a run means that the log is unreadable
                yield _Job(name, digest, data, frozenset([each.run for each in known]))

    try:
        results_here = (result for job in jobs() for result in _results_of(job, make))
        for result in _in_processes(jobs(), make, workers, limit) if workers else results_here:
            found.append(result)
            file.add(result)
    finally:
        file.close()
    if not found:
        raise UsageError("backtest: there are no run logs. A Recorder writes them: Recorder('runs/').")
    return BacktestReport(tuple(sorted(found, key=lambda each: (each.log, each.run))))


def _logs(runs: Iterable[str | Path | LogStore]) -> Iterator[tuple[str, bytes]]:
    """Read the logs, one at a time."""
    for source in runs:
        if not isinstance(source, str | Path):
            for log in source.logs().result():
                lines = source.log_lines(log.run_id).result().lines
                yield (
                    f"{getattr(source, 'url', source)}#{log.run_id}",
                    "\n".join(lines).encode("utf-8", "surrogatepass"),
                )
            continue
        for file in sorted(Path(source).rglob("*.jsonl")) if Path(source).is_dir() else [Path(source)]:
            try:
                yield str(file), file.read_bytes()
            except OSError as error:
                raise StoreError(f"The run log {file} cannot be read: {error.strerror}.") from error


@dataclass(frozen=True, slots=True)
class _Job:
    """A log to evaluate; `skip` contains the ids of runs that have a result already."""

    name: str
    digest: str
    data: bytes
    skip: frozenset[str]

    def failed(self, reason: str, run: str = "", passing: bool = False) -> RunResult:
        known = RunResult(log=self.name, run=run, digest=self.digest, status="incomparable")
        return replace(known, reason=reason, passing=passing)


def _results_of(job: _Job, make: Callable[[], Variant]) -> Iterator[RunResult]:
    try:
        log = read_lines(job.data.split(b"\n"), job.name)
    except Exception as error:  # a damaged log, or one of a newer version
        yield job.failed(described(error))
        return
    for run in log.run_ids:
        if run not in job.skip:
            try:
                yield replace(judge(log.run(run), make()), digest=job.digest)
            except Exception as error:  # the constructor of a hook may raise anything
                yield job.failed(described(error), run)


def _work(pipe: Any, make: Callable[[], Variant]) -> None:
    """Evaluate logs in a worker process until the main process ends it. The worker sends None when it is ready for a log."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the main process, which ends its workers
    sys.stdout = sys.stderr  # output of the user's code must not mix with the report
    logger.disable("agentflow")
    # Both are slow the first time, and should not use up the time limit of the first run.
    make()
    LogReader("")
    while True:
        pipe.send(None)
        for result in _results_of(pipe.recv(), make):
            pipe.send(result)


@dataclass(slots=True, eq=False)
class _Process:
    """A worker process, its job (None while it starts), and the deadline for its next message."""

    process: Any
    pipe: Any
    until: float
    job: _Job | None = None

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()


def _in_processes(jobs: Iterator[_Job], make: Callable[[], Variant], workers: int, limit: float) -> Iterator[RunResult]:
    """Evaluate logs in worker processes; yield each result when it is available."""
    # A forked process would inherit locks that other threads hold at that moment.
    context: Any = multiprocessing.get_context("spawn")
    running: dict[Any, _Process] = {}
    waiting = next(jobs, None)
    try:
        while waiting is not None or any(each.job for each in running.values()):
            while waiting is not None and len(running) < workers:
                pipe, child_end = context.Pipe()
                process = context.Process(target=_work, args=(child_end, make), daemon=True)
                process.start()
                child_end.close()  # otherwise reading would not raise `EOFError` when the process ends
                running[pipe] = _Process(process, pipe, time.monotonic() + _START)
            soonest = min(each.until for each in running.values())
            ready = connection.wait([*running], max(soonest - time.monotonic(), 0.0))
            for runner in [*running.values()]:
                failure = ""
                if runner.pipe not in ready and time.monotonic() >= runner.until:
                    failure = f"exceeded the limit of {_START if runner.job is None else limit:g} s"
                if runner.pipe in ready:
                    # Each message restarts the limit, so it holds for one run, not for a log with several.
                    runner.until = time.monotonic() + limit
                    try:
                        if (result := runner.pipe.recv()) is not None:
                            yield result
                        elif (job := waiting) is not None:
                            runner.job, waiting = job, next(jobs, None)
                            runner.pipe.send(job)
                        else:
                            running.pop(runner.pipe).end()
                    except (EOFError, OSError):
                        runner.process.join()
                        failure = f"ended with code {runner.process.exitcode}"
                if failure:
                    # Killed, since blocking code cannot be cancelled. The loop starts another process in its place.
                    running.pop(runner.pipe).end()
                    if runner.job is None:
                        raise UsageError(f"backtest: a process {failure} before its first run. Is `make` in a module?")
                    yield runner.job.failed(f"its process {failure}", passing=True)
    finally:
        for runner in running.values():
            runner.end()
