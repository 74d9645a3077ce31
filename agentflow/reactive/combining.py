"""The types of `Flux.merge(a, b)` and similar methods when they are called on the class.

At run time Python calls the method `merge` with the first source as `self`, which works, but type checkers bind the class's
type parameter to Unknown. A property of the metaclass has precedence, and gives this form its own type.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar, overload

if TYPE_CHECKING:
    from agentflow.reactive.flux import Flux
    from agentflow.reactive.mono import Mono
    from agentflow.reactive.publisher import Source

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")


class FluxMerging(Protocol):
    """`Flux.merge`."""

    def __call__(self, *sources: Source[A], max_concurrent: int | None = None) -> Flux[A]:
        """All sources at once."""
        ...


class FluxJoining(Protocol):
    """`Flux.concat`, `Flux.amb`."""

    def __call__(self, *sources: Source[A]) -> Flux[A]:
        """Several sources of one type as one."""
        ...


class FluxZipping(Protocol):
    """`Flux.zip`."""

    @overload
    def __call__(self, first: Source[A], second: Source[B], /) -> Flux[tuple[A, B]]: ...
    @overload
    def __call__(self, first: Source[A], second: Source[B], third: Source[C], /) -> Flux[tuple[A, B, C]]: ...
    @overload
    def __call__(
        self, first: Source[A], second: Source[B], third: Source[C], fourth: Source[D], /
    ) -> Flux[tuple[A, B, C, D]]: ...
    @overload
    def __call__(self, *sources: Source[Any]) -> Flux[Any]: ...


class MonoJoining(Protocol):
    """`Mono.amb`."""

    def __call__(self, *sources: Source[A]) -> Mono[A]:
        """The first of several sources."""
        ...


class MonoZipping(Protocol):
    """`Mono.zip`."""

    @overload
    def __call__(self, first: Source[A], second: Source[B], /) -> Mono[tuple[A, B]]: ...
    @overload
    def __call__(self, first: Source[A], second: Source[B], third: Source[C], /) -> Mono[tuple[A, B, C]]: ...
    @overload
    def __call__(self, *sources: Source[Any]) -> Mono[Any]: ...
