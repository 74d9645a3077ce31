"""`pipe`: apply reactivex's operators, and return the result as a Flux.

Rules:

1. The operators are reactivex's own. They push: items emitted before the reader requests them are buffered without bound.
   If back-pressure matters, operators that reduce the flow (`filter`, `take`) should come before the pipe.
2. The operators' timers run on the running loop (see `LoopScheduler`), whatever their default scheduler is.
3. An observable is returned as a `Flux`. A connectable observable, or a result of another type, is returned unchanged.

The methods of reactivex's mixins (`debounce`, `group_by`, `sample`, …) call `pipe`, so they return a Flux too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast, overload

from reactivex import ConnectableObservable, Observable

from agentflow.reactive.bridge import drain
from agentflow.reactive.publisher import Publisher

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentflow.reactive.flux import Flux

T_co = TypeVar("T_co", covariant=True)
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")


class Piping(Publisher[T_co]):
    """Adds `pipe`, and a reference to `Flux` for modules that cannot import it."""

    flux_type: ClassVar[type[Flux[Any]]]
    """The class `Flux`, set by its module: Mono and Flux create each other, and modules import one way only."""

    @overload
    def pipe(self, __op1: Callable[[Observable[T_co]], Observable[A]]) -> Flux[A]: ...
    @overload
    def pipe(self, __op1: Callable[[Observable[T_co]], A]) -> A: ...
    @overload
    def pipe(self, __op1: Callable[[Observable[T_co]], A], __op2: Callable[[A], Observable[B]]) -> Flux[B]: ...
    @overload
    def pipe(self, __op1: Callable[[Observable[T_co]], A], __op2: Callable[[A], B]) -> B: ...
    @overload
    def pipe(
        self, __op1: Callable[[Observable[T_co]], A], __op2: Callable[[A], B], __op3: Callable[[B], Observable[C]]
    ) -> Flux[C]: ...
    @overload
    def pipe(self, __op1: Callable[[Observable[T_co]], A], __op2: Callable[[A], B], __op3: Callable[[B], C]) -> C: ...
    @overload
    def pipe(
        self,
        __op1: Callable[[Observable[T_co]], A],
        __op2: Callable[[A], B],
        __op3: Callable[[B], C],
        __op4: Callable[[C], Observable[D]],
    ) -> Flux[D]: ...
    @overload
    def pipe(
        self,
        __op1: Callable[[Observable[T_co]], A],
        __op2: Callable[[A], B],
        __op3: Callable[[B], C],
        __op4: Callable[[C], D],
    ) -> D: ...
    @overload
    def pipe(self, *operators: Callable[[Any], Any]) -> Any: ...
    # pyright matches a base overload with the first override that overlaps it; ours only refine the inherited ones.
    def pipe(self, *operators: Callable[[Any], Any]) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride] - see above
        """Apply reactivex's operators. The type of the result is known for up to four.

        Example:
            >>> from reactivex import operators as ops
            >>> await Flux.of(1, 2, 3).pipe(ops.sum()).to_list()
            [6]
        """
        result: Any = self
        for operator in operators:
            result = operator(result)
        # A connectable observable needs its own `connect`, which a Flux does not have.
        if isinstance(result, Publisher | ConnectableObservable) or not isinstance(result, Observable):
            return cast("Any", result)
        source = cast("Observable[Any]", result)
        return self.flux_type(lambda: drain(source))
