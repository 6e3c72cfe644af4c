"""Sends requests at a rate, whether they are answered or not, and prints what became of them.

Nine in ten are of one client (`greedy`), the others of another (`modest`), told apart by
`x-api-key`. One in twenty is for `/checkout`. Arguments: a port, phases such as `6:80`, which are
seconds and requests a second, and a file for when each request was answered, if one is wanted.
"""

import asyncio
import collections
import json
import random
import sys
import time

TIMEOUT_S = 30


async def ask(port, pool, path, key, ended):
    began = time.monotonic()
    connection = pool.pop() if pool else None
    try:
        connection = connection or await asyncio.open_connection("127.0.0.1", port)
        reader, writer = connection
        head = f"GET {path} HTTP/1.1\r\nhost: a\r\nx-api-key: {key}\r\n\r\n"
        writer.write(head.encode())
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), TIMEOUT_S)
        lines = head.lower().split(b"\r\n")
        status = int(lines[0].split(b" ")[1])
        for line in lines:
            if line.startswith(b"content-length:"):
                await reader.readexactly(int(line.split(b":")[1]))
        if b"connection: close" in lines:
            writer.close()
        else:
            pool.append(connection)
    except (asyncio.TimeoutError, asyncio.IncompleteReadError, OSError):
        status = 0
    ended.append((time.monotonic() - began, status, key, path, began))


def served(ended, fits):
    ours = [one for one in ended if fits(one)]
    return f"{sum(one[1] == 200 for one in ours)}/{len(ours)}"


async def phase(port, pool, seconds, rate, everything):
    ended, tasks = [], []
    start = due = time.monotonic()
    while due < start + seconds:
        due += random.expovariate(rate)
        await asyncio.sleep(max(0, due - time.monotonic()))
        key = "greedy" if random.random() < 0.9 else "modest"
        path = "/checkout" if random.random() < 0.05 else "/"
        tasks.append(asyncio.create_task(ask(port, pool, path, key, ended)))
    took = time.monotonic() - start
    times = sorted(one[0] for one in ended if one[1] == 200) or [0]
    at = lambda share: times[int(len(times) * share)] * 1e3
    statuses = dict(collections.Counter(one[1] for one in ended))
    print(
        f"{rate:5.0f}/s: {len(times) / took:6.1f} answered/s, p50 {at(0.5):5.0f} ms,"
        f" p99 {at(0.99):5.0f} ms, statuses {statuses},"
        f" checkout {served(ended, lambda one: one[3] == '/checkout')},"
        f" greedy {served(ended, lambda one: one[2:4] == ('greedy', '/'))},"
        f" modest {served(ended, lambda one: one[2:4] == ('modest', '/'))}",
        flush=True,
    )
    everything.append(ended)
    return tasks


async def main():
    port, phases = int(sys.argv[1]), sys.argv[2].split(",")
    pool, tasks, everything, start = [], [], [], time.monotonic()
    for written in phases:
        seconds, rate = written.split(":")
        tasks += await phase(port, pool, float(seconds), float(rate), everything)
    for task in tasks:
        task.cancel()
    if len(sys.argv) > 3:
        answers = [one for ended in everything for one in ended if one[1] == 200]
        with open(sys.argv[3], "w", encoding="utf-8") as file:
            json.dump([[one[4] + one[0] - start, one[0], one[2], one[3]] for one in answers], file)


asyncio.run(main())
