"""Asks Weir, a rate limiter, over its HTTP decision API. Standard library only, thread-safe.

Make one `Weir` per process (after a fork, not before it) and share it between threads.
"""
from __future__ import annotations

import http.client, json, queue, socket, time, uuid
from dataclasses import dataclass
from urllib.parse import urlsplit

MAX_ANSWER = 1 << 20  # bytes of one call's answer; a batch's may have 16 times as many


class WeirError(Exception):
    """The call itself is wrong: bad request, bad token, no such domain."""

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


class _Socket(socket.socket):
    """Gives each step only what is left until its connection's deadline."""

    def _within(self, step, *args):
        left = self.conn.deadline - time.monotonic()
        if left <= 0:
            raise socket.timeout("the deadline has passed")
        self.settimeout(left)
        return step(*args)

    def connect(self, address):
        self._within(super().connect, address)

    def sendall(self, data):
        self._within(super().sendall, data)

    def recv_into(self, *args):
        count = self._within(super().recv_into, *args)
        self.conn.received += count
        return count


class _Connection(http.client.HTTPConnection):
    def connect(self):
        error = OSError("no address")
        for *kind, _, address in socket.getaddrinfo(self.host, self.port, 0, socket.SOCK_STREAM):
            sock = _Socket(*kind)
            sock.conn = self
            try:
                sock.connect(address)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self.sock = sock
                return
            except OSError as e:
                sock.close()
                error = e
        raise error


class Weir:
    """`timeout`: seconds, for a whole call (only looking up the host's name can exceed it).
    `on_error`: "deny" or "allow", what holds while Weir gives no decision.
    `pool`: how many idle connections are kept."""

    def __init__(self, url, token=None, timeout=0.25, on_error="deny", pool=16):
        self._url = urlsplit(url)
        if self._url.scheme != "http" or not self._url.hostname:
            raise ValueError("url must be http://HOST[:PORT]")
        if on_error not in ("allow", "deny") or token is not None and not _printable(token):
            raise ValueError("on_error must be 'allow' or 'deny', and token printable ASCII")
        self._headers = {"Content-Type": "application/json"}
        if token is not None:
            self._headers["Authorization"] = "Bearer " + token
        self._timeout, self._allow, self._idle = timeout, on_error == "allow", queue.LifoQueue(pool)

    def decide(self, domain, facts=None, entries=None, hits=1, hold_ms=None, idempotency_key=None):
        """Takes `hits` units by the policy of `domain`. With `hold_ms`, settle it later."""
        return self._decide("/v1/decide", _key(idempotency_key), domain=domain, facts=facts,
                            entries=entries, hits=hits, hold_ms=hold_ms)

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

    def batch(self, path, calls):
        """Up to 1,024 `calls`, as the API has them, to /v1/decide, /v1/take or /v1/look: a list
        of decisions in their order. For a call that is itself wrong it has a WeirError."""
        status, answers = self._ask(path, calls, None, path == "/v1/look", 16 * MAX_ANSWER)
        if not isinstance(answers, list) or len(answers) != len(calls):
            return [self._read(status, answers) for _ in calls]
        return [self._read_part(answer) for answer in answers]

    def _decide(self, path, key=None, **members):
        return self._read(*self._ask(path, members, key, True))

    def _close(self, path, **members):
        # An id is settled once: sent again, it is at worst not known any more.
        status, answer = self._ask(path, members, None, True)
        if status != 404:
            _raise_mistake(status, answer)
        return status == 200 and isinstance(answer, dict) and answer.get("settled") is True

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
        return Decision(self._allow, 200 if self._allow else 503, degraded=why)

    def _ask(self, path, payload, key, repeatable, bound=MAX_ANSWER):
        """The answer's HTTP status (0: none came) and its JSON (None: it isn't any)."""
        deadline = time.monotonic() + self._timeout
        if isinstance(payload, dict):
            payload = {name: value for name, value in payload.items() if value is not None}
        body = json.dumps(payload).encode()
        headers = {**self._headers, "Idempotency-Key": key} if key else self._headers
        try:
            conn = self._idle.get_nowait()
        except queue.Empty:
            conn = self._connection()
        while True:
            reused, conn.deadline, conn.received = conn.sock is not None, deadline, 0
            try:
                conn.request("POST", self._url.path.rstrip("/") + path, body, headers)
                answer = conn.getresponse()
                data = answer.read(bound + 1)
                break
            except (OSError, http.client.HTTPException):
                conn.close()
                # Weir had closed it while it was idle. What is sent again here can't charge twice.
                if not (reused and repeatable and conn.received == 0):
                    return 0, None
                conn = self._connection()
        try:
            if not answer.isclosed():  # it goes on, or was cut off
                raise queue.Full
            self._idle.put_nowait(conn)
        except queue.Full:
            conn.close()
        try:
            return answer.status, json.loads(data) if len(data) <= bound else None
        except (ValueError, RecursionError):
            return answer.status, None

    def _connection(self):
        return _Connection(self._url.hostname, self._url.port or 80)


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


def _printable(text):
    return text.isascii() and text.isprintable()


def _raise_mistake(status, answer):
    if status in (400, 401, 403, 404, 422):
        detail = answer.get("detail") if isinstance(answer, dict) else None
        raise WeirError(status, detail or http.client.responses[status])
