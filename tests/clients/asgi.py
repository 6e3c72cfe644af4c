"""An ASGI application on hypercorn, as an upstream: HTTP/1.1 and HTTP/2 (by prior knowledge; by ALPN with a certificate).

    asgi.py [CERTIFICATE KEY]

Prints `listening ADDRESS`, then a line for each event that a test may wait for.
"""

import asyncio
import hashlib
import json
import socket
import sys

from hypercorn.asyncio import serve
from hypercorn.config import Config

# Events that a client has requested, by its name: the stream sends the next one only then.
turns: dict[str, asyncio.Semaphore] = {}


async def body_of(receive):
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ConnectionError("the client went away")
        yield message.get("body", b"")
        if not message.get("more_body"):
            return


async def answer(send, status=200, headers=(), body=b"", content_type=b"text/plain"):
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", content_type), *headers]})
    await send({"type": "http.response.body", "body": body})


async def seen(scope, receive, send):
    """Returns the request as JSON, with the body as its length and digest."""
    digest, length = hashlib.sha256(), 0
    async for piece in body_of(receive):
        digest.update(piece)
        length += len(piece)
    headers = {}
    for name, value in scope["headers"]:
        headers.setdefault(name.decode(), []).append(value.decode("latin-1"))
    told = {
        "method": scope["method"],
        "version": scope["http_version"],
        "path": scope["raw_path"].decode(),
        "query": scope["query_string"].decode(),
        "headers": headers,
        "length": length,
        "sha256": digest.hexdigest(),
    }
    await answer(send, body=json.dumps(told).encode(), content_type=b"application/json")


async def echo(scope, receive, send):
    """Sends each piece of the body back as it arrives."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/octet-stream")]})
    async for piece in body_of(receive):
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def events(scope, receive, send):
    """Server-sent events: /events/NAME sends one for each request to /turn/NAME, /events/NAME/PAUSE/COUNT one after each pause, in seconds."""
    parts = scope["path"].split("/")[2:]
    name, pause, count = parts[0], float(parts[1]) if len(parts) > 1 else None, int(parts[2]) if len(parts) > 2 else None
    turns[name] = asyncio.Semaphore(0)
    head = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store")]
    await send({"type": "http.response.start", "status": 200, "headers": head})
    # Makes the head leave at once, as with a real event source.
    await send({"type": "http.response.body", "body": b": welcome\n\n", "more_body": True})

    async def talk():
        number = 0
        while count is None or number < count:
            if pause is None:
                await turns[name].acquire()
            else:
                await asyncio.sleep(pause)
            number += 1
            piece = f"id: {number}\nevent: tick\ndata: number {number} for {name}\n\n".encode()
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def listen():
        while (await receive())["type"] != "http.disconnect":
            pass
        print(f"gone {name}", flush=True)

    tasks = {asyncio.create_task(talk()), asyncio.create_task(listen())}
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()


async def turn(scope, receive, send):
    name = scope["path"].split("/")[2]
    if name not in turns:
        await answer(send, 404)
        return
    turns[name].release()
    await answer(send, body=b"done")


async def cookies(scope, receive, send):
    await answer(send, headers=[(b"set-cookie", b"a=1"), (b"set-cookie", b"b=2; Path=/")])


async def moved(scope, receive, send):
    await answer(send, 302, [(b"location", b"/seen?after=moved")])


async def size(scope, receive, send):
    """/size/N: N bytes in pieces, without a length."""
    left = int(scope["path"].split("/")[2])
    await send({"type": "http.response.start", "status": 200, "headers": []})
    while left:
        piece = min(left, 65_536)
        left -= piece
        await send({"type": "http.response.body", "body": b"x" * piece, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


ROUTES = {"seen": seen, "echo": echo, "events": events, "turn": turn, "cookies": cookies, "moved": moved, "size": size}


async def application(scope, receive, send):
    if scope["type"] == "lifespan":
        while True:
            message = await receive()
            await send({"type": message["type"] + ".complete"})
            if message["type"] == "lifespan.shutdown":
                return
    route = ROUTES.get(scope["path"].split("/")[1])
    try:
        await (route(scope, receive, send) if route else answer(send, 404, body=b"no such page\n"))
    except ConnectionError:
        print("gone", flush=True)


async def main():
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    config = Config()
    config.bind = [f"fd://{listener.fileno()}"]
    config.accesslog = None
    config.errorlog = None
    config.keep_alive_timeout = 600
    config.h2_max_concurrent_streams = 1000
    # Half an hour of events is not an error.
    config.read_timeout = None
    if len(sys.argv) > 2:
        config.certfile, config.keyfile = sys.argv[1:3]
        config.alpn_protocols = ["h2", "http/1.1"]
    print("listening {}:{}".format(*listener.getsockname()), flush=True)
    await serve(application, config)


asyncio.run(main())
