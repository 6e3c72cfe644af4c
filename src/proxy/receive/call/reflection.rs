//! gRPC's server reflection: what a client asks about the services and their messages, and the
//! answers. Both versions of it have the same messages (grpc.reflection.v1 and .v1alpha).

use bytes::Bytes;
use prost::{Message, Oneof};

use super::frames::Frames;
use super::rls::framed;
use super::{malformed, protos};
use crate::proxy::refusal::Refusal;
use crate::wire::Body;

/// The paths of the service's only call, in the order in which clients try them.
pub(in crate::proxy) const REFLECT: &str =
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
pub(in crate::proxy) const REFLECT_ALPHA: &str =
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo";
/// Maximum bytes of a question, which is a name.
const QUESTION_BYTES_MAX: usize = 4 << 10;
/// gRPC's status of what is not there.
const NOT_FOUND: i32 = 5;
/// gRPC's status of a question that is none.
const INVALID_ARGUMENT: i32 = 3;

/// The questions of a stream.
pub(in crate::proxy) struct Questions(Frames);

impl Questions {
    pub(in crate::proxy) fn of(body: Body, buffered_bytes_max: usize) -> Self {
        Self(Frames::of(body, QUESTION_BYTES_MAX, buffered_bytes_max))
    }

    /// The answer to the next question, with its frame; `None` at the stream's end.
    ///
    /// # Errors
    /// The connection failed, or what came is no message.
    pub(in crate::proxy) async fn next(&mut self) -> Result<Option<Bytes>, Refusal> {
        let Some(message) = self.0.next().await? else { return Ok(None) };
        let question = ReflectionRequest::decode(message);
        let question = question.map_err(|_| malformed("a message that is no question"))?;
        Ok(Some(framed(&answer(question))))
    }
}

/// ServerReflectionRequest.
#[derive(Clone, PartialEq, Message)]
struct ReflectionRequest {
    #[prost(string, tag = "1")]
    host: String,
    #[prost(oneof = "Question", tags = "3, 4, 5, 6, 7")]
    question: Option<Question>,
}

#[derive(Clone, PartialEq, Oneof)]
enum Question {
    #[prost(string, tag = "3")]
    FileByFilename(String),
    #[prost(string, tag = "4")]
    FileContainingSymbol(String),
    #[prost(message, tag = "5")]
    FileContainingExtension(ExtensionRequest),
    #[prost(string, tag = "6")]
    AllExtensionNumbersOfType(String),
    #[prost(string, tag = "7")]
    ListServices(String),
}

#[derive(Clone, PartialEq, Message)]
struct ExtensionRequest {
    #[prost(string, tag = "1")]
    containing_type: String,
    #[prost(int32, tag = "2")]
    extension_number: i32,
}

/// ServerReflectionResponse.
#[derive(Clone, PartialEq, Message)]
struct ReflectionResponse {
    #[prost(string, tag = "1")]
    valid_host: String,
    #[prost(message, optional, tag = "2")]
    original_request: Option<ReflectionRequest>,
    #[prost(oneof = "Answer", tags = "4, 5, 6, 7")]
    answer: Option<Answer>,
}

#[derive(Clone, PartialEq, Oneof)]
enum Answer {
    #[prost(message, tag = "4")]
    Files(FileDescriptorResponse),
    #[prost(message, tag = "5")]
    Extensions(ExtensionNumberResponse),
    #[prost(message, tag = "6")]
    Services(ListServiceResponse),
    #[prost(message, tag = "7")]
    Error(ErrorResponse),
}

#[derive(Clone, PartialEq, Message)]
struct FileDescriptorResponse {
    #[prost(bytes = "bytes", repeated, tag = "1")]
    file_descriptor_proto: Vec<Bytes>,
}

#[derive(Clone, PartialEq, Message)]
struct ExtensionNumberResponse {
    #[prost(string, tag = "1")]
    base_type_name: String,
    #[prost(int32, repeated, tag = "2")]
    extension_number: Vec<i32>,
}

#[derive(Clone, PartialEq, Message)]
struct ListServiceResponse {
    #[prost(message, repeated, tag = "1")]
    service: Vec<ServiceResponse>,
}

#[derive(Clone, PartialEq, Message)]
struct ServiceResponse {
    #[prost(string, tag = "1")]
    name: String,
}

#[derive(Clone, PartialEq, Message)]
struct ErrorResponse {
    #[prost(int32, tag = "1")]
    error_code: i32,
    #[prost(string, tag = "2")]
    error_message: String,
}

fn answer(asked: ReflectionRequest) -> ReflectionResponse {
    let files = |files: Option<Vec<Bytes>>, what: &str| match files {
        Some(file_descriptor_proto) => {
            Answer::Files(FileDescriptorResponse { file_descriptor_proto })
        }
        None => error(NOT_FOUND, what),
    };
    let answer = match &asked.question {
        Some(Question::FileByFilename(name)) => files(protos::file(name), "no such file"),
        Some(Question::FileContainingSymbol(name)) => {
            files(protos::file_of(name), "no such symbol")
        }
        Some(Question::FileContainingExtension(_)) => error(NOT_FOUND, "there are no extensions"),
        Some(Question::AllExtensionNumbersOfType(name)) if protos::file_of(name).is_some() => {
            let base_type_name = name.clone();
            Answer::Extensions(ExtensionNumberResponse { base_type_name, ..Default::default() })
        }
        Some(Question::AllExtensionNumbersOfType(_)) => error(NOT_FOUND, "no such symbol"),
        Some(Question::ListServices(_)) => {
            let service = |name: &str| ServiceResponse { name: name.to_owned() };
            Answer::Services(ListServiceResponse {
                service: protos::services().map(service).collect(),
            })
        }
        None => error(INVALID_ARGUMENT, "a question that is none of this protocol's"),
    };
    ReflectionResponse {
        valid_host: asked.host.clone(),
        original_request: Some(asked),
        answer: Some(answer),
    }
}

fn error(error_code: i32, message: &str) -> Answer {
    Answer::Error(ErrorResponse { error_code, error_message: message.to_owned() })
}
