"""Converts providers' failures to `ModelError`: one line with the model, the problem and advice.

Rules:

1. `failure_facts.py` reads a failure; `ProviderError` is the failure of a direct wire.
2. No error shows a credential: neither in the message nor in a cause, since tracebacks and error reporters print the
   text, arguments and fields of a cause.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import cast

from agentflow._support.frozen import EMPTY
from agentflow._support.shown import without_password, without_secrets
from agentflow.errors import ModelError, ModelFault
from agentflow.models.failure_facts import (
    Facts,
    causes_of,
    facts_of,
    fault_of,
    headers_in,
    is_retryable,
    raw_text,
    status_in,
)
from agentflow.models.loose import field
from agentflow.models.waits import requested_wait

_NO_EVENTS = "without a stream of events"  # in `http.refusal`'s text about an HTML page, or JSON that is not a reply
_NOT_HERE = ("bound to a different conversation", "invalid_encrypted_content")  # Anthropic's text, and OpenAI's code
# The clients of providers name the variable that they have looked for.
_KEY_NAME = re.compile(r"\b[A-Z][A-Z0-9_]*_(?:API_KEY|KEY|TOKEN)\b")
_SECRET_NAME = re.compile(r"(?:key|token|secret|password|credentials?|authorization|cookie)$", re.IGNORECASE)
# Providers that do not follow the pattern PROVIDER_API_KEY.
_VARIABLES = {"BEDROCK": "AWS_ACCESS_KEY_ID", "VERTEX_AI": "GOOGLE_APPLICATION_CREDENTIALS"}


class ProviderError(Exception):
    """An error that a provider sent instead of a reply, or within one.

    Args:
        message: The provider's text.
        status_code: The HTTP status; None for an error in the stream.
        headers: The answer's headers, names in lower case.
        body: The error's own fields (`type`, `code`).
    """

    def __init__(
        self,
        message: str,
        status_code: int | None = None,
        headers: Mapping[str, str] = EMPTY,
        body: Mapping[str, object] = EMPTY,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status_code = status_code
        self.headers = headers
        self.body = body


def model_error(
    error: BaseException,
    model: str,
    *,
    secrets: Iterable[str] = (),
    address: str | None = None,
) -> ModelError:
    """Convert a client's exception to a `ModelError`.

    Raise the result outside the `except` block: its `__cause__` is the exception, or a copy without credentials if the
    exception or its chain shows one.

    Args:
        error: The exception of LiteLLM or a direct wire.
        model: The model's name, for the message.
        secrets: Texts to hide: some servers echo the key that they refuse. Keys in the environment are hidden anyway.
        address: The URL of the request, shown if a wrong URL may be the cause.

    Example:
        >>> model_error(ConnectionResetError("reset by peer"), "openai/gpt-5").retryable
        True
    """
    facts = facts_of(error)
    wait = requested_wait(facts.headers, facts.raw)
    hidden = [*secrets, *secrets_in(os.environ)]
    failure = ModelError(
        without_secrets(_message(facts, model, wait, address), hidden),
        retryable=is_retryable(facts),
        retry_after=wait,
        status=facts.status,
        model=model,
        kind=fault_of(facts),
    )
    failure.__cause__ = _safe(error, hidden)
    return failure


def secrets_in(named: Mapping[str, object]) -> Iterator[str]:
    """Find the credentials in named values, at every depth, with and without a scheme such as `Bearer`.

    Example:
        >>> list(secrets_in({"servers": [{"authorization_token": "abc"}], "authorization": "Bearer xyz", "user": "u"}))
        ['abc', 'Bearer xyz', 'xyz']
    """
    for name, value in named.items():
        if isinstance(value, str):
            if _SECRET_NAME.search(name):
                yield value
                # The key after "Bearer": a server may show it alone.
                yield from value.split()[1:]
        elif isinstance(value, Mapping):
            yield from secrets_in(cast("Mapping[str, object]", value))
        elif isinstance(value, (list, tuple)):
            for inner in cast("Sequence[object]", value):
                if isinstance(inner, Mapping):
                    yield from secrets_in(cast("Mapping[str, object]", inner))


def _safe(error: BaseException, secrets: Sequence[str]) -> BaseException:
    """Return the error, or a copy without secrets if its chain shows one."""
    if all(_shows_none(link, secrets) for link in chain_of(error)):
        return error
    # The copy has no chain, because each link of it could show the secret.
    text = without_secrets(str(error), secrets)
    copy = ProviderError(
        text if isinstance(error, ProviderError) else f"{type(error).__name__}: {text}",
        status_in([error]),
        cast("Mapping[str, str]", _masked(headers_in([error]), secrets)),
        cast("Mapping[str, object]", _masked(field(error, "body"), secrets) or EMPTY),
    )
    return copy.with_traceback(error.__traceback__)


def _shows_none(link: BaseException, secrets: Sequence[str]) -> bool:
    try:
        shown = f"{link} {link!r} {link.args!r} {vars(link)!r}"
    except Exception:  # noqa: BLE001, RUF100 - an exception that cannot be checked is replaced
        return False
    return without_secrets(shown, secrets) == shown


def chain_of(error: BaseException) -> Iterator[BaseException]:
    """Yield the error, its causes and contexts, and the members of groups."""
    # Chains can contain cycles.
    found, waiting = set[int](), [error]
    while waiting:
        link = waiting.pop()
        if id(link) in found:
            continue
        found.add(id(link))
        yield link
        waiting += [inner for inner in (link.__cause__, link.__context__) if inner is not None]
        if isinstance(link, BaseExceptionGroup):
            waiting += cast("BaseExceptionGroup[BaseException]", link).exceptions


def _masked(value: object, secrets: Sequence[str]) -> object:
    if isinstance(value, str):
        return without_secrets(value, secrets)
    if isinstance(value, Mapping):
        return {key: _masked(inner, secrets) for key, inner in cast("Mapping[object, object]", value).items()}
    if isinstance(value, (list, tuple)):
        return [_masked(inner, secrets) for inner in cast("Sequence[object]", value)]
    return value


def is_bound_elsewhere(error: ModelError) -> bool:
    """Return whether the provider refused a thought, because messages before it changed or another account's key sealed it."""
    cause = error.__cause__
    return cause is not None and any(
        phrase in raw_text(link).lower() for link in causes_of(cause) for phrase in _NOT_HERE
    )


def broken_stream(model: str) -> ModelError:
    """Create the error of a stream that ended without a finish reason."""
    return ModelError(
        f"{model} broke off: the stream ended without a finish reason, so the reply may be incomplete. Try again, or set "
        "retries= for automatic retries.",
        retryable=True,
        model=model,
    )


def no_key(model: str, variable: str) -> ModelError:
    """Create the error of a request without a key."""
    return ModelError(
        f"There is no API key for {model}: set the environment variable {variable}, or pass api_key=.",
        status=401,
        model=model,
        kind="authentication",
    )


def _message(facts: Facts, model: str, wait: float | None, address: str | None) -> str:
    if facts.mentions(["llm provider not provided"]) or "LiteLLMUnknownProvider" in facts.names:
        return (
            f"LiteLLM does not know the provider of the model {model!r}. Name models 'provider/model', such as 'openai/gpt-5', "
            f"or 'openai/{model.split('/')[-1]}' with api_base= for a server with OpenAI's wire."
        )
    where = f" ({facts.status})" if facts.status is not None else ""
    fault = fault_of(facts)
    if fault == "authentication":
        return _refused_key(facts, model, where)
    problem, advice = _FAULTS.get(fault, ("", "")) if fault is not None else ("", "")
    # A gateway answers 413 to a large body too, which need not be a long conversation.
    if not problem or facts.status == 413:
        problem = _problem(facts)
    advice = advice or _advice(facts, problem)
    if address is not None and "api_base=" in advice:
        advice += f" The request went to {without_password(address)}."
    later = f" It asks to wait {wait:g} s." if wait is not None else ""
    reason = f": {facts.text}" if facts.text else ""
    end = "" if reason.endswith(("!", "?", "…")) else "."
    return f"{model} {problem}{where}{reason}{end}{later}{' ' * bool(advice)}{advice}"


def _refused_key(facts: Facts, model: str, where: str) -> str:
    provider = model.split("/", 1)[0].upper().replace("-", "_")
    named = _KEY_NAME.search(facts.raw)
    variable = named[0] if named is not None else _VARIABLES.get(provider, f"{provider}_API_KEY")
    if facts.keyless:
        return str(no_key(model, variable))
    return f"{model} refused the API key{where}: {facts.text}. Check {variable} or api_key=."


_ADD_CREDIT = "Add credit to the account, or use the key of another one."
_FAULTS: dict[ModelFault, tuple[str, str]] = {
    "quota": ("has no quota left", _ADD_CREDIT),
    "context_overflow": (
        "cannot hold the conversation in its context window",
        "Send less: SummaryCompaction and ClearOldResults of agentflow.plugins shorten the conversation.",
    ),
    "content_policy": ("refused the content", "Change the messages, or use another model."),
    "rate_limit": (
        "limits the rate of requests",
        "Send fewer (RateLimit of agentflow.plugins), raise retries= and max_wait=, or request a higher limit.",
    ),
}
"""The problem and the advice for each fault."""

_REFUSED, _LATE, _BROKEN = "refused the request", "did not answer in time", "could not be reached or broke off"
_UNKNOWN_FORM, _FAILED, _NOT_CALLED = "answered in an unknown form", "failed", "could not be called"
_CHANGE = "Change the messages, tools, options= or params= that it names."
_ROOT = "that api_base= is the root of the API (often .../v1)."
_PROBLEMS = {
    400: _REFUSED,
    403: "denied permission",
    404: "was not found",
    408: _LATE,
    409: "reported a conflict",
    413: "found the request too large",
    422: _REFUSED,
}
_CURES: dict[int | str, str] = {
    402: _ADD_CREDIT,
    403: "Check that the key's account may use this model, or use another key or model.",
    404: f"Check the model's name, and {_ROOT}",
    405: f"Check {_ROOT}",
    409: "It conflicts with another request: try again, or raise retries=.",
    _REFUSED: _CHANGE,
    _LATE: "Check that the server is up, or raise timeout=.",
    _BROKEN: "Check api_base=, that a server listens there, and the proxy variables (HTTPS_PROXY, NO_PROXY).",
    _UNKNOWN_FORM: "Check that api_base= is a server with this API.",
    _NOT_CALLED: "See its cause for the reason: error.__cause__.",
}
"""The advice for a status, or for a problem."""


def _problem(facts: Facts) -> str:
    # The status first: it is the provider's answer, and classes of exceptions are only the client's reading of it.
    if facts.status in _PROBLEMS:
        return _PROBLEMS[facts.status]
    if facts.names & {"Timeout", "TimeoutError"}:
        return _LATE
    if (facts.status is not None and facts.status >= 500) or "ProviderError" in facts.names:
        return _FAILED
    if "NotUnderstoodError" in facts.names:
        return _UNKNOWN_FORM
    # LiteLLM raises this class for all exceptions that it does not know.
    lost = "APIConnectionError" in facts.names and not facts.is_bug
    if lost or facts.names & {"InternalServerError", "ServiceUnavailableError"}:
        return _BROKEN
    return _REFUSED if facts.status is not None and 400 <= facts.status < 500 else _NOT_CALLED


def _advice(facts: Facts, problem: str) -> str:
    """Return the advice; empty if there is none."""
    if "ProviderError" in facts.names and facts.status is None and facts.mentions([_NO_EVENTS]):
        return "Check that api_base= is the root of an API with this wire (often .../v1)."
    if facts.status is not None and 300 <= facts.status < 400:
        return "If that URL is right, set it as api_base=."
    if problem == _FAILED and facts.status not in _CURES:
        later = "The provider is at fault: try again later, raise retries=, or add ModelFallback of agentflow.plugins."
        return later if is_retryable(facts) else _CHANGE
    return _CURES.get(facts.status or 0) or _CURES.get(problem, "")
