"""Whether an installed program works: `serves.py COMMAND ...` runs `COMMAND run --to ...` in front
of a small server, sees three requests admitted and the fourth refused as the limit says, has
`COMMAND health` ask it, and ends it with SIGTERM.

`serves.py --emulated COMMAND ...` runs it from a file, with room for a few instances of a policy: Weir
reserves terabytes of addresses for a thousand, and qemu keeps a record of each page of them. The
policy also has more time."""

import http.client
import http.server
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

# Under an emulator, policies are compiled for half a minute.
START_SECONDS = 120
STOP_SECONDS = 30


SMALL = """
[[listeners]]
address = "127.0.0.1:{listen}"
[admin]
address = "127.0.0.1:{admin}"
[server]
workers = 1
policies = {{ instances = 4, core_instances = 4 }}
[upstreams.to]
endpoints = ["{to}"]
[policies.limit]
use = "client-ip"
cpu_time = "1s"
config.limits = [{{ name = "limit", algorithm = "fixed_window", quota = 3, period = "1m" }}]
[[routes]]
path = "/*"
upstream = "to"
policy = "limit"
"""


class Upstream(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "6")
        self.end_headers()
        self.wfile.write(b"hello\n")

    def log_message(self, *_):
        pass


def main():
    command = sys.argv[1:]
    is_emulated = command[0] == "--emulated"
    if is_emulated:
        command = command[1:]
    upstream = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Upstream)
    threading.Thread(target=upstream.serve_forever, daemon=True).start()
    listen, admin = free_port(), free_port()
    to = f"http://127.0.0.1:{upstream.server_port}"
    words = [
        "run", "--to", to, "--limit", "3/1m",
        "--listen", f"127.0.0.1:{listen}", "--admin", f"127.0.0.1:{admin}",
    ]
    file = tempfile.NamedTemporaryFile("w", suffix=".toml")
    if is_emulated:
        file.write(SMALL.format(to=to, listen=listen, admin=admin))
        file.flush()
        words = ["run", "--config", file.name]
    weir = subprocess.Popen([*command, *words])
    try:
        await_listener(weir, listen)
        statuses = [ask(listen) for _ in range(4)]
        expect("the statuses of four requests", statuses, [200, 200, 200, 429])
        health = [*command, "health", "--admin", f"127.0.0.1:{admin}", "--timeout", "20s"]
        expect("the exit code of `weir health`", subprocess.run(health).returncode, 0)
        stop(weir)
    finally:
        if weir.poll() is None:
            weir.kill()
    print(f"serves: {' '.join(command)}")


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def await_listener(weir, port):
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if weir.poll() is not None:
            raise SystemExit(f"weir ended with {weir.returncode} before it listened")
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.05)
    raise SystemExit(f"weir did not listen within {START_SECONDS} s")


def ask(port):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", "/")
    response = connection.getresponse()
    body = response.read()
    if response.status == 200:
        expect("the upstream's body", body, b"hello\n")
        expect("a RateLimit field", response.getheader("RateLimit") is not None, True)
    else:
        expect("a Retry-After field", response.getheader("Retry-After") is not None, True)
    connection.close()
    return response.status


def stop(weir):
    """Ends the program itself: a launcher that is its parent, such as bwrap, would not pass the
    signal on."""
    last = weir.pid
    while True:
        children = pathlib.Path(f"/proc/{last}/task/{last}/children").read_text().split()
        if not children:
            break
        last = int(children[0])
    os.kill(last, signal.SIGTERM)
    expect("the exit code after SIGTERM", weir.wait(STOP_SECONDS), 0)


def expect(what, found, expected):
    if found != expected:
        raise SystemExit(f"{what}: found {found}, expected {expected}")


if __name__ == "__main__":
    main()
