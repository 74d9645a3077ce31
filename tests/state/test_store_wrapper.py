"""`StoreWrapper` behaves as the wrapped store, except for the methods of a subclass."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from agentflow.errors import StoreError
from agentflow.vocabulary.ports.store import SessionStore
from agentflow.vocabulary.ports.store_wrapper import StoreWrapper

ANSWER = object()
ARGUMENTS: dict[str, object] = {
    "session_id": "s",
    "new_id": "n",
    "facts": (),
    "expected": 3,
    "claim": object(),
    "lease": 2.5,
    "at": 7,
    "older_than": timedelta(3),
    "statuses": ("suspended",),
    "keep": ("k",),
    "data": {"id": "s"},
    "prefix": "p",
}
PORT = {
    name: member for name, member in vars(SessionStore).items() if name[0] != "_" and inspect.isfunction(member)
} | {"load": SessionStore.load}


def told(name: str, got: list[tuple[str, dict[str, Any]]]) -> Callable[..., Any]:
    """A method of the inner store: records its arguments, by the port's names."""
    signature = inspect.signature(PORT[name])

    def method(self: object, *args: object, **kwargs: object) -> object:
        given = signature.bind(self, *args, **kwargs)
        given.apply_defaults()
        got.append((name, {key: value for key, value in given.arguments.items() if key != "self"}))
        return ANSWER

    async def awaited(self: object, *args: object, **kwargs: object) -> object:
        return method(self, *args, **kwargs)

    return awaited if inspect.iscoroutinefunction(PORT[name]) else method


@pytest.mark.parametrize("name", sorted(PORT))
async def test_every_method_of_the_port_is_handed_on(name: str) -> None:
    """The inner store's method of that name gets the same arguments, passed or omitted; its answer is returned."""
    got: list[tuple[str, dict[str, Any]]] = []
    inner: Any = type("Inner", (), {each: told(each, got) for each in PORT})()
    parameters = [one for one in inspect.signature(PORT[name]).parameters.values() if one.name != "self"]
    least = [one for one in parameters if one.default is one.empty]
    for given in (parameters, least):
        arguments = {one.name: ARGUMENTS[one.name] for one in given}
        answer = getattr(StoreWrapper(inner), name)(**arguments)
        answer = await answer if inspect.isawaitable(answer) else answer
        said = None if inspect.signature(PORT[name]).return_annotation == "None" else ANSWER
        assert answer is said
        defaults = {one.name: one.default for one in parameters if one not in given}
        assert got.pop() == (name, {**arguments, **defaults})
        assert got == []


async def test_a_failure_comes_through_as_it_is() -> None:
    """An error of the inner store is raised by the wrapper, as the same object."""
    error = StoreError("the disk")

    class Broken(StoreWrapper):
        async def sessions(self, prefix: str = "") -> Any:
            raise error

    with pytest.raises(StoreError) as caught:
        await StoreWrapper(Broken(Broken.__new__(Broken))).sessions()
    assert caught.value is error


async def test_a_subclass_says_what_differs_and_nothing_else(store: SessionStore) -> None:
    """A wrapper with one method of its own is a store of the same port; the other methods are the inner store's."""

    class Nameless(StoreWrapper):
        async def rename(self, session_id: str, new_id: str) -> None:
            raise StoreError("Names are forever here.")

    wrapped = Nameless(store)
    assert isinstance(wrapped, SessionStore)
    with pytest.raises(StoreError, match="forever"):
        await wrapped.rename("s", "t")
    assert await wrapped.sessions() == await store.sessions() == []
    assert wrapped.inner is store
