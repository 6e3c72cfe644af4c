"""An ASGI middleware that asks Weir before each HTTP request: `app = Limit(app, weir, "api")`.

`own` are the fields that only the policy may set, in lower case, such as `["x-plan"]`: one that a
client sends does not reach the application.
"""
import asyncio
from urllib.parse import quote


class Limit:
    def __init__(self, app, weir, domain, own=()):
        self.app, self.weir, self.domain = app, weir, domain
        self.own = {name.encode("latin-1") for name in own}

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
        decision = await asyncio.to_thread(self.weir.decide, self.domain, facts)
        fields = encoded(decision.fields)
        if not decision.allowed:
            body = (decision.body or "").encode()
            fields.append((b"content-length", b"%d" % len(body)))
            await send({"type": "http.response.start", "status": decision.status,
                        "headers": fields})
            return await send({"type": "http.response.body", "body": body})

        async def send_with_fields(message):
            if message["type"] == "http.response.start":
                message = {**message, "headers": replaced(message.get("headers", ()), fields)}
            await send(message)

        headers = [(n, v) for n, v in scope["headers"] if bytes(n).lower() not in self.own]
        headers = replaced(headers, encoded(decision.request_fields))
        await self.app({**scope, "headers": headers}, receive, send_with_fields)


def encoded(fields):
    return [(n.lower().encode("latin-1"), v.encode("latin-1")) for n, v in fields]


def replaced(headers, fields):
    """`headers` with `fields`, which take the place of any of the same name."""
    names = {name for name, _ in fields}
    return [(n, v) for n, v in headers if bytes(n).lower() not in names] + fields
