"""Our tools as an MCP server over its standard streams: `python -m lit_agentrl.agents.tools.mcp_serve PATH ...`."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from typing import Any

from lit_agentrl.agents.tools.base import ToolBox, ToolEntry

_MAX_CHARS = 1_000_000


async def serve(tools: Sequence[ToolEntry]) -> None:
    """Serve tools until the input ends.

    Args:
        tools: As under `agent.init_args.tools`.
    """
    import mcp_types as types
    from mcp.server.lowlevel import Server
    from mcp.server.stdio import stdio_server

    box = ToolBox(tools)

    async def list_tools(_context: Any, _params: Any) -> types.ListToolsResult:
        listed = [
            types.Tool(name=spec.name, description=spec.description, input_schema=dict(spec.parameters))
            for spec in box.specs
        ]
        return types.ListToolsResult(tools=listed)

    async def call_tool(_context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        output = await asyncio.to_thread(box.call, params.name, params.arguments or {}, max_chars=_MAX_CHARS)
        text = output.text.removeprefix(f"Error: {params.name}: ") if output.error else output.text
        return types.CallToolResult(content=[types.TextContent(type="text", text=text)], is_error=output.error)

    server = Server("lit_agentrl", on_list_tools=list_tools, on_call_tool=call_tool)
    try:
        async with stdio_server() as (incoming, outgoing):
            await server.run(incoming, outgoing, server.create_initialization_options())
    finally:
        box.close()


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m lit_agentrl.agents.tools.mcp_serve", description=__doc__)
    parser.add_argument("tools", nargs="+", help="import paths, or JSON with class_path and init_args")
    options = parser.parse_args(arguments)
    try:
        entries = [json.loads(entry) if entry.startswith("{") else entry for entry in options.tools]
        asyncio.run(serve(entries))
    except ValueError as error:
        parser.exit(1, f"{parser.prog}: {error}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
