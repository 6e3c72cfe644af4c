"""grpcio with nothing but what Weir's reflection tells it: the services, their messages, and calls of them.

    grpc_reflection_client.py URL

Weir has the domain `edge`, with 3 a day for each `user`, and quotas for each `bucket`.
"""

import queue

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, unknown_fields
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from common import arguments, same

options = arguments("gRPC reflection of Weir").parse_args()
PATIENCE = 30
# The second option: a proxy configured on the machine would get in between.
channel = grpc.insecure_channel(options.url.split("//")[1], [("grpc.enable_http_proxy", 0)])
SERVICES = [
    "envoy.service.ratelimit.v3.RateLimitService",
    "envoy.service.rate_limit_quota.v3.RateLimitQuotaService",
    "grpc.health.v1.Health",
    "grpc.reflection.v1.ServerReflection",
    "grpc.reflection.v1alpha.ServerReflection",
]

database = ProtoReflectionDescriptorDatabase(channel)
pool = descriptor_pool.DescriptorPool(database)
same("services", list(database.get_services()), SERVICES)


def known(message):
    """Nothing came that the reflection does not tell of."""
    assert len(unknown_fields.UnknownFieldSet(message)) == 0, message
    for field, value in message.ListFields():
        if field.type != field.TYPE_MESSAGE:
            continue
        if field.message_type.GetOptions().map_entry:
            continue
        for one in value if field.is_repeated else [value]:
            known(one)
    return message


def call(service, method, shape):
    found = pool.FindServiceByName(service).FindMethodByName(method)
    asks, answers = (message_factory.GetMessageClass(of) for of in (found.input_type, found.output_type))
    path = f"/{service}/{method}"
    return getattr(channel, shape)(path, asks.SerializeToString, answers.FromString), asks


ask, Request = call(SERVICES[0], "ShouldRateLimit", "unary_unary")
user = {"entries": [{"key": "user", "value": "ann"}]}
for left in (1, 0):
    answer = known(ask(Request(domain="edge", descriptors=[user]), timeout=PATIENCE))
    (status,) = answer.statuses
    same("left", (answer.overall_code, status.code, status.limit_remaining), (1, 1, left + 1))
# Two of the three are used: an addend of the call's, and one of the descriptor's own.
for more in ({"hits_addend": 2}, {"descriptors": [{**user, "hits_addend": {"value": 2}}]}):
    answer = known(ask(Request(**{"domain": "edge", "descriptors": [user], **more}), timeout=PATIENCE))
    same("over", (answer.overall_code, answer.statuses[0].limit_remaining), (2, 1))
(status,), limit = answer.statuses, answer.statuses[0].current_limit
day = limit.DESCRIPTOR.enum_types_by_name["Unit"].values_by_name["DAY"].number
same("its limit", (limit.name, limit.requests_per_unit, limit.unit), ("user", 3, day))
same("its reset", 0 < status.duration_until_reset.seconds <= 86400, True)
fields = {field.key.lower(): field.value for field in answer.response_headers_to_add}
same("its fields", "retry-after" in fields and "ratelimit" in fields, True)
same("its body", b'"violated-policies":["user"]' in answer.raw_body, True)
back = {**user, "hits_addend": {"value": 2}, "is_negative_hits": True}
same("given back", ask(Request(domain="edge", descriptors=[back]), timeout=PATIENCE).overall_code, 1)
own = {"entries": [{"key": "user", "value": "bob"}], "limit": {"requests_per_unit": 7, "unit": day}}
answer = known(ask(Request(domain="edge", descriptors=[own]), timeout=PATIENCE))
same("a limit of its own", answer.statuses[0].current_limit.requests_per_unit, 7)

stream, Reports = call(SERVICES[1], "StreamRateLimitQuotas", "stream_stream")
reports = queue.Queue()
usage = {"bucket_id": {"bucket": {"bucket": "a"}}, "time_elapsed": {"seconds": 1}, "num_requests_allowed": 1}
reports.put(Reports(domain="edge", bucket_quota_usages=[usage]))
answers = stream(iter(reports.get, None), timeout=PATIENCE)
*_, action = known(next(answers)).bucket_action  # before it one that empties the bucket
assigned = action.quota_assignment_action
same("its bucket", dict(action.bucket_id.bucket), {"bucket": "a"})
same("its group", action.WhichOneof("bucket_action"), "quota_assignment_action")
same("its life", 0 < assigned.assignment_time_to_live.seconds < 10, True)
bucket = assigned.rate_limit_strategy.token_bucket
same("its units", 0 < bucket.max_tokens < 100 and bucket.fill_interval.seconds > 0, True)
same("its fill", bucket.tokens_per_fill.value > 0, True)
reports.put(None)
answers.cancel()

health = health_pb2_grpc.HealthStub(channel)
for service in ["", *SERVICES]:
    checked = health.Check(health_pb2.HealthCheckRequest(service=service), timeout=PATIENCE)
    same(f"health of {service!r}", checked.status, health_pb2.HealthCheckResponse.SERVING)
try:
    health.Check(health_pb2.HealthCheckRequest(service="other"), timeout=PATIENCE)
    raise AssertionError("an unknown service is healthy")
except grpc.RpcError as error:
    same("an unknown service", error.code(), grpc.StatusCode.NOT_FOUND)

# The version that grpcio's own client does not ask, and what it never asks.
path = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
reflect = channel.stream_stream(
    path,
    reflection_pb2.ServerReflectionRequest.SerializeToString,
    reflection_pb2.ServerReflectionResponse.FromString,
)
questions = [
    {"file_by_filename": "envoy/type/v3/token_bucket.proto"},
    {"file_containing_symbol": f"{SERVICES[0]}.ShouldRateLimit"},
    {"file_containing_symbol": "nobody.Knows"},
    {"all_extension_numbers_of_type": "envoy.type.v3.TokenBucket"},
    {"file_containing_extension": {"containing_type": "envoy.type.v3.TokenBucket", "extension_number": 1}},
    {},
]
questions = [reflection_pb2.ServerReflectionRequest(**question) for question in questions]
bucket, method, nobody, numbers, extension, nothing = list(reflect(iter(questions), timeout=PATIENCE))
names = lambda answer: {
    descriptor_pb2.FileDescriptorProto.FromString(file).name
    for file in answer.file_descriptor_response.file_descriptor_proto
}
imports = {"google/protobuf/duration.proto", "google/protobuf/wrappers.proto"}
same("a file", names(bucket), {"envoy/type/v3/token_bucket.proto"} | imports)
same("a method's file", "envoy/service/ratelimit/v3/rls.proto" in names(method), True)
same("its question", method.original_request, questions[1])
same("a name that is not there", nobody.error_response.error_code, 5)
same("no extensions", list(numbers.all_extension_numbers_response.extension_number), [])
same("none of them", extension.error_response.error_code, 5)
same("no question", nothing.error_response.error_code, 3)
