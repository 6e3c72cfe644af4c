"""A grpcio server without generated code: each message is bytes. Prints `listening ADDRESS`, and `cancelled NAME` when a call's client has gone.

    grpc_server.py [CERTIFICATE KEY]
"""

import collections
import sys
import threading
from concurrent import futures

import grpc


def unary(request, context):
    """Returns the request, with details about it in the initial metadata and in trailers."""
    asked = {name: value for name, value in context.invocation_metadata() if name.startswith("x-ask")}
    context.send_initial_metadata([("x-seen", asked.get("x-ask", "nothing")), ("x-seen-bin", asked.get("x-ask-bin", b""))])
    context.set_trailing_metadata([("x-trailer", "at the end"), ("x-trailer-bin", b"\x00\xff\x80")])
    return request


def remaining(request, context):
    """Returns the time until the deadline, in seconds; without a deadline, grpcio reports a huge number."""
    left = context.time_remaining()
    return b"none" if left is None or left > 1e9 else str(left).encode()


def count(request, context):
    for number in range(int(request)):
        yield b"%d" % number


def total(requests, context):
    return b"%d" % sum(int(request) for request in requests)


def chat(requests, context):
    """Answers each message before it reads the next."""
    for request in requests:
        yield b"you said " + request


def fail(request, context):
    context.set_trailing_metadata([("grpc-status-details-bin", b"\x08\x09\x12\x04left"), ("x-trailer", "of a failure")])
    context.abort(grpc.StatusCode.FAILED_PRECONDITION, "50 % of Zürich\nis closed")


def fail_late(request, context):
    for number in range(int(request)):
        yield b"%d" % number
    context.abort(grpc.StatusCode.DATA_LOSS, "the rest is gone")


waiting = collections.defaultdict(threading.Event)


def when_gone(name, context):
    """Prints that the client has gone, at once if it has already. Returns an event that is set then."""
    gone = threading.Event()

    def tell():
        print(f"cancelled {name.decode()}", flush=True)
        gone.set()

    # grpcio does not call back for a call that has ended.
    if not context.add_callback(tell):
        tell()
    return gone


def wait(request, context):
    """Answers when the client has gone, which shows only in the output of this program."""
    gone = when_gone(request, context)
    waiting[request].set()
    gone.wait()
    return b""


def wait_stream(request, context):
    # Before the first message: grpcio never asks a cancelled stream for another one.
    gone = when_gone(request, context)
    yield b"begun"
    gone.wait()


def await_waiting(request, context):
    """Answers once a Wait of that name has begun."""
    return b"yes" if waiting[request].wait(30) else b"no"


def has_waited(request, context):
    """Tells whether a Wait of that name has begun."""
    return b"yes" if waiting[request].is_set() else b"no"


METHODS = {
    "Unary": grpc.unary_unary_rpc_method_handler(unary),
    "Remaining": grpc.unary_unary_rpc_method_handler(remaining),
    "Count": grpc.unary_stream_rpc_method_handler(count),
    "Total": grpc.stream_unary_rpc_method_handler(total),
    "Chat": grpc.stream_stream_rpc_method_handler(chat),
    "Fail": grpc.unary_unary_rpc_method_handler(fail),
    "FailLate": grpc.unary_stream_rpc_method_handler(fail_late),
    "Wait": grpc.unary_unary_rpc_method_handler(wait),
    "HasWaited": grpc.unary_unary_rpc_method_handler(has_waited),
    "AwaitWaiting": grpc.unary_unary_rpc_method_handler(await_waiting),
    "WaitStream": grpc.unary_stream_rpc_method_handler(wait_stream),
}

server = grpc.server(futures.ThreadPoolExecutor(max_workers=150))
for service in ("test.Echo", "test.Few"):
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, METHODS),))
if len(sys.argv) > 2:
    certificate, key = (open(path, "rb").read() for path in sys.argv[1:3])
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([(key, certificate)]))
else:
    port = server.add_insecure_port("127.0.0.1:0")
server.start()
print(f"listening 127.0.0.1:{port}", flush=True)
server.wait_for_termination()
