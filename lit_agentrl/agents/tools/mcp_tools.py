"""Tools of MCP servers: started or reached once a worker, described by themselves, called like our own."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from lit_agentrl.agents.tools.base import ToolRestartedError, ToolSource
from lit_agentrl.agents.tools.mcp_client import Connection, ServerAddress, ServerLostError
from lit_agentrl.envs.extras import check_installed
from lit_agentrl.types import ToolSpec

_KEY = "agent.init_args.tools: make_mcp_tools"
_INSTALL = "pip install 'lit_agentrl[mcp]'"
_MAX_PROBLEMS = 3
_MAX_PROBLEM_CHARS = 200


def make_mcp_tools(
    *,
    command: Sequence[str] = (),
    url: str = "",
    tools: Sequence[str] | None = None,
    prefix: str = "",
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    headers: Mapping[str, str] | None = None,
    timeout_s: float = 20.0,
    start_timeout_s: float = 20.0,
    max_restarts: int = 1,
    max_message_mb: int = 16,
    fresh_per_episode: bool = False,
) -> ToolSource:
    """Make the tools of one MCP server. The server runs with the user's own rights, outside of any sandbox.

    Args:
        command: Program and arguments of a server that speaks over its standard streams; `python` is the one that
            runs this. Each worker process starts its own.
        url: Or the address of one that is running, reached over HTTP.
        tools: Only these of its tools; all by default.
        prefix: Put before the tools' names.
        env: Variables for a started server; besides it gets PATH, HOME and a few others, none of the trainer's.
        cwd: Folder in which it is started.
        headers: HTTP headers for `url`.
        timeout_s: Seconds for a call.
        start_timeout_s: Seconds for the start.
        max_restarts: How often in an episode a server that died is started again.
        max_message_mb: A started server that writes a longer message is ended.
        fresh_per_episode: Whether each episode that calls gets a server of its own, so that none sees what others left.

    Raises:
        ValueError: An argument is not accepted, the package is missing, or the server cannot be started.
    """
    check_installed(_KEY, {"mcp": _INSTALL, "jsonschema": _INSTALL})
    if bool(command) == bool(url):
        raise ValueError(f"{_KEY}: init_args.command or init_args.url must be given, and not both")
    for name, value, least in (
        ("timeout_s", timeout_s, 0.05),
        ("start_timeout_s", start_timeout_s, 0.05),
        ("max_restarts", max_restarts, 0),
        ("max_message_mb", max_message_mb, 1),
    ):
        if value < least:
            raise ValueError(f"{_KEY}: init_args.{name} must be at least {least}, got {value}")
    address = ServerAddress(
        command=tuple(command),
        url=url,
        env=dict(env or {}),
        cwd=cwd,
        headers=dict(headers or {}),
        max_message_mb=max_message_mb,
    )
    return McpTools(
        address,
        only=tools,
        prefix=prefix,
        timeout_s=timeout_s,
        start_timeout_s=start_timeout_s,
        max_restarts=max_restarts,
        fresh_per_episode=fresh_per_episode,
    )


make_mcp_tools.preload = ("mcp", "jsonschema")  # type: ignore[attr-defined]  # imported once, before workers fork


class McpTools:
    """The tools of one server, for all slots of a worker. A server that died is started again, and the model told."""

    def __init__(
        self,
        address: ServerAddress,
        *,
        only: Sequence[str] | None,
        prefix: str,
        timeout_s: float,
        start_timeout_s: float,
        max_restarts: int,
        fresh_per_episode: bool,
    ) -> None:
        self._address = address
        self._timeout_s = timeout_s
        self._start_timeout_s = start_timeout_s
        self._max_restarts = max_restarts
        self._fresh = fresh_per_episode
        self._connections: dict[int, Connection] = {}  # by slot, or one for all; none where the server is down
        self._used: set[int] = set()  # slots whose episode has called the server
        self._losses: Counter[int] = Counter()  # how often a slot's episode met a server that died or did not start
        try:
            first = self._connect()
        except ServerLostError as error:
            raise ValueError(f"{_KEY}: the server {str(address)!r} cannot be started: {error}") from None
        try:
            offered = {spec.name: spec for spec in first.specs}
            unknown = [name for name in only or () if name not in offered]
            if unknown or not offered:
                raise ValueError(
                    f"{_KEY}: init_args.tools: the server {str(address)!r} has no {', '.join(unknown) or 'tools'}; "
                    f"it has: {', '.join(offered) or 'none'}"
                )
            self._names = {f"{prefix}{name}": name for name in (offered if only is None else only)}
            self._specs = tuple(dataclasses.replace(offered[name], name=shown) for shown, name in self._names.items())
            self._validators = {spec.name: _validator(spec) for spec in self._specs}
        except BaseException:
            first.close()
            raise
        self._connections[0] = first

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """The tools, with the server's descriptions and schemas."""
        return self._specs

    def start_episode(self, slot: int) -> None:
        """Allow restarts again; end the slot's server if another episode has used it and each is to have its own."""
        self._losses[slot] = 0
        if self._fresh and slot in self._used:
            self._used.discard(slot)
            self._end(slot)

    def call(self, name: str, arguments: Mapping[str, Any], *, slot: int) -> str:
        """Call a tool; see `lit_agentrl.agents.tools.base.ToolSource`.

        Raises:
            ValueError: The arguments do not fit the schema, the tool failed or took too long, or the server is down.
            ToolRestartedError: The server died and was started again. The call is not repeated: it may have been
                carried out.
        """
        _check(self._validators[name], arguments)
        self._used.add(slot)
        place = slot if self._fresh else 0
        connection = self._connections.get(place) or self._open(place, slot)
        try:
            return connection.call(self._names[name], arguments, timeout_s=self._timeout_s)
        except ServerLostError as error:
            how = str(error)
        self._end(place)
        self._losses[slot] += 1
        if self._losses[slot] > self._max_restarts:
            raise ValueError(f"the server died ({how}) and is not started again in this episode")
        self._open(place, slot)
        raise ToolRestartedError(
            f"the server died ({how}) and was started again; what it remembered is gone, and the call may or may not "
            "have been carried out"
        )

    def close(self) -> None:
        """End all servers. Closing twice is fine."""
        for place in list(self._connections):
            self._end(place)

    def _open(self, place: int, slot: int) -> Connection:
        if self._losses[slot] > self._max_restarts:
            raise ValueError("the server is down and is not started again in this episode")
        try:
            connection = self._connections[place] = self._connect()
        except ServerLostError as error:
            self._losses[slot] += 1
            raise ValueError(f"the server is down and cannot be started: {error}") from None
        return connection

    def _end(self, place: int) -> None:
        connection = self._connections.pop(place, None)
        if connection is not None:
            connection.close()

    def _connect(self) -> Connection:
        return Connection(self._address, start_timeout_s=self._start_timeout_s)


def _validator(spec: ToolSpec) -> Any:
    """Return what checks a tool's arguments; `None` if its schema is none, so that only the server can."""
    from jsonschema.exceptions import SchemaError
    from jsonschema.validators import Draft202012Validator, validator_for
    from referencing import Registry

    cls = validator_for(spec.parameters, default=Draft202012Validator)
    try:
        cls.check_schema(spec.parameters)
    except SchemaError:
        return None
    return cls(spec.parameters, registry=Registry())  # an empty one: nothing is fetched from anywhere


def _check(validator: Any, arguments: Mapping[str, Any]) -> None:
    """Check arguments here, so that mistakes are told in the same words whatever the server would say.

    Raises:
        ValueError: They do not fit; names each that does not.
    """
    from referencing.exceptions import Unresolvable

    if validator is None:
        return
    try:
        errors = list(validator.iter_errors(dict(arguments)))
    except Unresolvable:  # the schema refers to another one elsewhere: the server has to check
        return
    if errors:
        raise ValueError("; ".join(_problem(error) for error in errors[:_MAX_PROBLEMS]))


def _problem(error: Any) -> str:
    if error.validator == "required" and not error.absolute_path:
        missing = next(name for name in error.validator_value if name not in error.instance)
        return f"argument {missing!r} is missing"
    place = ".".join(map(str, error.absolute_path))
    text = error.message if len(error.message) <= _MAX_PROBLEM_CHARS else f"...{error.message[-_MAX_PROBLEM_CHARS:]}"
    return f"argument {place!r}: {text}" if place else text
