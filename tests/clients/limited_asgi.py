"""An application on hypercorn behind examples/clients/python/asgi.py.

    limited_asgi.py WEIR_URL

Prints `listening ADDRESS`.
"""

import asyncio
import pathlib
import socket
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "examples/clients/python"))

from asgi import Limit  # noqa: E402
from hypercorn.asyncio import serve  # noqa: E402
from hypercorn.config import Config  # noqa: E402
from weir import Weir  # noqa: E402


async def hello(scope, receive, send):
    plans = [value for name, value in scope["headers"] if name == b"x-plan"]
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b" ".join([b"hello", *plans])})


listener = socket.socket()
listener.bind(("127.0.0.1", 0))
config = Config()
config.bind = [f"fd://{listener.fileno()}"]
print("listening %s:%d" % listener.getsockname(), flush=True)
weir = Weir(sys.argv[1], timeout=5)
asyncio.run(serve(Limit(hello, weir, "api", own=["x-plan"]), config, mode="asgi"))
