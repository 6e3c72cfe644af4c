//! The protocol definitions of the services, without what is neither read nor sent. Names and
//! numbers are those of `messages` and `quota_messages`, which the test with grpcio holds them to.

use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{
    DescriptorProto, EnumDescriptorProto, EnumValueDescriptorProto, FieldDescriptorProto,
    FileDescriptorProto, MessageOptions, MethodDescriptorProto, OneofDescriptorProto,
    ServiceDescriptorProto,
};

const BASE: &str = "envoy/config/core/v3/base.proto";
const DESCRIPTORS: &str = "envoy/extensions/common/ratelimit/v3/ratelimit.proto";
const UNITS: &str = "envoy/type/v3/ratelimit_unit.proto";
const STRATEGY: &str = "envoy/type/v3/ratelimit_strategy.proto";
const TOKEN_BUCKET: &str = "envoy/type/v3/token_bucket.proto";
const DURATION: &str = "google/protobuf/duration.proto";
const STRUCT: &str = "google/protobuf/struct.proto";
const WRAPPERS: &str = "google/protobuf/wrappers.proto";

/// All files.
pub(super) fn all() -> Vec<FileDescriptorProto> {
    vec![
        rate_limit_service(),
        quota_service(),
        health(),
        reflection("v1"),
        reflection("v1alpha"),
        descriptors(),
        strategy(),
        token_bucket(),
        unit_file(),
        base(),
        duration(),
        structure(),
        wrappers(),
    ]
}

fn rate_limit_service() -> FileDescriptorProto {
    let code = enumeration("Code", &["UNKNOWN", "OK", "OVER_LIMIT"]);
    let limit = message(
        "RateLimit",
        vec![
            scalar(1, "requests_per_unit", Type::Uint32),
            of_enum(2, "unit", ".envoy.service.ratelimit.v3.RateLimitResponse.RateLimit.Unit"),
            scalar(3, "name", Type::String),
        ],
    );
    let status = message(
        "DescriptorStatus",
        vec![
            of_enum(1, "code", ".envoy.service.ratelimit.v3.RateLimitResponse.Code"),
            of(2, "current_limit", ".envoy.service.ratelimit.v3.RateLimitResponse.RateLimit"),
            scalar(3, "limit_remaining", Type::Uint32),
            of(4, "duration_until_reset", ".google.protobuf.Duration"),
        ],
    );
    let request = message(
        "RateLimitRequest",
        vec![
            scalar(1, "domain", Type::String),
            many(of(2, "descriptors", ".envoy.extensions.common.ratelimit.v3.RateLimitDescriptor")),
            scalar(3, "hits_addend", Type::Uint32),
        ],
    );
    let response = message(
        "RateLimitResponse",
        vec![
            of_enum(1, "overall_code", ".envoy.service.ratelimit.v3.RateLimitResponse.Code"),
            many(of(
                2,
                "statuses",
                ".envoy.service.ratelimit.v3.RateLimitResponse.DescriptorStatus",
            )),
            many(of(3, "response_headers_to_add", ".envoy.config.core.v3.HeaderValue")),
            many(of(4, "request_headers_to_add", ".envoy.config.core.v3.HeaderValue")),
            scalar(5, "raw_body", Type::Bytes),
            of(6, "dynamic_metadata", ".google.protobuf.Struct"),
        ],
    );
    let limit = DescriptorProto { enum_type: vec![units("Unit")], ..limit };
    let nested_type = vec![limit, status];
    let response = DescriptorProto { nested_type, enum_type: vec![code], ..response };
    let method = method("ShouldRateLimit", "RateLimitRequest", "RateLimitResponse");
    FileDescriptorProto {
        message_type: vec![request, response],
        service: vec![service("RateLimitService", "envoy.service.ratelimit.v3", method)],
        ..proto_file(
            "envoy/service/ratelimit/v3/rls.proto",
            "envoy.service.ratelimit.v3",
            &[BASE, DESCRIPTORS, DURATION, STRUCT],
        )
    }
}

fn quota_service() -> FileDescriptorProto {
    const PACKAGE: &str = "envoy.service.rate_limit_quota.v3";
    const ID: &str = ".envoy.service.rate_limit_quota.v3.BucketId";
    let usage = message(
        "BucketQuotaUsage",
        vec![
            of(1, "bucket_id", ID),
            of(2, "time_elapsed", ".google.protobuf.Duration"),
            scalar(3, "num_requests_allowed", Type::Uint64),
            scalar(4, "num_requests_denied", Type::Uint64),
        ],
    );
    let reports = message(
        "RateLimitQuotaUsageReports",
        vec![
            scalar(1, "domain", Type::String),
            many(of(
                2,
                "bucket_quota_usages",
                ".envoy.service.rate_limit_quota.v3.RateLimitQuotaUsageReports.BucketQuotaUsage",
            )),
        ],
    );
    let reports = DescriptorProto { nested_type: vec![usage], ..reports };
    let assign = message(
        "QuotaAssignmentAction",
        vec![
            of(2, "assignment_time_to_live", ".google.protobuf.Duration"),
            of(3, "rate_limit_strategy", ".envoy.type.v3.RateLimitStrategy"),
        ],
    );
    let action = message(
        "BucketAction",
        vec![
            of(1, "bucket_id", ID),
            either(of(
                2,
                "quota_assignment_action",
                ".envoy.service.rate_limit_quota.v3.RateLimitQuotaResponse.BucketAction.QuotaAssignmentAction",
            )),
            either(of(
                3,
                "abandon_action",
                ".envoy.service.rate_limit_quota.v3.RateLimitQuotaResponse.BucketAction.AbandonAction",
            )),
        ],
    );
    let action = DescriptorProto {
        nested_type: vec![assign, message("AbandonAction", Vec::new())],
        oneof_decl: vec![oneof("bucket_action")],
        ..action
    };
    let response = message(
        "RateLimitQuotaResponse",
        vec![many(of(
            1,
            "bucket_action",
            ".envoy.service.rate_limit_quota.v3.RateLimitQuotaResponse.BucketAction",
        ))],
    );
    let response = DescriptorProto { nested_type: vec![action], ..response };
    let entry = DescriptorProto {
        options: Some(MessageOptions { map_entry: Some(true), ..Default::default() }),
        ..message(
            "BucketEntry",
            vec![scalar(1, "key", Type::String), scalar(2, "value", Type::String)],
        )
    };
    let bucket = of(1, "bucket", ".envoy.service.rate_limit_quota.v3.BucketId.BucketEntry");
    let id = message("BucketId", vec![many(bucket)]);
    let id = DescriptorProto { nested_type: vec![entry], ..id };
    let method = MethodDescriptorProto {
        client_streaming: Some(true),
        server_streaming: Some(true),
        ..method("StreamRateLimitQuotas", "RateLimitQuotaUsageReports", "RateLimitQuotaResponse")
    };
    FileDescriptorProto {
        message_type: vec![reports, response, id],
        service: vec![service("RateLimitQuotaService", PACKAGE, method)],
        ..proto_file("envoy/service/rate_limit_quota/v3/rlqs.proto", PACKAGE, &[STRATEGY, DURATION])
    }
}

fn health() -> FileDescriptorProto {
    let statuses = ["UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN"];
    let response = DescriptorProto {
        enum_type: vec![enumeration("ServingStatus", &statuses)],
        ..message(
            "HealthCheckResponse",
            vec![of_enum(1, "status", ".grpc.health.v1.HealthCheckResponse.ServingStatus")],
        )
    };
    let request = message("HealthCheckRequest", vec![scalar(1, "service", Type::String)]);
    let method = method("Check", "HealthCheckRequest", "HealthCheckResponse");
    FileDescriptorProto {
        message_type: vec![request, response],
        service: vec![service("Health", "grpc.health.v1", method)],
        ..proto_file("grpc/health/v1/health.proto", "grpc.health.v1", &[])
    }
}

/// The service that tells all this.
fn reflection(version: &str) -> FileDescriptorProto {
    let package = format!("grpc.reflection.{version}");
    let own = |name: &str| format!(".{package}.{name}");
    let text = |number, name| scalar(number, name, Type::String);
    let request = vec![
        text(1, "host"),
        either(text(3, "file_by_filename")),
        either(text(4, "file_containing_symbol")),
        either(of(5, "file_containing_extension", &own("ExtensionRequest"))),
        either(text(6, "all_extension_numbers_of_type")),
        either(text(7, "list_services")),
    ];
    let response = vec![
        text(1, "valid_host"),
        of(2, "original_request", &own("ServerReflectionRequest")),
        either(of(4, "file_descriptor_response", &own("FileDescriptorResponse"))),
        either(of(5, "all_extension_numbers_response", &own("ExtensionNumberResponse"))),
        either(of(6, "list_services_response", &own("ListServiceResponse"))),
        either(of(7, "error_response", &own("ErrorResponse"))),
    ];
    let grouped = |name: &str, group: &str, fields| DescriptorProto {
        oneof_decl: vec![oneof(group)],
        ..message(name, fields)
    };
    let number = |number, name| scalar(number, name, Type::Int32);
    let messages = vec![
        grouped("ServerReflectionRequest", "message_request", request),
        message(
            "ExtensionRequest",
            vec![text(1, "containing_type"), number(2, "extension_number")],
        ),
        grouped("ServerReflectionResponse", "message_response", response),
        message(
            "FileDescriptorResponse",
            vec![many(scalar(1, "file_descriptor_proto", Type::Bytes))],
        ),
        message(
            "ExtensionNumberResponse",
            vec![text(1, "base_type_name"), many(number(2, "extension_number"))],
        ),
        message("ListServiceResponse", vec![many(of(1, "service", &own("ServiceResponse")))]),
        message("ServiceResponse", vec![text(1, "name")]),
        message("ErrorResponse", vec![number(1, "error_code"), text(2, "error_message")]),
    ];
    let method = MethodDescriptorProto {
        client_streaming: Some(true),
        server_streaming: Some(true),
        ..method("ServerReflectionInfo", "ServerReflectionRequest", "ServerReflectionResponse")
    };
    FileDescriptorProto {
        message_type: messages,
        service: vec![service("ServerReflection", &package, method)],
        ..proto_file(&format!("grpc/reflection/{version}/reflection.proto"), &package, &[])
    }
}

fn descriptors() -> FileDescriptorProto {
    let entry =
        message("Entry", vec![scalar(1, "key", Type::String), scalar(2, "value", Type::String)]);
    let limit = message(
        "RateLimitOverride",
        vec![
            scalar(1, "requests_per_unit", Type::Uint32),
            of_enum(2, "unit", ".envoy.type.v3.RateLimitUnit"),
        ],
    );
    let descriptor = message(
        "RateLimitDescriptor",
        vec![
            many(of(
                1,
                "entries",
                ".envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.Entry",
            )),
            of(
                2,
                "limit",
                ".envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.RateLimitOverride",
            ),
            of(3, "hits_addend", ".google.protobuf.UInt64Value"),
            scalar(4, "is_negative_hits", Type::Bool),
        ],
    );
    FileDescriptorProto {
        message_type: vec![DescriptorProto { nested_type: vec![entry, limit], ..descriptor }],
        ..proto_file(DESCRIPTORS, "envoy.extensions.common.ratelimit.v3", &[UNITS, WRAPPERS])
    }
}

fn strategy() -> FileDescriptorProto {
    let strategy = DescriptorProto {
        enum_type: vec![enumeration("BlanketRule", &["ALLOW_ALL", "DENY_ALL"])],
        oneof_decl: vec![oneof("strategy")],
        ..message(
            "RateLimitStrategy",
            vec![
                either(of_enum(1, "blanket_rule", ".envoy.type.v3.RateLimitStrategy.BlanketRule")),
                either(of(3, "token_bucket", ".envoy.type.v3.TokenBucket")),
            ],
        )
    };
    FileDescriptorProto {
        message_type: vec![strategy],
        ..proto_file(STRATEGY, "envoy.type.v3", &[TOKEN_BUCKET])
    }
}

fn token_bucket() -> FileDescriptorProto {
    let bucket = message(
        "TokenBucket",
        vec![
            scalar(1, "max_tokens", Type::Uint32),
            of(2, "tokens_per_fill", ".google.protobuf.UInt32Value"),
            of(3, "fill_interval", ".google.protobuf.Duration"),
        ],
    );
    FileDescriptorProto {
        message_type: vec![bucket],
        ..proto_file(TOKEN_BUCKET, "envoy.type.v3", &[DURATION, WRAPPERS])
    }
}

/// Those of an answer's limit, and of an override.
fn units(name: &str) -> EnumDescriptorProto {
    let all = ["UNKNOWN", "SECOND", "MINUTE", "HOUR", "DAY", "MONTH", "YEAR", "WEEK"];
    enumeration(name, &all)
}

fn unit_file() -> FileDescriptorProto {
    let enum_type = vec![units("RateLimitUnit")];
    FileDescriptorProto { enum_type, ..proto_file(UNITS, "envoy.type.v3", &[]) }
}

fn base() -> FileDescriptorProto {
    let header = message(
        "HeaderValue",
        vec![scalar(1, "key", Type::String), scalar(2, "value", Type::String)],
    );
    FileDescriptorProto {
        message_type: vec![header],
        ..proto_file(BASE, "envoy.config.core.v3", &[])
    }
}

fn duration() -> FileDescriptorProto {
    let duration = message(
        "Duration",
        vec![scalar(1, "seconds", Type::Int64), scalar(2, "nanos", Type::Int32)],
    );
    FileDescriptorProto {
        message_type: vec![duration],
        ..proto_file(DURATION, "google.protobuf", &[])
    }
}

/// What a JSON object is.
fn structure() -> FileDescriptorProto {
    let entry = DescriptorProto {
        options: Some(MessageOptions { map_entry: Some(true), ..Default::default() }),
        ..message(
            "FieldsEntry",
            vec![scalar(1, "key", Type::String), of(2, "value", ".google.protobuf.Value")],
        )
    };
    let fields = many(of(1, "fields", ".google.protobuf.Struct.FieldsEntry"));
    let object = DescriptorProto { nested_type: vec![entry], ..message("Struct", vec![fields]) };
    let kinds = vec![
        either(of_enum(1, "null_value", ".google.protobuf.NullValue")),
        either(scalar(2, "number_value", Type::Double)),
        either(scalar(3, "string_value", Type::String)),
        either(scalar(4, "bool_value", Type::Bool)),
        either(of(5, "struct_value", ".google.protobuf.Struct")),
        either(of(6, "list_value", ".google.protobuf.ListValue")),
    ];
    let value = DescriptorProto { oneof_decl: vec![oneof("kind")], ..message("Value", kinds) };
    let list = message("ListValue", vec![many(of(1, "values", ".google.protobuf.Value"))]);
    FileDescriptorProto {
        message_type: vec![object, value, list],
        enum_type: vec![enumeration("NullValue", &["NULL_VALUE"])],
        ..proto_file(STRUCT, "google.protobuf", &[])
    }
}

fn wrappers() -> FileDescriptorProto {
    let wrapper = |(name, kind)| message(name, vec![scalar(1, "value", kind)]);
    let all = [
        ("DoubleValue", Type::Double),
        ("FloatValue", Type::Float),
        ("Int64Value", Type::Int64),
        ("UInt64Value", Type::Uint64),
        ("Int32Value", Type::Int32),
        ("UInt32Value", Type::Uint32),
        ("BoolValue", Type::Bool),
        ("StringValue", Type::String),
        ("BytesValue", Type::Bytes),
    ];
    FileDescriptorProto {
        message_type: all.into_iter().map(wrapper).collect(),
        ..proto_file(WRAPPERS, "google.protobuf", &[])
    }
}

// ---- Their parts -------------------------------------------------------------------------------

fn proto_file(name: &str, package: &str, imports: &[&str]) -> FileDescriptorProto {
    FileDescriptorProto {
        name: Some(name.to_owned()),
        package: Some(package.to_owned()),
        dependency: imports.iter().map(|&import| import.to_owned()).collect(),
        syntax: Some("proto3".to_owned()),
        ..Default::default()
    }
}

fn message(name: &str, field: Vec<FieldDescriptorProto>) -> DescriptorProto {
    DescriptorProto { name: Some(name.to_owned()), field, ..Default::default() }
}

fn scalar(number: i32, name: &str, kind: Type) -> FieldDescriptorProto {
    FieldDescriptorProto {
        name: Some(name.to_owned()),
        number: Some(number),
        label: Some(Label::Optional.into()),
        r#type: Some(kind.into()),
        ..Default::default()
    }
}

/// A field that is a message.
fn of(number: i32, name: &str, message: &str) -> FieldDescriptorProto {
    let type_name = Some(message.to_owned());
    FieldDescriptorProto { type_name, ..scalar(number, name, Type::Message) }
}

fn of_enum(number: i32, name: &str, enumeration: &str) -> FieldDescriptorProto {
    let type_name = Some(enumeration.to_owned());
    FieldDescriptorProto { type_name, ..scalar(number, name, Type::Enum) }
}

fn many(field: FieldDescriptorProto) -> FieldDescriptorProto {
    FieldDescriptorProto { label: Some(Label::Repeated.into()), ..field }
}

/// A field of the message's first group of which only one is there.
fn either(field: FieldDescriptorProto) -> FieldDescriptorProto {
    FieldDescriptorProto { oneof_index: Some(0), ..field }
}

fn oneof(name: &str) -> OneofDescriptorProto {
    OneofDescriptorProto { name: Some(name.to_owned()), ..Default::default() }
}

/// With values that are numbered from 0.
fn enumeration(name: &str, values: &[&str]) -> EnumDescriptorProto {
    let value = |(number, &name): (i32, &&str)| EnumValueDescriptorProto {
        name: Some(name.to_owned()),
        number: Some(number),
        ..Default::default()
    };
    EnumDescriptorProto {
        name: Some(name.to_owned()),
        value: (0..).zip(values).map(value).collect(),
        ..Default::default()
    }
}

/// With types of its own package.
fn method(name: &str, asks: &str, answers: &str) -> MethodDescriptorProto {
    MethodDescriptorProto {
        name: Some(name.to_owned()),
        input_type: Some(asks.to_owned()),
        output_type: Some(answers.to_owned()),
        ..Default::default()
    }
}

fn service(name: &str, package: &str, method: MethodDescriptorProto) -> ServiceDescriptorProto {
    let full = |own: Option<String>| own.map(|own| format!(".{package}.{own}"));
    let method = MethodDescriptorProto {
        input_type: full(method.input_type),
        output_type: full(method.output_type),
        ..method
    };
    let (name, method) = (Some(name.to_owned()), vec![method]);
    ServiceDescriptorProto { name, method, ..Default::default() }
}
