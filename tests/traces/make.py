"""Makes small.log: an invented web server's log in the combined format, the same each time.

    make.py > small.log

A few clients send most of the requests, in bursts and with pauses, as real ones do. Some have IPv6 addresses, two pairs of them in one /64, and
some have names, as in logs of servers that resolve addresses. All addresses are reserved for documentation.
"""

import random
from datetime import datetime, timedelta, timezone

REQUESTS = 700
# Only random() is used: its numbers are the same in all versions of Python.
CHANCE = random.Random(20150517)

CLIENTS = (
    [f"192.0.2.{number}" for number in range(1, 17)]
    + [f"198.51.100.{number * 3}" for number in range(1, 11)]
    + [f"203.0.113.{number * 7}" for number in range(1, 7)]
    + ["2001:db8:1:1::5", "2001:db8:1:1:aaaa::6", "2001:db8:2::1", "2001:db8:2:0:ffff:ffff:ffff:ffff", "2001:db8:3::1", "2001:DB8:4::0001"]
    + ["crawler.example.net", "home-42.isp.example", "proxy.campus.example"]
)
PAGES = ["/", "/robots.txt", "/index.html", "/images/logo.png", "/blog/", "/blog/2015/05/clocks.html", "/feed?format=rss", "/search?q=a%20b", "/favicon.ico"]
AGENTS = ["Mozilla/5.0 (X11; Linux x86_64)", "Mozilla/5.0 (compatible; examplebot/1.0)", "curl/7.38.0"]


def pick(values):
    """Picks one of the items; the first ones much more often."""
    return values[int(len(values) * CHANCE.random() ** 2.2)]


now, lines = datetime(2015, 5, 17, 23, 52, 3, tzinfo=timezone.utc), []
while len(lines) < REQUESTS:
    client, burst = pick(CLIENTS), 1 + int(12 * CHANCE.random() ** 3)
    for _ in range(burst):
        # Usually several in a second; other clients come in between.
        now += timedelta(seconds=1 if CHANCE.random() < 0.4 else 0)
        who = client if CHANCE.random() < 0.8 else pick(CLIENTS)
        page, status, size = pick(PAGES), 200 if CHANCE.random() < 0.9 else 404, int(CHANCE.random() * 90_000)
        stamp = now.strftime("%d/%b/%Y:%H:%M:%S %z")
        lines.append(f'{who} - - [{stamp}] "GET {page} HTTP/1.1" {status} {size} "-" "{pick(AGENTS)}"')
    now += timedelta(seconds=int(20 * CHANCE.random() ** 4))
print("\n".join(lines[:REQUESTS]))
