"""The Python SDK's client of the Model Context Protocol, through Weir to mcp_server.py. `quota` calls of search pass, and none of run_report.

    mcp_client.py URL --server URL --mode MODE --quota N
"""

import asyncio

from mcp import MCPError
from mcp.client import Client

from common import arguments, same

parser = arguments("the Model Context Protocol through Weir")
parser.add_argument("--server", required=True, help="the server itself")
parser.add_argument("--mode", required=True, help="legacy: with a session; auto: the newest revision that both know")
parser.add_argument("--quota", type=int, required=True)
options = parser.parse_args()


async def refusal(client, tool, arguments):
    try:
        await client.call_tool(tool, arguments)
    except MCPError as error:
        return error
    raise AssertionError(f"{tool} was called")


async def counts():
    async with Client(f"{options.server}/mcp") as direct:
        return (await direct.call_tool("calls", {})).structured_content


async def through_weir():
    before = await counts()
    async with Client(f"{options.url}/mcp", mode=options.mode) as client:
        print("revision:", client.protocol_version)
        tools = await client.list_tools()
        same("tools", sorted(tool.name for tool in tools.tools), ["calls", "run_report", "search"])
        for number in range(options.quota):
            result = await client.call_tool("search", {"query": str(number)})
            same("a result", result.content[0].text, f"nothing about {number}")
        error = await refusal(client, "search", {"query": "more"})
        same("the code", error.code, -32029)
        same("the message", error.message.startswith('Rate limit: the tool "search" was not called. The allowance is used up for now. Try again in '), True)
        data = error.data
        same("the data", (data["limit"], data["method"], data["tool"]), ("searches", "tools/call", "search"))
        same("when to come back", 0 < data["retry_after_seconds"] <= 86_400, True)
        same("another tool", (await refusal(client, "run_report", {"name": "a"})).data["limit"], "reports")
        # The connection and the session are as good as before.
        same("after a refusal", (await client.call_tool("calls", {})).is_error, False)
        same("tools again", len((await client.list_tools()).tools), 3)
    after = await counts()
    same("calls that reached the server", after.get("search", 0) - before.get("search", 0), options.quota)
    same("reports", after.get("run_report", 0), 0)


asyncio.run(through_weir())
