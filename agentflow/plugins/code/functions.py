"""The code through which a program in a sandbox calls the agent's functions.

Each sandbox runs the text of this module before the program. It uses only the parts of Python that all sandboxes have: no
inheritance, no generators, no imports except `json` and `typing`.
"""

from typing import Any


def functions_of(exchange: Any, failure: Any, parameters: Any, longest: int) -> dict[str, Any]:
    """Return the global names through which a program can call the agent's functions.

    Args:
        exchange: Sends a message as JSON, and returns the answer.
        failure: The exception class to raise if a function failed or was refused.
        parameters: The names of the parameters of each function.
        longest: The maximum length of a message.
    """
    import json

    class LaterCall:
        """A function call that has not been made yet."""

        def __init__(self, name: str, arguments: dict[str, Any]) -> None:
            self.name = name
            self.arguments = arguments

    def call(pending: Any) -> list[Any]:
        message = json.dumps({"calls": [{"name": each.name, "arguments": each.arguments} for each in pending]})
        if len(message) > longest:
            raise ValueError(f"the arguments are {len(message)} characters of JSON; at most {longest} are allowed")
        try:
            answer = exchange(message)
        except NotImplementedError:  # from Monty, which does not pause a program inside a built-in function
            raise NotImplementedError(
                f"{pending[0].name}() cannot be called by map(), sorted() and other built-ins, or in __repr__; "
                "call it in a loop or a comprehension"
            ) from None
        values: list[Any] = []
        for result in json.loads(answer)["results"]:
            if result["error"] is not None:
                raise failure(result["error"])
            values.append(result["value"])
        return values

    def together(*pending: Any) -> list[Any]:
        for each in pending:
            if not isinstance(each, LaterCall):
                raise TypeError("together() takes calls such as search.later(text='bees')")
        return call(pending) if pending else []

    class Function:
        """One of the agent's functions, as the program sees it."""

        def __init__(self, name: str, names: list[str]) -> None:
            self.__name__ = name
            self._names = names

        def later(self, *args: object, **kwargs: object) -> LaterCall:
            if len(args) > len(self._names):
                raise TypeError(f"{self.__name__}() takes at most {len(self._names)} arguments, not {len(args)}")
            return LaterCall(self.__name__, {**dict(zip(self._names, args)), **kwargs})  # noqa: B905 - checked above

        def __call__(self, *args: object, **kwargs: object) -> Any:
            return call([self.later(*args, **kwargs)])[0]

    namespace: dict[str, Any] = {"FunctionError": failure, "together": together}
    for name, names in parameters.items():
        namespace[name] = Function(name, names)
    return namespace
