"""A WebSocket server (websockets). Prints `listening ADDRESS`, and `closed NAME CODE REASON` when a connection to /wait/NAME has ended.

    ws_server.py [CERTIFICATE KEY]
"""

import asyncio
import ssl
import sys

from websockets.asyncio.server import serve
from websockets.exceptions import ConnectionClosed


async def talk(socket):
    _, verb, *rest = socket.request.path.split("/")
    if verb in ("echo", "few"):
        async for message in socket:
            await socket.send(message)
    elif verb == "close":
        await socket.close(int(rest[0]), rest[1])
    elif verb == "ping":
        await (await socket.ping(b"are you there"))
        await socket.send("you are")
    elif verb == "count":
        for number in range(int(rest[0])):
            await socket.send(str(number))
    elif verb == "wait":
        await socket.send("waiting")
        try:
            await socket.recv()
        except ConnectionClosed as closed:
            code, reason = (closed.rcvd.code, closed.rcvd.reason) if closed.rcvd else (1006, "")
            print(f"closed {rest[0]} {code} {reason}", flush=True)


def refuse(connection, request):
    if request.path == "/reject":
        return connection.respond(403, "not you\n")
    return None


def choose(connection, offered):
    return "chat.v2" if "chat.v2" in offered else None


async def main():
    settings = {"select_subprotocol": choose, "max_size": None, "ping_interval": None, "process_request": refuse}
    if len(sys.argv) > 2:
        settings["ssl"] = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        settings["ssl"].load_cert_chain(*sys.argv[1:3])
    async with serve(talk, "127.0.0.1", 0, **settings) as server:
        print("listening {}:{}".format(*server.sockets[0].getsockname()), flush=True)
        await server.serve_forever()


asyncio.run(main())
