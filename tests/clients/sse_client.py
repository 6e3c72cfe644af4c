"""A reader of server-sent events (httpx), through Weir to asgi.py. It requests each event when it has read the previous one, so an event that is
buffered on its way would block it for ever.

    sse_client.py URL [--h2] [--ca FILE] NAME EVENTS PAUSE PAUSES
"""

import httpx

from common import arguments, same, trust

parser = arguments("server-sent events through Weir")
parser.add_argument("name")
parser.add_argument("events", type=int)
parser.add_argument("pause", type=float, help="seconds between two events that come by themselves")
parser.add_argument("pauses", type=int)
options = parser.parse_args()
settings = {"base_url": options.url, "http1": not options.h2, "http2": options.h2, "verify": trust(options.ca), "timeout": 30, "trust_env": False}


def events(reply):
    """Each event, as a dictionary of its lines."""
    event = {}
    for line in reply.iter_lines():
        if line:
            name, _, value = line.partition(": ")
            event[name] = value
        elif event.keys() - {""}:
            yield event
            event = {}
        else:
            # A comment: only the first message has one.
            event = {}
            yield None


with httpx.Client(**settings) as client, httpx.Client(**settings) as other:
    with client.stream("GET", f"/events/{options.name}", headers={"Accept": "text/event-stream"}) as reply:
        same("status and type", (reply.status_code, reply.headers["content-type"]), (200, "text/event-stream"))
        coming = events(reply)
        same("the welcome comes at once", next(coming), None)
        for number in range(1, options.events + 1):
            same("asked for one", other.get(f"/turn/{options.name}").text, "done")
            wanted = {"id": str(number), "event": "tick", "data": f"number {number} for {options.name}"}
            same("came", next(coming), wanted)
    # The stream is closed here, and the server notices.
    with client.stream("GET", f"/events/{options.name}-slow/{options.pause}/{options.pauses}") as reply:
        came = [event["id"] for event in events(reply) if event]
    same("after long pauses", came, [str(number) for number in range(1, options.pauses + 1)])
