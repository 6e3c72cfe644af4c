"""A WebSocket client (websockets) through Weir to ws_server.py.

    ws_client.py URL [--ca FILE] --quota N [--direct]

`--direct`: without Weir in between, so nothing is refused. This checks that the program expects what websockets does.
"""

import asyncio
import os

from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from common import arguments, same, trust

parser = arguments("WebSockets through Weir")
parser.add_argument("--quota", type=int, required=True)
parser.add_argument("--direct", action="store_true")
options = parser.parse_args()
URL = options.url.replace("http", "ws", 1)
SETTINGS = {"max_size": None, "ping_interval": None, "open_timeout": 30, "close_timeout": 30, "proxy": None}
if options.ca:
    SETTINGS["ssl"] = trust(options.ca)


def to(path, **more):
    return connect(URL + path, **SETTINGS, **more)


async def messages():
    async with to("/echo") as socket:
        for message in ("", "hello", "Zürich", b"", b"\x00\xff", "x" * 100_000):
            await socket.send(message)
            assert await socket.recv() == message
        same("texts and bytes", socket.response.status_code, 101)
        large = os.urandom(8 << 20)
        await socket.send(large)
        same("8 MiB there and back", await socket.recv() == large, True)
        # Frame by frame.
        await socket.send(["one ", "two ", "", "three"])
        same("in fragments", await socket.recv(), "one two three")
        await socket.send([b"a" * 70_000, b"b" * 70_000, b"c"])
        same("in large fragments", await socket.recv() == b"a" * 70_000 + b"b" * 70_000 + b"c", True)

        async def say():
            for number in range(5000):
                await socket.send(f"message {number}")

        speaking = asyncio.create_task(say())
        came = [await socket.recv() for _ in range(5000)]
        await speaking
        same("5000, sent while they come back", came == [f"message {number}" for number in range(5000)], True)
    same("closed by us", (socket.close_code, socket.close_reason), (1000, ""))
    async with to("/echo", compression=None) as socket:
        await socket.send("plain " * 1000)
        same("without compression", await socket.recv() == "plain " * 1000, True)


async def pings():
    async with to("/echo") as socket:
        waits = [await socket.ping(payload) for payload in (b"", b"a", b"b" * 125)]
        same("pongs", len([await wait for wait in waits]), 3)
    async with to("/ping") as socket:
        same("pinged by the server", await socket.recv(), "you are")


async def closing():
    for code, reason in ((1000, "done"), (1001, "going"), (1011, "broken"), (4321, "ours")):
        async with to(f"/close/{code}/{reason}") as socket:
            try:
                await socket.recv()
                raise AssertionError("not closed")
            except ConnectionClosed as closed:
                same("closed by the server", (closed.rcvd.code, closed.rcvd.reason), (code, reason))
    async with to("/wait/politely") as socket:
        same("begun", await socket.recv(), "waiting")
        await socket.close(4999, "enough")
    async with to("/wait/rudely") as socket:
        same("begun", await socket.recv(), "waiting")
        socket.transport.abort()
    async with to("/count/3000") as socket:
        came = [message async for message in socket]
    # Messages sent before the close arrive before it.
    same("all that came before the close", came == [str(number) for number in range(3000)], True)


async def handshakes():
    async with to("/echo", subprotocols=["chat.v1", "chat.v2"]) as socket:
        same("subprotocol", socket.subprotocol, "chat.v2")
    try:
        await to("/reject")
        raise AssertionError("not rejected")
    except InvalidStatus as refused:
        same("the server's own refusal", (refused.response.status_code, refused.response.body), (403, b"not you\n"))


async def quiet():
    async with to("/echo") as socket:
        # Longer than the proxy waits for a head, or for a next request.
        await asyncio.sleep(2.5)
        await socket.send("awake")
        same("after silence", await socket.recv(), "awake")


async def at_once():
    async def one(number):
        async with to("/echo") as socket:
            for turn in range(20):
                await socket.send(f"{number} {turn}")
                assert await socket.recv() == f"{number} {turn}"

    await asyncio.gather(*(one(number) for number in range(50)))
    print("50 at once", flush=True)


async def refusals():
    open_ones = [await to("/few") for _ in range(options.quota)]
    for _ in range(3):
        try:
            await to("/few")
            raise AssertionError("not refused")
        except InvalidStatus as refused:
            reply = refused.response
            same("refused", (reply.status_code, reply.headers["content-type"]), (429, "application/problem+json"))
            same("when to come back", 0 < int(reply.headers["retry-after"]) <= 86_400, True)
    # Admitted connections continue: the limit counts only their starts.
    for socket in open_ones:
        await socket.send("still here")
        assert await socket.recv() == "still here"
        await socket.close()


async def main():
    for part in (messages, pings, closing, handshakes, quiet, at_once):
        await part()
    if not options.direct:
        await refusals()


asyncio.run(main())
