"""`check_hook`: a conformance suite for hooks.

It runs a hook through every event, with calls and with streams, with other hooks in random orders, in fifty runs at once,
with failing models and tools, and cancelled at many points. The findings are typed values.

Rules:

1. Everything runs in virtual time in separate event loops, so a hook that waits an hour is checked immediately.
2. A difference is reported only if it is reproducible. If a hook's results vary (a clock, random numbers), a note reports
   this, and the varying parts are not compared.
3. All random choices derive from the seed, which the report prints.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
import warnings
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, TypedDict, TypeVar, Unpack, cast

from loguru import logger

from agentflow._support.once import failures_expected
from agentflow.errors import UsageError
from agentflow.hooks.functions import FunctionHook
from agentflow.hooks.hook import Hook
from agentflow.hooks.hook_checks import check
from agentflow.hooks.recording import ChangeListener, HookCall
from agentflow.testing.hook_checks.isolation import WatchedResult, run_watched
from agentflow.testing.hook_checks.judging import caused_by_cancellation, shown
from agentflow.testing.hook_checks.neighbours import neighbours
from agentflow.testing.hook_checks.observations import Observations
from agentflow.testing.hook_checks.playing import PATHS, Path, PlayResult, play
from agentflow.testing.hook_checks.probes import (
    After,
    Before,
    Canceller,
    Offered,
    Saves,
    Witness,
    watch_cancellations,
)
from agentflow.testing.hook_checks.report import HookReport
from agentflow.testing.hook_checks.scenes import SCENES, Scene, SceneStage
from agentflow.testing.hook_checks.watchdog import Watchdog
from agentflow.testing.suite import no_loop_here
from agentflow.vocabulary.events import CallEnded, Error, HookEvent

T = TypeVar("T")
_LOOP = "agentflow.loop.emitting"  # the module that logs failures of hooks
_CONCURRENT_SCENES = ("tools", "an answer", "a long conversation", "a model that stumbles", "odd replies")
_CANCELLED_SCENES = ("tools", "a long conversation")


class HookCheckOptions(TypedDict, total=False):
    """The options of `check_hook`."""

    deps: object
    raises: tuple[type[BaseException], ...]
    runs: int
    orders: int
    cancellations: int
    seed: int
    timeout: float


def check_hook(
    hook: Hook | type[Hook] | Callable[[], Hook],
    *,
    deps: object = None,
    raises: tuple[type[BaseException], ...] = (),
    runs: int = 50,
    orders: int = 12,
    cancellations: int = 24,
    seed: int = 0,
    timeout: float = 10.0,
) -> HookReport:
    """Check a hook, and report its flaws.

    Args:
        hook: The hook's class, a function that creates a hook, or an instance, whose state all runs then share.
        deps: The `deps=` of the calls, if the hook needs them.
        raises: Exceptions that the hook raises by design; errors of agentflow need not be listed.
        runs: The number of concurrent runs of one instance.
        orders: The number of random orders with other hooks.
        cancellations: The number of points at which runs of a scene are cancelled, called and streamed (in two scenes).
        seed: The seed of the random choices.
        timeout: Seconds of real time that a run's thread may be idle without progress before it counts as hanging.

    Returns:
        The report; `report.assert_clean()` raises an error with its text.

    Raises:
        UsageError: The hook cannot be created or registered, or an event loop runs in this thread (use `check_hook_async`
            there).

    Example:
        >>> class Greeter(Hook):
        ...     def on_event(self, event):
        ...         if isinstance(event, PreCall):
        ...             event.input_messages = (Msg.user("Good morning."), *event.input_messages)
        ...         return event
        >>> check_hook(Greeter, runs=5, orders=2, cancellations=4).assert_clean()
    """
    no_loop_here("check_hook")
    return _HookCheck(hook, deps, raises, runs, orders, cancellations, seed, timeout).report()


async def check_hook_async(
    hook: Hook | type[Hook] | Callable[[], Hook], **options: Unpack[HookCheckOptions]
) -> HookReport:
    """Run `check_hook` in a thread, for use in coroutines.

    Args:
        hook: As in `check_hook`.
        options: As in `check_hook`.

    Example:
        >>> report = await check_hook_async(RetryEmptyAnswers, runs=5, orders=2, cancellations=4)
        >>> report.clean
        True
    """
    return await asyncio.to_thread(check_hook, hook, **options)


def _maker(hook: object) -> Callable[[], Hook]:
    """Return a function that creates the hook, and raises a `UsageError` if it cannot."""
    if isinstance(hook, Hook):
        return lambda: hook
    if isinstance(hook, type) and not issubclass(hook, Hook):
        raise UsageError(f"check_hook takes a Hook, its class, or a function that makes one, not {hook.__name__}.")
    if not callable(hook):
        raise UsageError(f"check_hook takes a Hook, its class, or a function that makes one, not {hook!r:.60}.")
    make = cast("Callable[[], object]", hook)

    def made() -> Hook:
        try:
            found = make()
        except TypeError as error:
            if isinstance(hook, type):
                raise UsageError(
                    f"{hook.__name__}() cannot be created without arguments ({error}). Use "
                    f"check_hook(lambda: {hook.__name__}(...))."
                ) from error
            raise
        if not isinstance(found, Hook):
            name = getattr(make, "__name__", repr(make))
            raise UsageError(
                f"check_hook({name}): calling it returned {type(found).__name__}, not a Hook. Turn a function into "
                "a hook with @on."
            )
        return found

    return made


def _files(hook: Hook) -> frozenset[str]:
    """Return the source files of a hook's own code."""
    owners: list[Any] = [kind for kind in type(hook).__mro__ if kind not in (Hook, FunctionHook, object)]
    if isinstance(hook, FunctionHook):
        owners = [inspect.unwrap(cast("FunctionHook[Any]", hook).handler)]
    found: set[str] = set()
    for owner in owners:
        try:
            found.add(inspect.getfile(owner))
        except (TypeError, OSError):
            continue
    return frozenset(found)


class _HookCheck:
    """One check of one hook: the phases, each with many runs."""

    def __init__(
        self,
        hook: object,
        deps: object,
        raises: tuple[type[BaseException], ...],
        runs: int,
        orders: int,
        cancellations: int,
        seed: int,
        timeout: float,
    ) -> None:
        self.make = _maker(hook)
        first = self.make()
        check(first)
        self.deps = deps
        self.runs = runs
        self.orders = orders
        self.cancellations = cancellations
        self.seed = seed
        self.timeout = timeout
        self.random = Random(seed)
        self.observations = Observations(first.name, raises)
        self.kinds: set[str] = set()
        self.count = 0
        self.watchdog = Watchdog(_files(first))

    def report(self) -> HookReport:
        """Run the whole suite."""
        logs = _log_is_on()
        logger.disable(_LOOP)  # it would log every planted failure: thousands of lines
        try:
            with self.watchdog, failures_expected(), warnings.catch_warnings(record=True) as warned:
                warnings.simplefilter("always")
                for phase in (self._scenes, self._paths, self._together, self._orders_with_others, self._cancelled):
                    if self._enough():
                        break
                    phase()
            self.observations.judge_warnings(warned)
        finally:
            if logs:
                logger.enable(_LOOP)
        for owner, doing in self.watchdog.blamed.items():
            self.observations.findings.add("blocking", f"blocks the event loop in {owner}", evidence=doing)
        return HookReport(
            self.observations.name,
            self.observations.findings.sorted(),
            frozenset(self.kinds),
            self.count,
            self.seed,
            tuple(self.observations.notes),
        )

    def _enough(self) -> bool:
        """Whether to stop early: a hook that blocks or hangs would do so in every run."""
        if self.watchdog.blamed or "hang" in self.observations.findings:
            self.observations.note("stopped early: fix the blocking or hanging code first")
            return True
        return False

    # ---- phases

    def _scenes(self) -> None:
        """Play every scene called and streamed, twice with one hook, with probes that detect its errors and illegal edits."""
        for scene in SCENES.values():
            for path in PATHS:
                if self._enough():
                    return
                hook = self.make()
                self._probe(f"{scene.name}, {path}", scene, path, hook)
                self._probe(f"{scene.name}, {path}, again", scene, path, hook)

    def _probe(self, where: str, scene: Scene, path: Path, hook: Hook) -> None:
        witness, before, after = Witness(), Before(hook, self.observations.judge), After(self.observations.edited)
        probes = (
            hook,
            witness,
            before,
            Offered(after),
            after,
            Saves(self.observations.unsavable),
            _Errors(self.observations.failed),
        )
        stage = SceneStage(scene, 1, probes, repaired=after.repaired)
        ran = self._run(where, lambda: self._play(scene, 1, path, probes, stage))
        outcome = ran.value.outcomes[-1] if ran.value is not None else ""
        if scene.name == "an answer" and ": " in outcome and not self.observations.findings.sorted():
            self.observations.note(
                f"even the simplest call fails with {outcome:.100}, so later steps are hardly checked"
            )
        self.kinds |= witness.kinds | before.kinds

    def _paths(self) -> None:
        """Play every scene with the hook alone, called and streamed; the results should be equal."""
        for scene in SCENES.values():
            if self._enough():
                return
            self._compare_paths(f"{scene.name}", scene, lambda: [self.make()])

    def _compare_paths(self, where: str, scene: Scene, hooks: Callable[[], list[Hook]]) -> None:
        called, streamed = (self._played(f"{where}, {path}", scene, path, hooks()) for path in PATHS)
        if called is None or streamed is None:
            return
        different = called.differences(streamed)
        if not different:
            return
        again = [self._played(f"{where}, {path}", scene, path, hooks()) for path in PATHS]
        for first, second in zip((called, streamed), again, strict=True):
            for name in first.differences(second) if second is not None else ():
                self.observations.varies(name)
                different.pop(name, None)
        for name, evidence in different.items():
            self.observations.findings.add(
                "streaming",
                f"results in different {name} when the call is streamed",
                evidence=f"{evidence} (called and streamed, in {where!r})",
            )

    def _together(self) -> None:
        """Run many jobs at once on one instance, and compare each with the same job run alone."""
        # The scene and the path change at different rates, so that each scene is played on both paths.
        jobs: list[tuple[int, Scene, Path]] = [
            (n, SCENES[_CONCURRENT_SCENES[n % len(_CONCURRENT_SCENES)]], PATHS[n // 2 % 2])
            for n in range(1, self.runs + 1)
        ]

        def alone(job: int, scene: Scene, path: Path) -> PlayResult | None:
            return self._played(f"{scene.name}, {path}, job {job} alone", scene, path, [self._fresh()], job)

        single = [alone(*job) for job in jobs]
        shared = self.make()

        async def all_jobs() -> list[PlayResult]:
            return list(await asyncio.gather(*(self._play(scene, n, path, [shared]) for n, scene, path in jobs)))

        together = self._run(f"{self.runs} runs at once", all_jobs)
        for job, one, concurrent in zip(jobs, single, together.value or (), strict=False):
            different = one.differences(concurrent) if one is not None else {}
            # A field that also differs between two runs alone varies by itself, so it shows no shared state.
            for _ in range(2 if different else 0):
                second = alone(*job)
                for name in one.differences(second) if one is not None and second is not None else ():
                    self.observations.varies(name)
                    different.pop(name, None)
            for name, evidence in different.items():
                self.observations.findings.add(
                    "shared_state",
                    f"results in different {name} when other runs are active",
                    evidence=f"{evidence} (alone and among {self.runs}, job {job[0]} in {job[1].name!r})",
                )

    def _orders_with_others(self) -> None:
        """Run with other hooks of all roles, some of them failing, in random orders."""
        for n in range(self.orders):
            if self._enough():
                return
            scene = self.random.choice([*SCENES.values()])
            seed = self.random.random()

            def hooks(seed: float = seed) -> list[Hook]:
                random = Random(seed)
                found = [*neighbours(random), _Errors(self.observations.failed)]
                found.insert(random.randint(0, len(found)), self.make())
                return found

            self._compare_paths(f"{scene.name}, order {n}", scene, hooks)

    def _cancelled(self) -> None:
        """Cancel runs at events and between them; a run should end immediately, and not affect the next call."""
        for name in _CANCELLED_SCENES:
            for path in PATHS:
                for n in range(self.cancellations):
                    if self._enough():
                        return
                    self._cancel(SCENES[name], path, n)

    def _cancel(self, scene: Scene, path: Path, n: int) -> None:
        """Cancel one run, some loop turns after an event or at a point in virtual time."""
        hook = self.make()
        # A run with fewer events than `at` is not cancelled, so half of the points are early.
        at = self.random.randint(0, 40 if n % 2 else 12)
        turns = self.random.randint(0, 3)
        moment = self.random.randint(0, 40) / 1000
        cancelled = False
        doing = "the run"
        behaviour: list[str] = []
        watch_cancellations(hook, behaviour.append)

        async def cancellable_run() -> asyncio.Task[PlayResult]:
            nonlocal doing

            def cancel() -> None:
                nonlocal cancelled
                cancelled = not task.done() and task.cancel()

            hooks: list[Hook] = [hook]
            if n % 3:  # every third run is cancelled at a point in time instead
                hooks.append(Canceller(at, turns, cancel))
            work = play(scene, 1, path, hooks, self.deps, self.observations.failed, continue_after_failure=False)
            task = asyncio.get_running_loop().create_task(work, name="cancellable_run")
            if not n % 3:
                asyncio.get_running_loop().call_later(moment, cancel)
            await asyncio.wait([task])  # unlike `await task`, it does not raise
            doing = "the call after it"
            await self._play(SCENES["tools"], 2, "called", [hook])
            return task

        point = f"event {at} and {turns} turns" if n % 3 else f"{moment * 1000:g} ms"
        where = f"{scene.name}, {path}, cancelled at {point}"
        ran = self._run(where, cancellable_run)
        task = ran.value
        if task is None:
            if ran.hung and doing != "the run":
                self.observations.note("the call after a cancelled one hangs: a resource was not released")
            return
        if cancelled and not task.cancelled():
            error = task.exception()
            if error is None or caused_by_cancellation(error):
                behaviour.append(f"it raised {shown(error)}" if error is not None else "it ran to completion")
        if cancelled and behaviour:
            self.observations.findings.add(
                "cancellation", "swallows the cancellation of its run", evidence=f"{behaviour[0]} (in {where!r})"
            )

    # ---- runs

    async def _play(
        self, scene: Scene, job: int, path: Path, hooks: Sequence[Hook], stage: SceneStage | None = None
    ) -> PlayResult:
        return await play(scene, job, path, hooks, self.deps, self.observations.failed, stage)

    def _played(self, where: str, scene: Scene, path: Path, hooks: Sequence[Hook], job: int = 1) -> PlayResult | None:
        return self._run(where, lambda: self._play(scene, job, path, hooks)).value

    def _run(self, where: str, work: Callable[[], Any]) -> WatchedResult[Any]:
        self.count += 1
        self.observations.where = where
        ran = run_watched(work, self.watchdog, self.timeout)
        self.observations.of_run(ran)
        return ran

    def _fresh(self) -> Hook:
        """Return a hook that shares no state with other runs: a copy if the maker always returns the same instance."""
        hook = self.make()
        if hook is not self.make():
            return hook
        try:
            return copy.deepcopy(hook)
        except Exception:
            self.observations.note(
                "the instance cannot be copied, so single runs share its state; pass its class or a function"
            )
            return hook


def _log_is_on() -> bool:
    """Whether agentflow's log is enabled."""
    lines: list[str] = []
    sink = logger.add(lines.append, level=1, format="{message}")
    try:
        logger.log(1, "a check of a hook begins")
    finally:
        logger.remove(sink)
    return bool(lines)


class _Errors(ChangeListener):
    """Reports all errors of a run, including those that do not end a call."""

    events = (Error,)

    def __init__(self, failed: Callable[..., None]) -> None:
        self.failed = failed

    def on_event(self, event: HookEvent) -> None:
        """Report the error."""
        if isinstance(event, Error):
            self.failed(event.error)

    def on_call(self, call: HookCall) -> None:
        """Report failures on `Error` and `CallEnded`, for which the loop emits no `Error` event."""
        if call.error is not None and isinstance(call.event, Error | CallEnded):
            self.failed(call.error, call.hook.name, type(call.event).__name__)
