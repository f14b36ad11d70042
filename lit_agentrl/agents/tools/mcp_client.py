"""A connection to an MCP server, from a program that has no event loop: it lives in a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import IO, Any

from lit_agentrl.agents.tools.mcp_keeper import kept
from lit_agentrl.types import ToolSpec

_MARGIN_S = 5.0  # beyond a call's own limit: for a thread that hangs
_PROBE_S = 3.0
_CLOSE_S = 10.0
_TAIL_CHARS = 300
_MAX_PAGES = 100


class ServerLostError(Exception):
    """The server ended or does not answer at all; the text says how."""


class ServerError(ValueError):
    """The server refused a call, or its tool failed; the text is the server's."""


class CallTimeoutError(ValueError):
    """A call took too long; the server itself still answers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerAddress:
    """Where a server is, or how it is started."""

    command: tuple[str, ...] = ()
    url: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables that a started server gets besides PATH, HOME and a few others."""
    cwd: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    max_message_mb: int = 16

    def __str__(self) -> str:
        return self.url or " ".join(self.command)


class Connection:
    """One session with a server, opened at once.

    Args:
        address: The server.
        start_timeout_s: Seconds for starting it and asking for its tools.

    Raises:
        ServerLostError: It cannot be started or reached, or is no MCP server.
    """

    def __init__(self, address: ServerAddress, *, start_timeout_s: float) -> None:
        self._address = address
        self._start_timeout_s = start_timeout_s
        self._started: Future[tuple[Any, asyncio.AbstractEventLoop, asyncio.Event]] = Future()
        self._errors: IO[str] = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        self._thread = threading.Thread(target=self._run, daemon=True, name="mcp")
        self.specs: tuple[ToolSpec, ...] = ()
        """The server's tools, as they were when the connection was opened."""
        self._thread.start()
        try:
            self._client, self._loop, self._stop = self._started.result(start_timeout_s + _MARGIN_S)
        except Exception as error:
            self._thread.join(_CLOSE_S)
            how = f"did not answer within {start_timeout_s:g} s" if _is_timeout(error) else _text(error)
            said = self._last_words()
            self._errors.close()
            raise ServerLostError(f"{how} {said}".strip()) from None

    def call(self, name: str, arguments: Mapping[str, Any], *, timeout_s: float) -> str:
        """Call a tool and return what it said as text.

        Raises:
            ServerError: The server or the tool says that the call was wrong.
            CallTimeoutError: It took longer than `timeout_s`.
            ServerLostError: The server ended, or does not answer anything any more.
        """
        from mcp import MCPError
        from mcp_types import CONNECTION_CLOSED, REQUEST_TIMEOUT

        try:
            request = self._client.call_tool(name, dict(arguments), read_timeout_seconds=timeout_s)
            result = self._wait(request, timeout_s + _MARGIN_S)
        except FutureTimeoutError:
            raise ServerLostError("it hangs") from None
        except MCPError as error:
            if error.code == CONNECTION_CLOSED:
                raise ServerLostError("it ended") from None
            if error.code != REQUEST_TIMEOUT:
                raise ServerError(error.message) from None
            if not self._answers():
                raise ServerLostError(f"it gave no answer within {timeout_s:g} s, to nothing any more") from None
            raise CallTimeoutError(f"it took more than {timeout_s:g} s and was given up") from None
        except Exception as error:  # the transport's own: a connection refused, a stream that was closed
            raise ServerLostError(_text(error)) from None
        text = _readable(result)
        if result.is_error:
            raise ServerError(text or "the tool failed and said nothing")
        return text

    def close(self) -> None:
        """End the session, and the server if it was started for it. Closing twice is fine."""
        with contextlib.suppress(RuntimeError):  # the loop is closed already
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(_CLOSE_S)
        self._errors.close()

    def _answers(self) -> bool:
        """Whether the server still answers the simplest question."""
        try:
            self._wait(self._client.list_tools(cache_mode="bypass"), _PROBE_S)
        except Exception:
            return False
        return True

    def _wait(self, request: Any, timeout_s: float) -> Any:
        future = asyncio.run_coroutine_threadsafe(request, self._loop)
        try:
            return future.result(timeout_s)
        except FutureTimeoutError:
            future.cancel()
            raise

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            if not self._started.done():
                self._started.set_exception(error if isinstance(error, Exception) else RuntimeError(str(error)))

    async def _serve(self) -> None:
        """Keep a session open until it is told to end; what opens it has to close it in the same task."""
        from mcp import Client

        logging.getLogger("mcp.client").setLevel(logging.CRITICAL)  # servers that print what is no message
        stop = asyncio.Event()
        async with AsyncExitStack() as stack:
            async with asyncio.timeout(self._start_timeout_s):
                client = await stack.enter_async_context(Client(await self._transport(stack)))
                self.specs = await _tools_of(client)
            self._started.set_result((client, asyncio.get_running_loop(), stop))
            await stop.wait()

    async def _transport(self, stack: AsyncExitStack) -> Any:
        address = self._address
        if address.url:
            import httpx2
            from mcp.client.streamable_http import streamable_http_client

            timeout = httpx2.Timeout(self._start_timeout_s, read=None)  # calls have limits of their own
            client = httpx2.AsyncClient(headers=dict(address.headers), timeout=timeout)
            return streamable_http_client(address.url, http_client=await stack.enter_async_context(client))
        from mcp.client.stdio import StdioServerParameters, stdio_client

        program = sys.executable if address.command[0] == "python" else address.command[0]
        command = (program, *address.command[1:])
        parameters = StdioServerParameters(
            command=sys.executable,
            args=kept(command, parent=os.getpid(), max_message=address.max_message_mb * 2**20),
            env=dict(address.env),
            cwd=address.cwd,
            encoding_error_handler="replace",  # of what the server writes: it is marked, as any output is
        )
        return stdio_client(parameters, errlog=self._errors)

    def _last_words(self) -> str:
        """Return the end of what a started server wrote to its standard error."""
        with contextlib.suppress(ValueError, OSError):
            self._errors.seek(0)
            said = " ".join(self._errors.read().split())
            return f"({said[-_TAIL_CHARS:]})" if said else ""
        return ""


async def _tools_of(client: Any) -> tuple[ToolSpec, ...]:
    found: list[ToolSpec] = []
    cursor: str | None = None
    for _ in range(_MAX_PAGES):
        page = await client.list_tools(cursor=cursor)
        for tool in page.tools:
            description = " ".join((tool.description or tool.title or tool.name).split())
            found.append(ToolSpec(name=tool.name, description=description, parameters=dict(tool.input_schema)))
        cursor = page.next_cursor
        if cursor is None:
            break
    return tuple(found)


def _readable(result: Any) -> str:
    """Return a result's text; other contents are named."""
    parts = []
    for block in result.content:
        if block.type == "text":
            parts.append(block.text)
        elif block.type == "resource" and hasattr(block.resource, "text"):
            parts.append(block.resource.text)
        elif block.type == "resource_link":
            parts.append(f"[{block.uri}]")
        else:
            kind = getattr(block, "mime_type", None) or getattr(getattr(block, "resource", None), "mime_type", None)
            parts.append(f"[{block.type}, {kind or 'of unknown kind'}: it cannot be shown as text]")
    return "\n".join(parts)


def _is_timeout(error: BaseException) -> bool:
    return isinstance(_first(error), TimeoutError | FutureTimeoutError)


def _text(error: BaseException) -> str:
    first = _first(error)
    return f"{type(first).__name__}: {first}" if str(first) else type(first).__name__


def _first(error: BaseException) -> BaseException:
    """Return what stands behind a group of errors."""
    inner: Sequence[BaseException] = getattr(error, "exceptions", ())
    return _first(inner[0]) if inner else error
