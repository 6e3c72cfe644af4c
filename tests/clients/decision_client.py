"""What examples/clients/python does with a real Weir, and with servers that misbehave.

    decision_client.py WEIR_URL UNREACHABLE_URL
"""

import asyncio
import contextlib
import datetime
import ipaddress
import pathlib
import socket
import ssl
import sys
import tempfile
import threading
import time

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "examples/clients/python"))

from asgi import Limit  # noqa: E402
from weir import Weir, WeirError  # noqa: E402


def mistake(status, call, *args, **named):
    try:
        found = call(*args, **named)
    except WeirError as error:
        assert error.status == status, error
    else:
        raise AssertionError(f"{args} {named}: {found}")


def with_a_real_weir(url, unreachable):
    weir = Weir(url, timeout=5)
    user = {"user": "python"}
    assert weir.look("users", entries=user).limits[0]["remaining"] == 3
    first = weir.decide("users", entries=user, idempotency_key="p1")
    assert first == weir.decide("users", entries=user, idempotency_key="p1") and first.allowed, first
    assert weir.look("users", entries=user).limits[0]["remaining"] == 2
    held = weir.decide("users", entries=user, hits=2, hold_ms=60_000)
    refused = weir.decide("users", entries=user)
    assert not refused.allowed and refused.status == 429, refused
    assert refused.refused_by == ("user",) and refused.retry_after_ms > 0, refused
    assert dict(refused.fields)["retry-after"] and refused.body, refused
    assert weir.renew(held.id, 30_000)
    assert weir.give_back(held.id) and not weir.give_back(held.id)
    held = weir.decide("users", entries=user, hold_ms=60_000)
    assert weir.settle(held.id, status=204) and not weir.settle(held.id)
    held = weir.decide("users", entries={"user": "p3"}, hold_ms=60_000)
    assert weir.settle(held.id, outcome="client-gone")
    one = [{"name": "own", "algorithm": "fixed_window", "quota": 1, "period": "1d"}]
    assert [weir.take("users", user, one).allowed for _ in range(2)] == [True, False]
    calls = [{"domain": "users", "entries": {"user": "p2"}} for _ in range(4)]
    for _ in range(2):  # the second time, it is answered again
        answers = weir.batch("/v1/decide", calls, idempotency_key="p4")
        assert [answer.allowed for answer in answers] == [True, True, True, False]
    mistake(404, weir.decide, "nobody")
    for on_error, allowed in [("deny", False), ("allow", True)]:
        fallen = Weir(unreachable, on_error=on_error).decide("users", entries=user)
        assert fallen.allowed == allowed and fallen.degraded == "unreachable", fallen


def what_would_be_allowed_uncounted():
    weir = Weir("http://127.0.0.1:9", on_error="allow")
    for wrong in (None, 7, ["a", "b"]):
        mistake(400, weir.decide, "users", entries={"user": wrong})
        mistake(400, weir.decide, "users", entries=[("user", wrong)])
        mistake(400, weir.batch, "/v1/decide", [{"domain": "users", "entries": {"user": wrong}}])
    for wrong in (None, 7, ["a", None]):
        mistake(400, weir.decide, "users", facts={"path": wrong})
    mistake(413, weir.decide, "users", facts={"path": "/" * (1 << 20)})


def addresses():
    for wrong in ("ftp://a", "http://", "http://a:0", "http://a:65536", "http://a..b", "http://u:p@a",
                  "http://a?b", "http://a#b", "http://a/é", "http://a/b c", "http://a b"):
        with contextlib.suppress(ValueError):
            raise AssertionError(f"{wrong}: {Weir(wrong)}")


ALLOWED = b'{"allowed": true, "status": 200}'
BATCH = b'[{"allowed": true, "status": 200}, {"error": {"status": 413}}]'


def answer(status=200, body=ALLOWED):
    return b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body)


class Server:
    """Answers the requests of all its connections in turn with `answers`; None closes."""

    def __init__(self, answers, context=None):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.answers, self.context, self.heads, self.connections = list(answers), context, [], 0
        self.closed = threading.Event()
        threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        while True:
            sock, _ = self.listener.accept()
            self.connections += 1
            with contextlib.suppress(OSError):
                if self.context:
                    sock = self.context.wrap_socket(sock, server_side=True)
                self.serve(sock)
            sock.close()
            self.closed.set()

    def serve(self, sock):
        file = sock.makefile("rb")
        while self.answers and (head := file.readline()):
            while head[-4:] != b"\r\n\r\n":
                head += file.readline()
            file.read(int(head.split(b"Content-Length: ")[1].split(b"\r\n")[0]))
            self.heads.append(head)
            given = self.answers.pop(0)
            if given is None:
                break
            sock.sendall(given)
            if self.answers[:1] == ["close"]:
                self.answers.pop(0)
                break
        file.close()

    def key(self, nth):
        return self.heads[nth].split(b"Idempotency-Key: ")[1].split(b"\r\n")[0]


def mistakes_are_no_outage():
    for status in (405, 413, 415, 431):
        server = Server([answer(status, b"{}")])
        weir = Weir(f"http://127.0.0.1:{server.port}", timeout=5, on_error="allow")
        mistake(status, weir.decide, "users")
    server = Server([answer(200, BATCH)])
    weir = Weir(f"http://127.0.0.1:{server.port}", timeout=5, on_error="allow")
    one, other = weir.batch("/v1/decide", [{}, {}])
    assert one.allowed and isinstance(other, WeirError) and other.status == 413, other


def closed_connections():
    server = Server([answer(), None, answer(200, BATCH)])
    weir = Weir(f"http://127.0.0.1:{server.port}", timeout=5)
    assert weir.decide("users").allowed
    assert weir.batch("/v1/decide", [{}, {}])[0].allowed  # sent again, with its key
    assert (server.connections, server.key(1)) == (2, server.key(2)), server.heads

    server = Server([answer(), "close", answer()])
    weir = Weir(f"http://127.0.0.1:{server.port}", timeout=5)
    assert weir.decide("users").allowed and server.closed.wait(5)
    assert weir._connection().sock is None, "it had been closed while it was idle"
    assert weir.decide("users").allowed


def idle_connections():
    for pool, connections in ((1, 1), (0, 3), (-1, 3)):
        server = Server([answer()] * 4)
        with Weir(f"http://127.0.0.1:{server.port}", timeout=5, pool=pool) as weir:
            assert all(weir.decide("users").allowed for _ in range(3))
            assert (server.connections, len(weir._idle)) == (connections, max(pool, 0))
        assert weir._idle == [] and (pool < 1 or server.closed.wait(5))
        assert weir.decide("users").allowed and weir._idle == []


@contextlib.contextmanager
def deaf():
    """The port of a listener that accepts nothing: its queue is full."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(0)
    full = [socket.socket() for _ in range(4)]
    for sock in full:
        sock.setblocking(False)
        sock.connect_ex(listener.getsockname())
    yield listener.getsockname()[1]
    for sock in [listener, *full]:
        sock.close()


def a_dead_address():
    server, real = Server([answer()] * 2), socket.getaddrinfo
    with deaf() as port:
        found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", p))
                 for p in (port, server.port)]
        socket.getaddrinfo = lambda *_: list(found)
        try:
            weir = Weir("http://weir.example", timeout=2, pool=0)
            for least, most in ((0.9, 2), (0, 0.9)):  # the one that worked is the first now
                start = time.monotonic()
                assert weir.decide("users").allowed
                assert least < time.monotonic() - start < most
        finally:
            socket.getaddrinfo = real


def certificate(folder):
    """A file with a key and a certificate of 127.0.0.1, which signs itself."""
    key, day = ec.generate_private_key(ec.SECP256R1()), datetime.timedelta(days=1)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "weir")])
    now = datetime.datetime.now(datetime.timezone.utc)
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    built = (x509.CertificateBuilder().subject_name(name).issuer_name(name)
             .public_key(key.public_key()).serial_number(1).not_valid_before(now - day)
             .not_valid_after(now + day).add_extension(names, False)
             .add_extension(x509.BasicConstraints(True, None), True)
             .add_extension(identifier, False).sign(key, hashes.SHA256()))
    pem, file = serialization.Encoding.PEM, pathlib.Path(folder) / "weir.pem"
    text = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    file.write_bytes(text + built.public_bytes(pem))
    return file


def over_tls():
    with tempfile.TemporaryDirectory() as folder:
        file = certificate(folder)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(file)
        trusting = ssl.create_default_context(cafile=file)
        server = Server([answer()] * 3, context)
        weir = Weir(f"https://127.0.0.1:{server.port}", timeout=5, context=trusting)
        assert all(weir.decide("users").allowed for _ in range(3)) and server.connections == 1
        server = Server([answer()], context)
        for url, given in ((f"https://127.0.0.1:{server.port}", None),
                           (f"https://localhost:{server.port}", trusting)):
            found = Weir(url, timeout=5, context=given).decide("users")
            assert found.degraded == "unreachable" and server.heads == [], found
        silent = socket.create_server(("127.0.0.1", 0))
        start = time.monotonic()
        weir = Weir(f"https://127.0.0.1:{silent.getsockname()[1]}", context=trusting)
        assert weir.decide("users").degraded == "unreachable"
        assert 0.2 < time.monotonic() - start < 2, "the handshake has a deadline, too"


async def asked(app, path="/"):
    sent = []

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": path, "headers": [], "raw_path": path.encode()}
    await app(scope, None, send)
    return sent[0]["status"]


async def hundreds_at_once():
    """What hangs is answered by the deadline of each, and holds up no other threads of the loop."""
    async def hello(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})

    silent = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{silent.getsockname()[1]}"
    for on_error, wanted in (("deny", 503), ("allow", 200)):
        app = Limit(hello, Weir(url, on_error=on_error), "api", threads=4)
        start = time.monotonic()
        all_of_them = asyncio.gather(*(asked(app) for _ in range(200)))
        await asyncio.sleep(0)
        await asyncio.get_running_loop().getaddrinfo("127.0.0.1", 80)
        looked_up = time.monotonic() - start
        assert await all_of_them == [wanted] * 200
        took = time.monotonic() - start
        assert looked_up < 1 and took < 4, (looked_up, took)


with_a_real_weir(sys.argv[1], sys.argv[2])
what_would_be_allowed_uncounted()
addresses()
mistakes_are_no_outage()
closed_connections()
idle_connections()
a_dead_address()
over_tls()
asyncio.run(hundreds_at_once())
print("done")
