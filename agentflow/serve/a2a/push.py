"""Push notifications: sent to a task's addresses when it waits for input, and when it has ended.

Rules:

1. Notifications go only to public addresses, checked when connecting, unless the application supplies its own check.
2. A notification never delays its task. It is sent once, without redirects, and its response is not read.
3. Each task has at most a few addresses, which are removed with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import aiohttp
from yarl import URL

from agentflow._support.logs import logger
from agentflow.models.addresses import CheckedResolver, RefusedAddressError, check_literal
from agentflow.serve.a2a.sdk import MessageToDict, ServerCallContext, tasks, to_stream_response, types

PushCheck = Callable[[str], Awaitable[bool]]
"""Returns whether notifications may be sent to an address."""

_STATES: Final = frozenset(
    {
        types.TaskState.TASK_STATE_INPUT_REQUIRED,
        types.TaskState.TASK_STATE_COMPLETED,
        types.TaskState.TASK_STATE_FAILED,
        types.TaskState.TASK_STATE_CANCELED,
        types.TaskState.TASK_STATE_REJECTED,
    }
)
_MAX_ADDRESSES: Final = 5
_SECONDS: Final = 10.0
_MAX_CONCURRENT: Final = 20
_MAX_WAITING: Final = 500


async def public_only(url: str) -> bool:
    """Return whether an address is an HTTP URL without a private IP address; host names are checked when connecting."""
    try:
        address = URL(url)
        check_literal(address.host or "")
    except (ValueError, RefusedAddressError):
        return False
    return address.scheme in ("http", "https") and bool(address.host) and address.user is None


class PushAddresses(tasks.InMemoryPushNotificationConfigStore):
    """The addresses of tasks; their number per task is limited."""

    async def set_info(
        self, task_id: str, notification_config: types.TaskPushNotificationConfig, context: ServerCallContext
    ) -> types.TaskPushNotificationConfig:
        """Add an address.

        Raises:
            types.InvalidParamsError: The task has too many.
        """
        others = [config for config in await self.get_info(task_id, context) if config.id != notification_config.id]
        if len(others) >= _MAX_ADDRESSES:
            raise types.InvalidParamsError(
                f"The task already has the maximum of {_MAX_ADDRESSES} addresses for notifications."
            )
        return await super().set_info(task_id, notification_config, context)


class Pusher(tasks.PushNotificationSender):
    """Sends notifications to the addresses of tasks.

    Args:
        addresses: The addresses.
        check: The application's own check; None allows public addresses only.
    """

    def __init__(self, addresses: PushAddresses, check: PushCheck | None) -> None:
        self._addresses = addresses
        self._check = check
        self._room = asyncio.Semaphore(_MAX_CONCURRENT)
        self._tasks: set[asyncio.Task[None]] = set()

    async def send_notification(self, task_id: str, event: tasks.PushNotificationEvent) -> None:
        """Start sending an event, if it concerns clients."""
        if not (isinstance(event, types.TaskStatusUpdateEvent) and event.status.state in _STATES):
            return
        for address in await self._addresses.get_info_for_dispatch(task_id):
            if len(self._tasks) >= _MAX_WAITING:
                logger.warning("too many push notifications are waiting, so one for task {} was not sent", task_id)
                return
            sending = asyncio.create_task(self._send(address, event), name="agentflow: push notification")
            self._tasks.add(sending)  # the event loop holds tasks only weakly
            sending.add_done_callback(self._tasks.discard)

    async def _send(self, address: types.TaskPushNotificationConfig, event: types.TaskStatusUpdateEvent) -> None:
        async with self._room:
            try:
                await self._post(address, event)
            except Exception as error:  # a client's wrong address should not fail the task
                logger.warning("a push notification was not sent: {}", type(error).__name__)

    async def _post(self, address: types.TaskPushNotificationConfig, event: types.TaskStatusUpdateEvent) -> None:
        if not await (self._check or public_only)(address.url):
            raise RefusedAddressError("refused")
        headers = {"X-A2A-Notification-Token": address.token} if address.token else {}
        if address.authentication.scheme and address.authentication.credentials:
            headers["Authorization"] = f"{address.authentication.scheme} {address.authentication.credentials}"
        resolver = CheckedResolver() if self._check is None else None
        async with aiohttp.ClientSession(
            # Each connection resolves the name again, so that the checked address is the one that is used.
            connector=aiohttp.TCPConnector(resolver=resolver, use_dns_cache=False, force_close=True),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=_SECONDS),
        ) as http:
            body = MessageToDict(to_stream_response(event))
            async with http.post(address.url, json=body, headers=headers, allow_redirects=False):
                pass

    async def close(self) -> None:
        """Stop sending."""
        for sending in tuple(self._tasks):
            sending.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
