//! Compiles a guest's bytes into a component. What a guest declares about its own types is not
//! trusted.

use wasmparser::{Parser, Payload, Validator, WasmFeatures};
use wasmtime::Engine;
use wasmtime::component::{Component, InstancePre, Linker};
use wit_component::{ComponentEncoder, StringEncoding, embed_component_metadata};
use wit_parser::Resolve;

use super::abi::{HANDLER, IMPORTS, WIT};
use super::error::one_line;
use super::instance::State;

/// Bytes of a module, at most: a Python guest has 18 MB.
const MODULE_BYTES_MAX: usize = 64 << 20;
/// What a component made for WASI may import. It is not implemented: a call of it is a trap.
const WASI: &str = "wasi:";

/// What was found, and what was expected.
pub(super) type Unfit = (String, String);

/// Validates, compiles and links a guest.
pub(super) fn load(
    engine: &Engine,
    linker: &Linker<State>,
    bytes: &[u8],
) -> Result<InstancePre<State>, Unfit> {
    if bytes.len() > MODULE_BYTES_MAX {
        return Err((
            format!("{} bytes", bytes.len()),
            format!("a module of at most {MODULE_BYTES_MAX} bytes"),
        ));
    }
    let valid = || "a valid WebAssembly module or component".to_owned();
    Validator::new_with_features(WasmFeatures::default())
        .validate_all(bytes)
        .map_err(|error| (one_line(&error.to_string()), valid()))?;
    let encoded;
    let bytes = if Parser::is_component(bytes) {
        bytes
    } else {
        encoded = encode(bytes)
            .map_err(|error| (one_line(&error), format!("a module that exports `{HANDLER}`")))?;
        encoded.as_slice()
    };
    let component = Component::from_binary(engine, bytes)
        .map_err(|error| (one_line(&format!("{error:#}")), valid()))?;
    link(engine, linker, &component)
}

/// Turns a plain module into a component, with our own copy of the contract.
///
/// The module also describes its types, in custom sections. A damaged one can send its parser into
/// endless recursion, which nothing can catch. So all custom sections are dropped unread.
pub(super) fn encode(module: &[u8]) -> Result<Vec<u8>, String> {
    let plain = without_custom_sections(module).map_err(|error| error.to_string())?;
    componentize(plain)
}

fn without_custom_sections(module: &[u8]) -> wasmparser::Result<Vec<u8>> {
    let mut plain = wasm_encoder::Module::HEADER.to_vec();
    for payload in Parser::new(0).parse_all(module) {
        let payload = payload?;
        if matches!(payload, Payload::CustomSection(_)) {
            continue;
        }
        if let Some((id, range)) = payload.as_section() {
            let data = module.get(range).unwrap_or_default();
            wasm_encoder::Section::append_to(&wasm_encoder::RawSection { id, data }, &mut plain);
        }
    }
    Ok(plain)
}

fn componentize(mut module: Vec<u8>) -> Result<Vec<u8>, String> {
    let text = |error| format!("{error:#}");
    let mut resolve = Resolve::default();
    let package = resolve.push_source("policy.wit", WIT).map_err(text)?;
    let world = resolve.select_world(&[package], Some("policy")).map_err(text)?;
    embed_component_metadata(&mut module, &resolve, world, StringEncoding::UTF8).map_err(text)?;
    ComponentEncoder::default()
        .module(&module)
        .and_then(|encoder| encoder.validate(true).encode())
        .map_err(text)
}

fn link(
    engine: &Engine,
    linker: &Linker<State>,
    component: &Component,
) -> Result<InstancePre<State>, Unfit> {
    let mut wasi = false;
    for (name, _) in component.component_type().imports(engine) {
        wasi |= name.starts_with(WASI);
        if !name.starts_with(WASI) && !IMPORTS.contains(&name) {
            return Err((
                format!("an import of `{}`", one_line(name)),
                format!("imports of `{}` alone", IMPORTS.join("`, `")),
            ));
        }
    }
    if component.get_export_index(None, HANDLER).is_none() {
        return Err((
            format!("no export `{HANDLER}`"),
            "a guest of the world `weir:policy/policy@0.3.0`".into(),
        ));
    }
    let mut linker = linker.clone();
    if wasi {
        linker.define_unknown_imports_as_traps(component).map_err(|error| mismatch(&error))?;
    }
    linker.instantiate_pre(component).map_err(|error| mismatch(&error))
}

fn mismatch(error: &wasmtime::Error) -> Unfit {
    (one_line(&format!("{error:#}")), "imports as the contract has them".into())
}
