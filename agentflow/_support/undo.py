"""`UndoOnFailure`: undo a step if the work after it fails."""

from __future__ import annotations

from collections.abc import Callable


class UndoOnFailure:
    """Calls a function if the block raises an error, a cancellation or an interrupt, which then propagates.

    Args:
        undo: Undoes the step before the block.

    Example:
        >>> with UndoOnFailure(lambda: print("released")):
        ...     raise ValueError("wrong")
        Traceback (most recent call last):
        ValueError: wrong
    """

    __slots__ = ("_undo",)

    def __init__(self, undo: Callable[[], object]) -> None:
        self._undo = undo

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *_rest: object) -> None:
        if kind is not None:
            self._undo()
