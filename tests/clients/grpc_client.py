"""grpcio through Weir to grpc_server.py: unary calls, streams each way, metadata and trailers, failures, deadlines, cancellation, refusals.

    grpc_client.py URL [--ca FILE] --quota N [--direct]

`--direct`: without Weir in between, so nothing is refused. This checks that the program expects what grpcio does.
"""

import queue
from concurrent.futures import ThreadPoolExecutor

import grpc

from common import arguments, same

parser = arguments("gRPC through Weir")
parser.add_argument("--quota", type=int, required=True)
parser.add_argument("--direct", action="store_true")
options = parser.parse_args()
# The second option: a proxy configured on the machine would get in between.
SETTINGS = [("grpc.max_receive_message_length", 64 << 20), ("grpc.enable_http_proxy", 0)]
PATIENCE = 30


def channel_to(url):
    target = url.split("//")[1]
    if not options.ca:
        return grpc.insecure_channel(target, SETTINGS)
    with open(options.ca, "rb") as file:
        return grpc.secure_channel(target, grpc.ssl_channel_credentials(file.read()), SETTINGS)


def failure(call, *given, **more):
    """Returns the error of a call that must fail."""
    try:
        result = call(*given, timeout=PATIENCE, **more)
        answered = list(result) if hasattr(result, "__iter__") and not isinstance(result, bytes) else result
    except grpc.RpcError as error:
        return error
    raise AssertionError(f"no failure: {answered!r}")


def unary(channel):
    call = channel.unary_unary("/test.Echo/Unary")
    reply, done = call.with_call(b"hello", timeout=PATIENCE, metadata=[("x-ask", "yes"), ("x-ask-bin", b"\x01\xfe")])
    first, last = dict(done.initial_metadata()), dict(done.trailing_metadata())
    same("unary", (reply, done.code(), done.details()), (b"hello", grpc.StatusCode.OK, ""))
    same("initial metadata", (first["x-seen"], first["x-seen-bin"]), ("yes", b"\x01\xfe"))
    same("trailers", (last["x-trailer"], last["x-trailer-bin"]), ("at the end", b"\x00\xff\x80"))
    same("an empty message", call(b"", timeout=PATIENCE), b"")
    large = bytes(range(251)) * 12_000
    same("3 MB", call(large, timeout=PATIENCE) == large, True)
    same("compressed", call(large, timeout=PATIENCE, compression=grpc.Compression.Gzip) == large, True)
    with ThreadPoolExecutor(100) as pool:
        replies = pool.map(lambda number: call(b"%d" % number, timeout=PATIENCE), range(300))
        same("300, 100 at once", list(replies) == [b"%d" % number for number in range(300)], True)


def streams(channel):
    count = channel.unary_stream("/test.Echo/Count")
    same("from the server", list(count(b"2000", timeout=PATIENCE)) == [b"%d" % number for number in range(2000)], True)
    same("none from the server", list(count(b"0", timeout=PATIENCE)), [])
    total = channel.stream_unary("/test.Echo/Total")
    same("from the client", total((b"%d" % number for number in range(2000)), timeout=PATIENCE), b"1999000")
    same("none from the client", total(iter(()), timeout=PATIENCE), b"0")
    chat, said = channel.stream_stream("/test.Echo/Chat"), queue.Queue()
    replies = chat(iter(said.get, None), timeout=PATIENCE)
    # Each message is sent only when the previous one is answered: nothing may be buffered.
    for number in range(100):
        said.put(b"%d" % number)
        assert next(replies) == b"you said %d" % number
    said.put(None)
    same("in both directions, in turn", list(replies), [])
    same("its end", replies.code(), grpc.StatusCode.OK)


def failures(channel):
    error = failure(channel.unary_unary("/test.Echo/Fail"), b"")
    same("a failure", (error.code(), error.details()), (grpc.StatusCode.FAILED_PRECONDITION, "50 % of Zürich\nis closed"))
    last = dict(error.trailing_metadata())
    same("its details", (last["grpc-status-details-bin"], last["x-trailer"]), (b"\x08\x09\x12\x04left", "of a failure"))
    calls = channel.unary_stream("/test.Echo/FailLate")(b"3", timeout=PATIENCE)
    came = []
    try:
        for message in calls:
            came.append(message)
    except grpc.RpcError:
        pass
    same("messages before a failure", came, [b"0", b"1", b"2"])
    same("the failure", (calls.code(), calls.details()), (grpc.StatusCode.DATA_LOSS, "the rest is gone"))
    error = failure(channel.unary_unary("/test.Echo/Nothing"), b"")
    same("no such method", error.code(), grpc.StatusCode.UNIMPLEMENTED)


def ends(channel):
    remaining = channel.unary_unary("/test.Echo/Remaining")
    same("the server knows the deadline", 20 < float(remaining(b"", timeout=PATIENCE)) < PATIENCE + 1, True)
    same("and that there is none", remaining(b""), b"none")
    wait = channel.unary_unary("/test.Echo/Wait")
    # On a busy machine a short deadline may pass before the server has the call.
    for seconds in (0.5, 2, 8):
        try:
            wait(b"deadline", timeout=seconds)
            raise AssertionError("no deadline")
        except grpc.RpcError as error:
            same("a deadline", error.code(), grpc.StatusCode.DEADLINE_EXCEEDED)
        if channel.unary_unary("/test.Echo/HasWaited")(b"deadline", timeout=PATIENCE) == b"yes":
            break
    else:
        raise AssertionError("no call arrived before its deadline")
    call = wait.future(b"unary", timeout=PATIENCE)
    same("begun", channel.unary_unary("/test.Echo/AwaitWaiting")(b"unary", timeout=PATIENCE), b"yes")
    same("cancelled", (call.cancel(), call.code()), (True, grpc.StatusCode.CANCELLED))
    stream = channel.unary_stream("/test.Echo/WaitStream")(b"stream", timeout=PATIENCE)
    same("begun", next(stream), b"begun")
    stream.cancel()
    same("cancelled", stream.code(), grpc.StatusCode.CANCELLED)
    # The connection still works.
    same("afterwards", channel.unary_unary("/test.Echo/Unary")(b"still here", timeout=PATIENCE), b"still here")


def refusals(channel):
    call = channel.unary_unary("/test.Few/Unary")
    for number in range(options.quota):
        assert call(b"x", timeout=PATIENCE) == b"x", number
    error = failure(call, b"x")
    same("refused", error.code(), grpc.StatusCode.RESOURCE_EXHAUSTED)
    print(f"refused: {error.details()!r} {error.initial_metadata()} {error.trailing_metadata()}", flush=True)
    for stream in (channel.stream_unary("/test.Few/Total"), channel.stream_stream("/test.Few/Chat")):
        error = failure(stream, iter([b"1"] * 10))
        same("a stream refused", error.code(), grpc.StatusCode.RESOURCE_EXHAUSTED)
    error = failure(channel.unary_unary("/test.Down/Unary"), b"x")
    same("nobody there", error.code(), grpc.StatusCode.UNAVAILABLE)
    error = failure(channel.unary_unary("/else.Where/Unary"), b"x")
    same("no such route", error.code(), grpc.StatusCode.UNIMPLEMENTED)


with channel_to(options.url) as channel:
    unary(channel)
    streams(channel)
    failures(channel)
    ends(channel)
    if not options.direct:
        refusals(channel)
