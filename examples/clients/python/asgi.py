"""An ASGI middleware that asks Weir before each HTTP request: `app = Limit(app, weir, "api")`.

`own` are the fields that only the policy may set, in lower case, such as `["x-plan"]`: one that a
client sends does not reach the application. `threads` is how many requests ask at the same time.
"""
import asyncio, time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from urllib.parse import quote

from weir import WeirError


class Limit:
    def __init__(self, app, weir, domain, own=(), threads=32):
        self.app, self.weir, self.domain = app, weir, domain
        self.own = {name.encode("latin-1") for name in own}
        # Not the loop's own threads, on which host names are looked up as well.
        self.threads = ThreadPoolExecutor(threads, "weir")

    async def __call__(self, scope, receive, send):
        if scope["type"] != "http":  # lifespan and WebSocket are passed on unasked
            return await self.app(scope, receive, send)
        path = scope.get("raw_path")  # as it was sent; not every server has it
        path = path.decode("latin-1") if path else quote(scope["path"])
        facts = {"method": scope["method"], "path": path}
        if scope.get("client"):  # a Unix socket has none
            facts["client-ip"] = scope["client"][0].removeprefix("::ffff:")
        keys = [v.decode("latin-1") for n, v in scope["headers"] if n == b"x-api-key"]
        if keys:
            facts["header.x-api-key"] = keys
        try:
            decision = await self.decide(facts)
        except WeirError as error:
            if error.status != 400:  # a mistake of ours: the server answers 500
                raise
            # Of what whoever asks can choose, only a path can be none.
            return await answer(send, 400, [(b"content-type", b"text/plain")], b"bad request\n")
        fields = encoded(decision.fields)
        if not decision.allowed:
            body = (decision.body or "").encode()
            return await answer(send, decision.status, fields, body)

        async def send_with_fields(message):
            if message["type"] == "http.response.start":
                message = {**message, "headers": replaced(message.get("headers", ()), fields)}
            await send(message)

        headers = [(n, v) for n, v in scope["headers"] if bytes(n).lower() not in self.own]
        headers = replaced(headers, encoded(decision.request_fields))
        await self.app({**scope, "headers": headers}, receive, send_with_fields)

    async def decide(self, facts):
        """The time that a request waits for a thread is part of the call's timeout."""
        deadline = time.monotonic() + self.weir.timeout
        call = partial(self.weir.decide, self.domain, facts, deadline=deadline)
        future = asyncio.wrap_future(self.threads.submit(call))
        try:
            done, _ = await asyncio.wait([future], timeout=self.weir.timeout)
            return future.result() if done else self.weir.fall_back("unreachable")
        finally:
            future.cancel()  # if no thread has begun with it, it is not sent


async def answer(send, status, fields, body):
    fields = [*fields, (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": fields})
    await send({"type": "http.response.body", "body": body})


def encoded(fields):
    return [(n.lower().encode("latin-1"), v.encode("latin-1")) for n, v in fields]


def replaced(headers, fields):
    """`headers` with `fields`, which take the place of any of the same name."""
    names = {name for name, _ in fields}
    return [(n, v) for n, v in headers if bytes(n).lower() not in names] + fields
