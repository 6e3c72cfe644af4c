"""httpx, synchronous and asynchronous, through Weir to asgi.py. The policy admits everything, except under /few: `quota` requests.

    httpx_client.py URL [--h2] [--ca FILE] --quota N
"""

import asyncio
import hashlib

import httpx

from common import arguments, same, trust

parser = arguments("httpx through Weir")
parser.add_argument("--quota", type=int, required=True)
options = parser.parse_args()
settings = {
    "base_url": options.url,
    "http1": not options.h2,
    "http2": options.h2,
    "verify": trust(options.ca),
    "timeout": 30,
    "trust_env": False,
}
version = "HTTP/2" if options.h2 else "HTTP/1.1"


def pieces(count, size):
    for number in range(count):
        yield bytes([number % 251]) * size


def one_after_another():
    with httpx.Client(**settings) as client:
        reply = client.get("/seen", params={"q": "a b&c", "e": "é"}, headers={"X-Ask": "yes", "Cookie": "a=1; b=2"})
        told = reply.json()
        same("status and version", (reply.status_code, reply.http_version), (200, version))
        same("query", told["query"], "q=a+b%26c&e=%C3%A9")
        same("field", told["headers"]["x-ask"], ["yes"])
        same("cookies", "; ".join(told["headers"]["cookie"]), "a=1; b=2")
        same("host", told["headers"].get("host", [""])[0], httpx.URL(options.url).netloc.decode())

        same("posted JSON", client.post("/echo", json={"name": ["Weir", 1]}).json(), {"name": ["Weir", 1]})
        same("a form", client.post("/echo", data={"a": "1 2"}).text, "a=1+2")
        files = {"file": ("a.bin", b"\x00\xff" * 50_000)}
        same("a file is longer in multipart", client.post("/seen", files=files).json()["length"] > 100_000, True)

        told = client.post("/seen", content=pieces(100, 10_007)).json()
        digest = hashlib.sha256(b"".join(pieces(100, 10_007))).hexdigest()
        same("streamed up", (told["length"], told["sha256"]), (1_000_700, digest))
        with client.stream("POST", "/echo", content=pieces(100, 10_007)) as reply:
            came = hashlib.sha256()
            for piece in reply.iter_bytes():
                came.update(piece)
        same("streamed both ways", came.hexdigest(), digest)

        # Abandoned in the middle: the next request must not read the rest of it.
        with client.stream("GET", "/size/5000000") as reply:
            same("the first bytes", next(reply.iter_raw())[:3], b"xxx")
        same("after a reply that was left", client.post("/echo", content=b"next").text, "next")

        same("HEAD", (client.head("/seen").status_code, client.head("/seen").content), (200, b""))
        same("cookies set", dict(client.get("/cookies").cookies), {"a": "1", "b": "2"})
        client.cookies.clear()
        moved = client.get("/moved", follow_redirects=True)
        same("a redirect", (moved.status_code, moved.json()["query"]), (200, "after=moved"))
        same("not found", client.get("/nowhere").text, "no such page\n")
        for method in ("PUT", "PATCH", "DELETE", "OPTIONS"):
            same(method, client.request(method, "/seen").json()["method"], method)


async def at_once():
    limits = httpx.Limits(max_connections=50)
    async with httpx.AsyncClient(**settings, limits=limits) as client:
        bodies = [bytes([number % 251]) * (number * 100) for number in range(200)]
        replies = await asyncio.gather(*(client.post("/echo", content=body) for body in bodies))
        same("200 at once", sum(reply.content == body for reply, body in zip(replies, bodies)), 200)

        replies = await asyncio.gather(*(client.get(f"/few/{number}") for number in range(options.quota + 20)))
        # asgi.py has no such page, so an admitted request gets a 404.
        same("admitted", sum(reply.status_code == 404 for reply in replies), options.quota)
        # With a body: the refusal arrives while it is still being sent, and must be read anyway.
        # The body fits into the connection's window: several requests that wait for it would make httpcore stall.
        uploads = await asyncio.gather(*(client.post("/few/upload", content=b"x" * size) for size in (1, 1_000, 20_000) * 10))
        uploads.append(await client.post("/few/upload", content=b"x" * 200_000))
        same("refused with a body", {reply.status_code for reply in uploads}, {429})
        refused = [reply for reply in replies if reply.status_code == 429]
        same("refused", len(refused), 20)
        same("when to come back", all(0 < int(reply.headers["retry-after"]) <= 86_400 for reply in refused), True)
        problem = refused[0].json()
        same("the problem", (refused[0].headers["content-type"], problem["violated-policies"]), ("application/problem+json", ["few"]))


one_after_another()
asyncio.run(at_once())
