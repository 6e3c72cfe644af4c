//! JSON as a message of protobuf: `google.protobuf.Struct`.

use prost_types::value::Kind;
use prost_types::{ListValue, Struct};
use serde_json::{Map, Value};

/// An object as a message of protobuf.
pub(in crate::proxy) fn structure(object: Map<String, Value>) -> Struct {
    Struct { fields: object.into_iter().map(|(name, value)| (name, message(value))).collect() }
}

fn message(value: Value) -> prost_types::Value {
    let kind = match value {
        Value::Null => Kind::NullValue(0),
        Value::Bool(value) => Kind::BoolValue(value),
        Value::Number(number) => Kind::NumberValue(number.as_f64().unwrap_or_default()),
        Value::String(text) => Kind::StringValue(text),
        Value::Array(items) => {
            let values = items.into_iter().map(message).collect();
            Kind::ListValue(ListValue { values })
        }
        Value::Object(object) => Kind::StructValue(structure(object)),
    };
    prost_types::Value { kind: Some(kind) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_kind_of_value_has_its_own_in_protobuf() {
        let message =
            structure([("a".to_owned(), json!([null, true, 1.5, "x", {}]))].into_iter().collect());
        let Some(Kind::ListValue(list)) = &message.fields["a"].kind else { panic!("{message:?}") };
        let kinds: Vec<_> = list.values.iter().map(|value| value.kind.clone().unwrap()).collect();
        let expected = [
            Kind::NullValue(0),
            Kind::BoolValue(true),
            Kind::NumberValue(1.5),
            Kind::StringValue("x".to_owned()),
            Kind::StructValue(Struct::default()),
        ];
        assert_eq!(kinds, expected);
    }
}
