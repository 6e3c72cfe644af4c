"""Asks Weir, a rate limiter, over its HTTP decision API. Standard library only, thread-safe.

Make one `Weir` per process (after a fork, not before it) and share it between threads.
"""
from __future__ import annotations

import http.client, json, socket, ssl, threading, time, uuid
from dataclasses import dataclass
from urllib.parse import urlsplit

MAX_CALL = 1 << 20  # bytes of a call, or of a batch: Weir takes no more
MAX_ANSWER = 1 << 20  # bytes of one call's answer; a batch's may have 16 times as many
MISTAKES = (400, 401, 403, 404, 405, 409, 413, 415, 422, 431)


class WeirError(Exception):
    """The call itself is wrong: bad request, bad token, no such domain, too long."""

    def __init__(self, status, detail):
        super().__init__(f"{status}: {detail}")
        self.status, self.detail = status, detail


@dataclass(frozen=True)
class Decision:
    """If refused, answer with `status`, `fields` and `body`; else add `fields` to your answer."""
    allowed: bool
    status: int = 200
    fields: tuple = ()
    body: str | None = None
    limits: tuple = ()
    id: str | None = None
    retry_after_ms: int | None = None
    degraded: str | None = None  # why not all was checked, e.g. "unreachable"
    request_fields: tuple = ()  # to be set on the request that is passed on
    refused_by: tuple = ()


class _Timed:
    """Gives each step of a socket only what is left until its connection's deadline."""
    conn = None

    def within(self, step, *args):
        if self.conn:  # none: not of this module, but made by the same `context`
            left = self.conn.deadline - time.monotonic()
            if left <= 0:
                raise socket.timeout("the deadline has passed")
            self.settimeout(left)
        return step(*args)

    def connect(self, address):
        self.within(super().connect, address)

    def send(self, *args):
        return self.within(super().send, *args)

    def sendall(self, *args):
        self.within(super().sendall, *args)

    def recv_into(self, *args):
        count = self.within(super().recv_into, *args)
        if self.conn:
            self.conn.received += count
        return count


class _Socket(_Timed, socket.socket):
    pass


class _TlsSocket(_Timed, ssl.SSLSocket):
    pass


class _Connection(http.client.HTTPConnection):
    def __init__(self, weir):
        super().__init__(weir._host, weir._port)
        self.default_port = 443 if weir._context else 80
        self.weir = weir

    def connect(self):
        """Tries the addresses of the host, the one that worked last first. Each has its share of
        the time that is left, so that a dead one leaves some for the others."""
        found = socket.getaddrinfo(self.host, self.port, 0, socket.SOCK_STREAM)
        found.sort(key=lambda one: one[4] != self.weir._last)
        whole, error = self.deadline, OSError("no address")
        for tried, (*kind, _, address) in enumerate(found):
            now = time.monotonic()
            self.deadline = now + (whole - now) / (len(found) - tried)
            try:
                self.sock = self._dial(kind, address)
                self.weir._last = address
                return
            except OSError as e:
                error = e
            finally:
                self.deadline = whole
        raise error

    def _dial(self, kind, address):
        sock = _Socket(*kind)
        try:
            sock.conn = self
            sock.connect(address)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self.weir._context:
                sock = self.weir._context.wrap_socket(sock, do_handshake_on_connect=False,
                                                      server_hostname=self.host)
                sock.conn = self
                sock.within(sock.do_handshake)
            return sock
        except BaseException:
            sock.close()
            raise

    def is_stale(self):
        """Whether Weir has closed it while it was idle, or sent what nobody asked for."""
        try:
            self.sock.settimeout(0)
            socket.socket.recv(self.sock, 1, socket.MSG_PEEK)  # beneath TLS
            return True
        except BlockingIOError:
            return False
        except OSError:
            return True


class Weir:
    """`timeout`: seconds, for a whole call (only looking up the host's name can exceed it).
    `on_error`: "deny" or "allow", what holds while Weir gives no decision.
    `pool`: how many idle connections are kept.
    `context`: for https, an `ssl.SSLContext` with another authority or a certificate of the
    client's own; that of `ssl.create_default_context()` if not set."""

    def __init__(self, url, token=None, timeout=0.25, on_error="deny", pool=16, context=None):
        parts = urlsplit(url)
        if (parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0
                or "@" in parts.netloc or "?" in url or "#" in url or not parts.path.isascii()
                or any(char <= " " or char == "\x7f" for char in url)):
            raise ValueError("url must be http[s]://HOST[:PORT][/PATH]")
        if on_error not in ("allow", "deny") or token is not None and not _printable(token):
            raise ValueError("on_error must be 'allow' or 'deny', and token printable ASCII")
        self._context = None
        if parts.scheme == "https":
            self._context = context or ssl.create_default_context()
            self._context.sslsocket_class = _TlsSocket
        self._host, self._path = parts.hostname.encode("idna").decode(), parts.path.rstrip("/")
        self._port = parts.port or (443 if self._context else 80)
        self._headers = {"Content-Type": "application/json"}
        if token is not None:
            self._headers["Authorization"] = "Bearer " + token
        self.timeout, self._allow, self._pool = timeout, on_error == "allow", pool
        self._idle, self._lock, self._last = [], threading.Lock(), None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """Closes the idle connections, and from now on each one after its call."""
        with self._lock:
            self._pool, idle, self._idle = 0, self._idle, []
        for conn in idle:
            conn.close()

    def decide(self, domain, facts=None, entries=None, hits=1, hold_ms=None, idempotency_key=None,
               deadline=None):
        """Takes `hits` units by the policy of `domain`. With `hold_ms`, settle it later.
        `deadline`, by `time.monotonic()`, is for a call that has waited before it is made here."""
        return self._decide("/v1/decide", _key(idempotency_key), deadline, domain=domain,
                            facts=facts, entries=entries, hits=hits, hold_ms=hold_ms)

    def take(self, domain, entries, limits, facts=None, hits=1, hold_ms=None,
             idempotency_key=None):
        """As `decide`, but by the caller's own `limits`, counted by `entries`."""
        return self._decide("/v1/take", _key(idempotency_key), domain=domain, facts=facts,
                            entries=entries, limits=limits, hits=hits, hold_ms=hold_ms)

    def look(self, domain, facts=None, entries=None, limits=None):
        """What would be decided. Takes nothing."""
        return self._decide("/v1/look", domain=domain, facts=facts, entries=entries, limits=limits)

    def settle(self, id, outcome="completed", status=None, facts=None):
        """Closes a held decision. `status` is that of the answer, if there was one; without it
        "completed" means 200. False: not delivered, or `id` is not known (any more)."""
        return self._close("/v1/settle", id=id, outcome=outcome, status=status, facts=facts)

    def give_back(self, id):
        """Gives back all that a held decision took. False: as for `settle`."""
        return self._close("/v1/give-back", id=id)

    def renew(self, id, hold_ms):
        """Holds a held decision for as long from now on. False: as for `settle`."""
        return self._close("/v1/renew", "renewed", id=id, hold_ms=hold_ms)

    def batch(self, path, calls, idempotency_key=None):
        """Up to 1,024 `calls`, as the API has them, to /v1/decide, /v1/take or /v1/look: a list
        of decisions in their order. For a call that is itself wrong it has a WeirError."""
        key = None if path == "/v1/look" else _key(idempotency_key)
        status, answers = self._ask(path, calls, key, bound=16 * MAX_ANSWER)
        if not isinstance(answers, list) or len(answers) != len(calls):
            return [self._read(status, answers) for _ in calls]
        return [self._read_part(answer) for answer in answers]

    def fall_back(self, why):
        """What holds while Weir gives no decision."""
        return Decision(self._allow, 200 if self._allow else 503, degraded=why)

    def _decide(self, path, key=None, deadline=None, **members):
        return self._read(*self._ask(path, members, key, deadline))

    def _close(self, path, done="settled", **members):
        status, answer = self._ask(path, members)
        if status != 404:
            _raise_mistake(status, answer)
        return status == 200 and isinstance(answer, dict) and answer.get(done) is True

    def _read_part(self, answer):
        try:
            problem = answer.get("error") if isinstance(answer, dict) else None
            return self._read(problem["status"], problem) if problem else self._read(200, answer)
        except WeirError as e:
            return e
        except (TypeError, KeyError):
            return self._read(200, None)

    def _read(self, status, answer):
        _raise_mistake(status, answer)
        why = http.client.responses.get(status, str(status)) if status else "unreachable"
        if status == 200:
            try:
                return _decision(**answer)
            except (TypeError, ValueError):
                why = "bad answer"
        return self.fall_back(why)

    def _ask(self, path, payload, key=None, deadline=None, bound=MAX_ANSWER):
        """The answer's HTTP status (0: none came) and its JSON (None: it isn't any)."""
        deadline = time.monotonic() + self.timeout if deadline is None else deadline
        if isinstance(payload, dict):
            payload = {name: value for name, value in payload.items() if value is not None}
        for call in [payload] if isinstance(payload, dict) else payload:
            _check_texts(call, "facts", (list, tuple))
            _check_texts(call, "entries", ())
        body = json.dumps(payload).encode()
        if len(body) > MAX_CALL:  # Weir's own answer can be lost while the rest is being sent
            raise WeirError(413, f"{len(body)} bytes, not {MAX_CALL} at most")
        headers = {**self._headers, "Idempotency-Key": key} if key else self._headers
        conn = self._connection()
        while time.monotonic() < deadline:
            reused, conn.deadline, conn.received = conn.sock is not None, deadline, 0
            try:
                conn.request("POST", self._path + path, body, headers)
                answer = conn.getresponse()
                data = answer.read(bound + 1)
                break
            except (OSError, http.client.HTTPException):
                conn.close()
                # Weir may have closed it as it was reused. What is sent again can't charge twice:
                # it has a key, or takes nothing, or closes what can be closed once.
                if not reused or conn.received > 0:
                    return 0, None
                conn = _Connection(self)
        else:
            self._keep(conn)
            return 0, None
        if answer.isclosed():
            self._keep(conn)
        else:  # it goes on, or was cut off
            conn.close()
        try:
            return answer.status, json.loads(data) if len(data) <= bound else None
        except (ValueError, RecursionError):
            return answer.status, None

    def _connection(self):
        while True:
            with self._lock:
                conn = self._idle.pop() if self._idle else None
            if conn is None:
                return _Connection(self)
            if not conn.is_stale():
                return conn
            conn.close()

    def _keep(self, conn):
        with self._lock:
            if conn.sock is not None and len(self._idle) < self._pool:
                return self._idle.append(conn)
        conn.close()


def _decision(allowed, status, fields=(), request_fields=(), limits=(), refused_by=(), body=None,
              id=None, retry_after_ms=None, degraded=None, **_):
    if type(allowed) is not bool or type(status) is not int:
        raise TypeError("not a decision")
    fields, request_fields = (tuple((str(name), str(value)) for name, value in pairs)
                              for pairs in (fields, request_fields))
    return Decision(allowed, status, fields, body, tuple(limits), id, retry_after_ms, degraded,
                    request_fields, tuple(refused_by))


def _key(given):
    if given is None:
        return uuid.uuid4().hex
    if not (0 < len(given) < 256 and _printable(given)):
        raise WeirError(400, "idempotency_key: 1 to 255 printable ASCII characters")
    return given


def _check_texts(call, of, lists):
    """A None would be no value and count by nothing, and a list count by several."""
    table = call.get(of) if isinstance(call, dict) else None
    if table is None:
        return
    try:
        pairs = list(table.items() if isinstance(table, dict) else table)
        texts = [t for name, value in pairs
                 for t in (name, *(value if isinstance(value, lists) else [value]))]
    except (TypeError, ValueError):
        texts = [None]
    if not all(isinstance(text, str) for text in texts):
        raise WeirError(400, of + " are names and values that are texts")


def _printable(text):
    return text.isascii() and text.isprintable()


def _raise_mistake(status, answer):
    if status in MISTAKES:
        detail = answer.get("detail") if isinstance(answer, dict) else None
        raise WeirError(status, detail or http.client.responses[status])
