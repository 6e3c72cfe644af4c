//! Compiles a guest's bytes into a component, or finds it compiled in the cache. What a guest
//! declares about its own types is not trusted.

use wasmparser::{Parser, Payload, Validator, WasmFeatures};
use wasmtime::Engine;
use wasmtime::component::{Component, InstancePre, Linker};
use wit_component::{ComponentEncoder, StringEncoding, embed_component_metadata};
use wit_parser::Resolve;

use super::abi::{Label, PACKAGE};
use super::caps::{Caps, RuntimeSettings, shown_bytes};
use super::error::one_line;
use super::instance::State;
use super::runtime::Runtime;

/// What a component made for WASI may import. It is not implemented: a call of it is a trap.
const WASI: &str = "wasi:";

/// What was found, and what was expected.
#[derive(Debug)]
pub(super) struct ComponentError {
    /// The setting of the policy that is concerned, if it is not the one that names the module.
    pub(super) setting: Option<&'static str>,
    pub(super) found: String,
    pub(super) expected: String,
}

impl From<(String, String)> for ComponentError {
    fn from((found, expected): (String, String)) -> Self {
        Self { setting: None, found, expected }
    }
}

/// A guest that is ready to be started.
pub(super) struct LoadedGuest {
    pub(super) pre: InstancePre<State>,
    /// The version of the contract that it was built for.
    pub(super) label: Label,
    /// The digest of the module's bytes.
    pub(super) digest: blake3::Hash,
}

/// Validates, compiles and links a guest.
pub(super) fn load(
    runtime: &Runtime,
    caps: &Caps,
    bytes: &[u8],
) -> Result<LoadedGuest, ComponentError> {
    if bytes.len() > caps.module_bytes {
        return Err(ComponentError {
            setting: Some("module_bytes"),
            found: format!("a module of {} bytes", bytes.len()),
            expected: format!("at most `module_bytes` ({})", shown_bytes(caps.module_bytes)),
        });
    }
    let digest = blake3::hash(bytes);
    let component = component(runtime, bytes, &digest)?;
    let (pre, label) = link(runtime.engine(), runtime.linker(), &component)?;
    Ok(LoadedGuest { pre, label, digest })
}

/// Loads the component from the cache, or compiles it. What is in the cache was validated before it
/// was compiled.
fn component(
    runtime: &Runtime,
    bytes: &[u8],
    digest: &blake3::Hash,
) -> Result<Component, ComponentError> {
    let Some(cache) = runtime.cache() else { return compile(runtime, bytes) };
    let key = cache.key(digest, &super::abi::wits());
    if let Some(component) = cache.load(runtime.engine(), &key) {
        return Ok(component);
    }
    let component = compile(runtime, bytes)?;
    cache.store(&key, &component);
    Ok(component)
}

fn compile(runtime: &Runtime, bytes: &[u8]) -> Result<Component, ComponentError> {
    let encoded = validated(bytes)?;
    let bytes = encoded.as_deref().unwrap_or(bytes);
    let compiled = runtime.with_compilers(|engine| Component::from_binary(engine, bytes));
    compiled.map_err(|error| {
        (one_line(&format!("{error:#}")), expected_of_pool(runtime.settings())).into()
    })
}

/// Checks that these bytes are a module or a component. A module is made into a component, which is
/// returned.
pub(super) fn validated(bytes: &[u8]) -> Result<Option<Vec<u8>>, ComponentError> {
    Validator::new_with_features(WasmFeatures::default()).validate_all(bytes).map_err(|error| {
        let expected = "a valid WebAssembly module or component".to_owned();
        (one_line(&error.to_string()), expected)
    })?;
    if Parser::is_component(bytes) {
        return Ok(None);
    }
    let label = Label::of(exports(bytes).iter().map(String::as_str))?;
    let encoded = encode(bytes, &label).map_err(|error| {
        (
            one_line(&error),
            format!(
                "a module that exports `{}` (in Rust: `weir_policy::export!(YourPolicy)`)",
                label.handler()
            ),
        )
    })?;
    Ok(Some(encoded))
}

/// The names that a valid module exports.
fn exports(module: &[u8]) -> Vec<String> {
    let payloads = Parser::new(0).parse_all(module).map_while(Result::ok);
    let sections = payloads.filter_map(|payload| match payload {
        Payload::ExportSection(section) => Some(section),
        _ => None,
    });
    let exports = sections.flat_map(|section| section.into_iter().map_while(Result::ok));
    exports.map(|export| export.name.to_owned()).collect()
}

/// What a valid component is refused for is a cap of the pool that its instances come from.
fn expected_of_pool(pool: &RuntimeSettings) -> String {
    format!(
        "a guest within the caps of `server.policies`: `core_instances` ({}), `memories` ({}), `tables` ({}) of `table_elements` ({})",
        pool.core_instances, pool.memories, pool.tables, pool.table_elements
    )
}

/// Turns a plain module into a component, with our own copy of the contract.
///
/// The module also describes its types, in custom sections. A damaged one can send its parser into
/// endless recursion, which nothing can catch. So all custom sections are dropped unread.
pub(super) fn encode(module: &[u8], label: &Label) -> Result<Vec<u8>, String> {
    let plain = without_custom_sections(module).map_err(|error| error.to_string())?;
    componentize(plain, label)
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

fn componentize(mut module: Vec<u8>, label: &Label) -> Result<Vec<u8>, String> {
    let text = |error| format!("{error:#}");
    let mut resolve = Resolve::default();
    let package = resolve.push_source("policy.wit", &label.wit()).map_err(text)?;
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
) -> Result<(InstancePre<State>, Label), ComponentError> {
    let kind = component.component_type();
    let label = Label::of(kind.exports(engine).map(|(name, _)| name));
    let mut wasi = false;
    for (name, _) in kind.imports(engine) {
        wasi |= name.starts_with(WASI);
        let ours = label.as_ref().map_or(name.starts_with(PACKAGE), |label| label.has_import(name));
        if !name.starts_with(WASI) && !ours {
            let expected = label.as_ref().map_or(PACKAGE.to_owned(), Label::imports);
            let found = format!("an import of `{}`", one_line(name));
            return Err((found, format!("imports of {expected} alone")).into());
        }
    }
    let label = label?;
    let mut linker = linker.clone();
    if wasi {
        linker.define_unknown_imports_as_traps(component).map_err(|error| mismatch(&error))?;
    }
    let pre = linker.instantiate_pre(component).map_err(|error| mismatch(&error))?;
    Ok((pre, label))
}

fn mismatch(error: &wasmtime::Error) -> ComponentError {
    (one_line(&format!("{error:#}")), "imports that the contract defines".to_owned()).into()
}
