//! What gRPC's reflection tells of the services: their protocol definitions. Here is how they are
//! looked up; `definitions` has them.

mod definitions;

use std::collections::HashSet;
use std::sync::LazyLock;

use bytes::Bytes;
use prost::Message as _;
use prost_types::{DescriptorProto, FileDescriptorProto};

/// All files, and the full names of their services.
struct Protos {
    files: Vec<File>,
    services: Vec<String>,
}

struct File {
    proto: FileDescriptorProto,
    encoded: Bytes,
    /// Its services, methods, messages and enumerations.
    symbols: HashSet<String>,
}

static PROTOS: LazyLock<Protos> = LazyLock::new(|| {
    let files: Vec<File> = definitions::all().into_iter().map(File::of).collect();
    let services = files.iter().flat_map(|file| {
        file.proto.service.iter().map(|service| join(file.proto.package(), service.name()))
    });
    Protos { services: services.collect(), files }
});

/// The names of the services.
pub(super) fn services() -> impl Iterator<Item = &'static str> {
    PROTOS.services.iter().map(String::as_str)
}

/// A file by its name, and all that it imports.
pub(super) fn file(name: &str) -> Option<Vec<Bytes>> {
    PROTOS.files.iter().find(|file| file.proto.name() == name).map(with_imports)
}

/// The file that defines a name, and all that it imports.
pub(super) fn file_of(symbol: &str) -> Option<Vec<Bytes>> {
    PROTOS.files.iter().find(|file| file.symbols.contains(symbol)).map(with_imports)
}

fn with_imports(file: &File) -> Vec<Bytes> {
    let mut names = vec![file.proto.name()];
    let mut encoded = vec![file.encoded.clone()];
    let mut pending = vec![file];
    while let Some(file) = pending.pop() {
        for name in &file.proto.dependency {
            let import = PROTOS.files.iter().find(|file| file.proto.name() == name);
            if let Some(import) = import.filter(|_| !names.contains(&name.as_str())) {
                names.push(name);
                encoded.push(import.encoded.clone());
                pending.push(import);
            }
        }
    }
    encoded
}

impl File {
    fn of(proto: FileDescriptorProto) -> Self {
        let mut symbols = HashSet::new();
        let package = proto.package();
        for message in &proto.message_type {
            collect(&mut symbols, package, message);
        }
        symbols.extend(proto.enum_type.iter().map(|own| join(package, own.name())));
        for service in &proto.service {
            let name = join(package, service.name());
            symbols.extend(service.method.iter().map(|method| join(&name, method.name())));
            symbols.insert(name);
        }
        Self { encoded: proto.encode_to_vec().into(), proto, symbols }
    }
}

fn collect(symbols: &mut HashSet<String>, within: &str, message: &DescriptorProto) {
    let name = join(within, message.name());
    for nested in &message.nested_type {
        collect(symbols, &name, nested);
    }
    symbols.extend(message.enum_type.iter().map(|own| join(&name, own.name())));
    symbols.insert(name);
}

fn join(package: &str, name: &str) -> String {
    format!("{package}.{name}")
}

#[cfg(test)]
mod tests {
    use prost_types::FieldDescriptorProto;

    use super::*;

    #[test]
    fn each_type_that_is_used_is_defined_in_a_file_that_is_imported() {
        fn fields<'a>(message: &'a DescriptorProto, into: &mut Vec<&'a FieldDescriptorProto>) {
            into.extend(&message.field);
            for nested in &message.nested_type {
                fields(nested, into);
            }
        }
        for own in &PROTOS.files {
            let mut used = Vec::new();
            for message in &own.proto.message_type {
                fields(message, &mut used);
            }
            let methods = own.proto.service.iter().flat_map(|service| &service.method);
            let named = used
                .iter()
                .filter_map(|field| field.type_name.as_deref())
                .chain(methods.flat_map(|method| [method.input_type(), method.output_type()]));
            for name in named {
                let name = name.strip_prefix('.').unwrap();
                let defining =
                    PROTOS.files.iter().find(|file| file.symbols.contains(name)).unwrap();
                let from = defining.proto.name();
                let is_imported = own.proto.dependency.iter().any(|import| import == from);
                let is_own = own.proto.name() == from;
                assert!(is_own || is_imported, "{name} of {from}");
            }
            for import in &own.proto.dependency {
                assert!(file(import).is_some(), "{import}");
            }
        }
    }

    #[test]
    fn a_file_comes_with_what_it_imports() {
        let names = |files: Vec<Bytes>| -> Vec<String> {
            let name = |bytes| FileDescriptorProto::decode(bytes).unwrap().name().to_owned();
            files.into_iter().map(name).collect()
        };
        let all = names(file_of("envoy.service.ratelimit.v3.RateLimitService").unwrap());
        assert_eq!(all[0], "envoy/service/ratelimit/v3/rls.proto");
        assert_eq!(all.len(), 7, "{all:?}");
        assert!(file_of("envoy.service.ratelimit.v3.RateLimitService.ShouldRateLimit").is_some());
        assert!(file_of("envoy.type.v3.RateLimitStrategy.BlanketRule").is_some());
        assert!(file_of("RateLimitService").is_none() && file("rls.proto").is_none());
    }
}
