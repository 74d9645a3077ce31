"""Checks of writing: order, versions, claims, concurrent writers, and cancelled writers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import cast

from agentflow._support.ids import inner_session_id
from agentflow.errors import SessionConflictError, StoreError
from agentflow.testing.store_checks.samples import a_call, samples
from agentflow.testing.store_checks.trial import StoreTrial
from agentflow.testing.suite import CheckSkipped, FlawFound
from agentflow.vocabulary.facts import Reasoned, SessionBegan
from agentflow.vocabulary.messages import Msg
from agentflow.vocabulary.ports.store import Claim, SessionStore, Store


async def order(trial: StoreTrial) -> None:
    """Appended facts are loaded oldest first, in the order in which `append` was called."""
    s, other = trial.new_session(), trial.new_session()
    trial.same(await trial.load(s), [], "finds facts in a session that does not exist")
    await trial.keep(s, a_call(1))
    await trial.keep(other, a_call(2))
    await trial.keep(s, a_call(3))
    await trial.holds(s, [*a_call(1), *a_call(3)], "does not return the appended facts, oldest first")
    await trial.holds(other, a_call(2), "mixes sessions")
    if isinstance(trial.any_store, SessionStore):
        s = trial.new_session()
        appends = [trial.append(s, a_call(number)) for number in (1, 2, 3)]
        for pending in reversed(appends):
            if pending is not None:
                await pending
        wanted = [*a_call(1), *a_call(2), *a_call(3)]
        await trial.holds(s, wanted, "writes in the order of awaiting; it should take the facts when append is called")


async def aliasing(trial: StoreTrial) -> None:
    """The caller's lists and the store's lists are independent."""
    s, source = trial.new_session(), a_call(1)
    pending = trial.append(s, source)
    if isinstance(trial.any_store, SessionStore):
        source.clear()  # a SessionStore copies the facts when `append` is called; others may read them until it finishes
    if pending is not None:
        await pending
    source.clear()
    await trial.holds(s, a_call(1), "keeps the caller's list: changing it changes the stored facts")
    found = trial.any_store.load(s)
    found = await found if isinstance(found, Awaitable) else found
    if isinstance(found, list):
        found.clear()
    await trial.holds(s, a_call(1), "returns its own list: changing it changes the stored facts")


async def facts(trial: StoreTrial) -> None:
    """Facts of every kind, with every verdict, are loaded unchanged and with the same type."""
    for fact in samples():
        s = trial.new_session()
        await trial.keep(s, [fact], **trial.at(0))
        name = type(fact).__name__
        await trial.holds(s, [fact], f"does not return {name} unchanged")
        trial.same(type((await trial.load(s))[0]), type(fact), f"returns {name} as another type")


async def atomicity(trial: StoreTrial) -> None:
    """A refused append writes nothing."""
    store, s = trial.store, trial.new_session()
    await trial.keep(s, a_call(1))
    other = cast("Reasoned", a_call(1)[1])._replace(message=Msg.assistant("other", id="other"))
    mixed = [*a_call(2), other, *a_call(3)]
    await trial.refused(lambda: store.append(s, mixed), "a fact whose natural key is used with different content")
    await trial.holds(s, a_call(1), "writes a part of an append that it refuses")


async def version(trial: StoreTrial) -> None:
    """An append with an outdated version writes nothing."""
    store, s = trial.store, trial.new_session()
    await trial.keep(s, a_call(1), expected=0)
    await trial.keep(s, a_call(2), expected=3)
    for known in (0, 3, 5, 7):
        doing = f"an append that expects version {known} of a session with 6 facts"
        await trial.refused(lambda known=known: store.append(s, a_call(9), expected=known), doing, SessionConflictError)
    await trial.holds(s, [*a_call(1), *a_call(2)], "writes under a wrong version")
    missing = trial.new_session()
    await trial.refused(
        lambda: store.append(missing, a_call(1), expected=3),
        "an append that expects facts of a missing session",
        SessionConflictError,
    )
    await trial.holds(missing, [], "creates a session in a refused append")


async def duplicate(trial: StoreTrial) -> None:
    """A fact that is delivered twice is stored only once."""
    s = trial.new_session()
    trial.store  # noqa: B018 - skips the check for other stores: only a SessionStore has natural keys
    for _ in range(2):
        await trial.keep(s, a_call(1), expected=0)
        await trial.keep(s, a_call(2), expected=3)
    wanted = [*a_call(1), *a_call(2)]
    await trial.holds(s, wanted, "stores both copies of a fact delivered twice under one version")
    await trial.keep(s, [*a_call(1), *a_call(3)])
    wanted += a_call(3)
    await trial.holds(s, wanted, "stores facts with existing natural keys again (without a version)")


async def fencing(trial: StoreTrial) -> None:
    """Only one writer has the right to write; a write under a lost claim is refused."""
    store, s = trial.store, trial.new_session()
    first = await _claimed(trial, s)
    inner = inner_session_id(s, "t1")
    fields = (first.session_id, first.version, first.lost)
    trial.same(fields, (s, 0, False), "returns a claim with wrong session_id, version or lost")
    await trial.keep(s, a_call(1), expected=0, claim=first)
    await trial.keep(inner, a_call(2), claim=first)
    waiting = asyncio.ensure_future(_claimed(trial, s))
    impatient = asyncio.ensure_future(_claimed(trial, s))
    if (await asyncio.wait({waiting, impatient}, timeout=0.1))[0]:  # long enough for a faulty store to grant one
        raise FlawFound("fencing", "grants two writers the claim of one session at the same time")
    impatient.cancel()
    await asyncio.wait({impatient})
    first.release()
    second = await waiting
    if second.epoch <= first.epoch or second.owner == first.owner:
        fields = f"first {first.owner} in epoch {first.epoch}, then {second.owner} in epoch {second.epoch}"
        raise FlawFound("fencing", "does not distinguish two owners by owner and epoch", fields)
    trial.same(second.version, 3, "returns a claim with a wrong version")
    for where in (s, inner):
        await trial.refused(
            lambda where=where: store.append(where, a_call(4), expected=3, claim=first),
            "an append under a lost claim",
            SessionConflictError,
        )
    await trial.holds(s, a_call(1), "writes under a lost claim")
    trial.same(first.lost, True, "does not mark a lost claim as lost")
    await trial.keep(s, a_call(5), expected=3, claim=second)
    second.release()
    (await _claimed(trial, s)).release()


async def _claimed(trial: StoreTrial, session_id: str) -> Claim:
    granted = trial.store.claim(session_id, lease=30.0)
    if granted is None:
        raise CheckSkipped("it has no claims: writers notice a conflict when they append")
    return await granted


async def concurrency(trial: StoreTrial) -> None:
    """With concurrent writers, no facts are lost, mixed, or written twice under one version."""
    s, numbers = trial.new_session(), range(1, 9)
    await asyncio.gather(*[trial.keep(s, a_call(number)) for number in numbers])
    found = await trial.load(s)
    calls = sorted(found[start : start + 3] for start in range(0, len(found), 3))
    trial.same(calls, sorted(a_call(number) for number in numbers), "loses or mixes concurrent appends")
    if not isinstance(trial.any_store, SessionStore):
        return
    s = trial.new_session()
    writers = [trial.keep(s, a_call(number), expected=0) for number in numbers]
    ended = await asyncio.gather(*writers, return_exceptions=True)
    won = [number for number, error in zip(numbers, ended, strict=True) if error is None]
    lost = [error for error in ended if isinstance(error, SessionConflictError)]
    trial.same((len(won), len(lost)), (1, 7), "does not let exactly one writer win a race for a version")
    await trial.holds(s, a_call(won[0]), "does not contain the facts of the winner of a race")
    s = trial.new_session()
    await asyncio.gather(*[trial.keep(s, a_call(1)) for _ in numbers])
    await trial.holds(s, a_call(1), "stores both copies of a fact delivered twice at once")


async def cancellation(trial: StoreTrial) -> None:
    """A cancelled writer has written all or nothing, and the store keeps working."""
    for turns in (0, 1, 2, 5, 20):  # so that it is cancelled before, during and after the write
        s = trial.new_session()
        await trial.keep(s, a_call(1))
        task = asyncio.ensure_future(trial.keep(s, a_call(2), **trial.at(3)))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})
        if not task.cancelled() and (error := task.exception()) is not None:
            raise FlawFound("cancellation", "turns a cancellation into another error", repr(error))
        found = await trial.load(s)
        if found not in ([*a_call(1)], [*a_call(1), *a_call(2)]):
            raise FlawFound("cancellation", "leaves a part of an append after a cancellation", repr(found)[:600])
        await trial.keep(s, a_call(3), **trial.at(len(found)))
        await trial.holds(s, [*found, *a_call(3)], "writes a cancelled append later")


async def errors(trial: StoreTrial) -> None:
    """A closed store can be closed again; afterwards it either works or raises a StoreError."""
    await trial.store.close()
    await trial.store.close()
    s = trial.new_session()
    try:
        await trial.keep(s, [SessionBegan(())])
    except StoreError:
        pass
    except Exception as error:
        raise FlawFound("errors", f"fails with {type(error).__name__} when it is closed", repr(error)) from error


async def sharing(trial: StoreTrial) -> None:
    """Two stores opened on the same data see each other's facts, like two processes."""
    if trial.open_another is None:
        raise CheckSkipped("an instance was passed, not a function that opens the same data again")
    s, own, second_store = trial.new_session(), trial.any_store, trial.open_another()
    try:
        await trial.keep(s, a_call(1))
        if own is second_store or not await trial.load(s, second_store):
            raise CheckSkipped("each opened store has separate data")
        for store in (own, second_store):  # both have read it, so that a stale cache is found
            await trial.holds(s, a_call(1), "returns different facts to a second store on the same data", store)
        await trial.keep(s, a_call(2), second_store)
        await trial.holds(s, [*a_call(1), *a_call(2)], "does not see the writes of a second store")
        if isinstance(second_store, SessionStore):
            doing = "an append under a version that a second store has superseded"
            work = trial.store.append
            await trial.refused(lambda: work(s, a_call(3), expected=3), doing, SessionConflictError)
            await trial.keep(s, a_call(3), second_store, expected=6)
    finally:
        await _close(second_store if own is not second_store else None)
    wanted = [*a_call(1), *a_call(2)]
    if isinstance(own, SessionStore):  # only then was the third call written
        wanted += a_call(3)
    await trial.holds(s, wanted, "loses facts when a second store is closed")


async def _close(store: Store | None) -> None:
    if isinstance(store, SessionStore):
        await store.close()
