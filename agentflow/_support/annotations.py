"""Annotations of functions, including those with names that do not exist at run time.

Python 3.14 evaluates annotations when they are read, which fails if a name does not exist. These functions then return the
annotations as text, like Python up to 3.13 with `from __future__ import annotations`.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any

if sys.version_info >= (3, 14):
    import annotationlib


def annotations_of(function: Callable[..., Any]) -> Mapping[str, Any]:
    """Return a function's annotations, as text if they contain an unknown name."""
    try:
        return getattr(function, "__annotations__", {})
    except NameError:
        if sys.version_info >= (3, 14):
            return annotationlib.get_annotations(function, format=annotationlib.Format.STRING)
        raise


def signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of a function, with annotations as in `annotations_of`.

    Raises:
        TypeError: The object is not callable.
        ValueError: Python cannot determine the signature.

    Example:
        >>> str(signature_of(lambda a, *, b=1: a))
        '(a, *, b=1)'
    """
    try:
        return inspect.signature(function)
    except NameError:
        if sys.version_info >= (3, 14):
            return inspect.signature(function, annotation_format=annotationlib.Format.STRING)
        raise
