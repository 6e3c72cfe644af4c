"""A server of the Model Context Protocol (the Python SDK's, under uvicorn), at /mcp. Its tools count their calls. Prints `listening ADDRESS`.

    mcp_server.py
"""

import collections
import socket

import uvicorn
from mcp.server.mcpserver import MCPServer

server = MCPServer("counting", log_level="ERROR")
counts = collections.Counter()


@server.tool()
def search(query: str) -> str:
    """Finds nothing."""
    counts["search"] += 1
    return f"nothing about {query}"


@server.tool()
def run_report(name: str) -> str:
    """A report that takes long."""
    counts["run_report"] += 1
    return f"report {name}"


@server.tool()
def calls() -> dict[str, int]:
    """How often the other tools were called."""
    return dict(counts)


listener = socket.create_server(("127.0.0.1", 0))
print("listening {}:{}".format(*listener.getsockname()), flush=True)
# Without a check of Host: clients come through Weir.
application = server.streamable_http_app(host="0.0.0.0")
uvicorn.Server(uvicorn.Config(application, log_level="error")).run([listener])
