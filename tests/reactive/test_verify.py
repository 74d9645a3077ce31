"""The verifier itself: it accepts true expectations, and explains false ones."""

from __future__ import annotations

import asyncio
import threading

import pytest

from agentflow._support.virtual_time import VirtualClockLoop, run_virtual
from agentflow.errors import UsageError
from agentflow.reactive import Flux, Mono
from agentflow.testing.verify import Probe, verify


async def test_reports_expected_received_and_all_signals() -> None:
    """The message has the step, the expectation, the actual signal, and everything before it."""
    with pytest.raises(AssertionError) as failed:
        await verify(Flux.of(1, 2)).expect(1, 3).expect_complete()
    assert str(failed.value) == "step 2: expected 3, received 2\n  all signals: 1, 2"
    with pytest.raises(AssertionError, match="expected complete, received 1"):
        await verify(Flux.of(1)).expect_complete()
    with pytest.raises(AssertionError, match="expected error ValueError, received complete"):
        await verify(Flux.empty()).expect_error(ValueError)
    with pytest.raises(AssertionError, match=r"expected an item for which .* received error\(OSError\(\)\)"):
        await verify(Flux.error(OSError())).expect_matches(lambda _: True).expect_complete()
    with pytest.raises(AssertionError, match="expected no signal for 1 s"):
        await verify(Flux.of(1)).expect_no_signal(1).then_cancel()


async def test_controls_demand() -> None:
    """Nothing is pulled beyond the expectations, and `then` sees it."""
    probe = Probe(1, 2, 3, 4)
    await (
        verify(probe.flux)
        .then(lambda: _equal(probe.pulled, 0))
        .expect(1)
        .then(lambda: _equal(probe.pulled, 1))
        .then_request(2)
        .then(lambda: _equal(probe.pulled, 3))
        .then_cancel()
    )
    assert probe.closed == 1


def _equal(left: object, right: object) -> None:
    assert left == right


async def test_needs_an_end_and_nothing_after_it() -> None:
    """Half a verification would pass by accident, so it is refused."""
    with pytest.raises(UsageError, match="would be unchecked"):
        await verify(Flux.of(1)).expect(1)
    with pytest.raises(UsageError, match="no expectations may follow"):
        verify(Flux.of(1)).expect_complete().expect(1)


def test_virtual_time_jumps() -> None:
    """An hour passes at once; while a thread works, time does not pass, even if timers are pending."""

    async def main() -> float:
        await asyncio.sleep(3600)
        async with asyncio.timeout(60):
            assert await asyncio.to_thread(threading.get_ident) != threading.get_ident()
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == pytest.approx(3600)
    with asyncio.Runner(loop_factory=VirtualClockLoop) as runner:
        assert runner.run(Mono.just("late").delay(86_400 * 30)) == "late"


@pytest.mark.parametrize("seconds", [33_554_431, 86_400 * 365 * 10, 17_895_066_514.8])
def test_virtual_time_reaches_any_date(seconds: float) -> None:
    """Also if floats are too coarse for the nanosecond with which the loop compares a timer and now."""

    async def main() -> float:
        await asyncio.sleep(seconds)
        await asyncio.sleep(1)
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == pytest.approx(seconds + 1)
