//! What a module is, for a person who asks, and what its calls cost.

use std::borrow::Cow;
use std::sync::Arc;

use wasmparser::{Parser, Payload};

use super::build::shipped_module;
use super::error::{CallPhase, one_line};
use super::instance::StartError;
use super::{
    Caps, Cause, Decision, Failure, KnownFacts, Module, Policy, PolicyError, Runtime, answer,
    component,
};
use crate::telemetry::SettingError;

/// Maximum number of imports or exports that are listed.
const LISTED_MAX: usize = 64;

/// What a module is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModuleReport {
    /// Its size, in bytes.
    pub size: usize,
    /// Its BLAKE3 digest, in hexadecimal digits.
    pub digest: String,
    /// Whether it is a component, or a plain module.
    pub is_component: bool,
    /// What it imports, as `MODULE NAME`; of a component its interfaces.
    pub imports: Vec<String>,
    /// What it exports.
    pub exports: Vec<String>,
}

/// A decision in an instance of its own.
#[derive(Clone, Debug, PartialEq)]
pub struct FreshDecision {
    /// The decision.
    pub decision: Arc<Decision>,
    /// Linear memory of the instance after the call, in bytes.
    pub memory_bytes: usize,
}

/// Reads a module. What it lists is empty if it is not a valid one.
#[must_use]
pub fn examine(module: &Module) -> ModuleReport {
    let bytes = match module {
        Module::File { bytes, .. } => Cow::Borrowed(&bytes[..]),
        Module::Shipped(name) => Cow::Owned(shipped_module(name).unwrap_or_default()),
    };
    let (mut imports, mut exports) = (Vec::new(), Vec::new());
    let mut depth = 0_usize;
    for payload in Parser::new(0).parse_all(&bytes).map_while(Result::ok) {
        match payload {
            Payload::ModuleSection { .. } | Payload::ComponentSection { .. } => depth += 1,
            Payload::End(_) => depth = depth.saturating_sub(1),
            // What is inside a component is its own affair.
            _ if depth > 0 => {}
            Payload::ImportSection(section) => {
                let each = section.into_imports().map_while(Result::ok);
                imports.extend(each.map(|import| format!("{} {}", import.module, import.name)));
            }
            Payload::ExportSection(section) => {
                let each = section.into_iter().map_while(Result::ok);
                exports.extend(each.map(|export| export.name.to_owned()));
            }
            Payload::ComponentImportSection(section) => {
                let each = section.into_iter().map_while(Result::ok);
                imports.extend(each.map(|import| import.name.name.to_owned()));
            }
            Payload::ComponentExportSection(section) => {
                let each = section.into_iter().map_while(Result::ok);
                exports.extend(each.map(|export| export.name.name.to_owned()));
            }
            _ => {}
        }
    }
    let listed = |mut names: Vec<String>| {
        names.truncate(LISTED_MAX);
        names.iter().map(|name| one_line(name)).collect()
    };
    ModuleReport {
        size: bytes.len(),
        digest: blake3::hash(&bytes).to_hex().to_string(),
        is_component: Parser::is_component(&bytes),
        imports: listed(imports),
        exports: listed(exports),
    }
}

/// Compiles and links a module, as [`Policy::build`] does, but starts nothing.
///
/// # Errors
/// What is wrong with it.
pub fn load(bytes: &[u8], facts: KnownFacts) -> Result<(), SettingError> {
    let runtime = Runtime::new(facts)?;
    let loaded = runtime.aside(|| component::load(&runtime, &Caps::default(), bytes).map(drop))?;
    loaded.map_err(|unfit| SettingError::new("", unfit.found, unfit.expected))
}

impl Policy {
    /// Whether decisions are remembered by their facts.
    #[must_use]
    pub fn remembers(&self) -> bool {
        self.remembers
    }

    /// Calls the guest in this thread's instance, though the decision may be remembered.
    ///
    /// # Errors
    /// See [`Cause`].
    pub fn decide_anew(&self, facts: &[(&str, &str)]) -> Result<Arc<Decision>, PolicyError> {
        self.ask(None, facts).map(|(decision, _)| decision)
    }

    /// Starts an instance, and calls the guest in it.
    ///
    /// # Errors
    /// See [`Cause`].
    pub fn decide_fresh(&self, facts: &[(&str, &str)]) -> Result<FreshDecision, PolicyError> {
        let mut instance = self.starter.start().map_err(|unready| match unready {
            StartError::Failed(failure) => self.failed(failure, CallPhase::Start),
            StartError::Refused(_) => {
                let text = "the guest refused the configuration that it accepted before";
                self.failed(Failure::new(Cause::Guest, text), CallPhase::Start)
            }
        })?;
        let decided = instance.decide(facts, None).and_then(|answer| {
            answer::decision(answer, &self.scripts)
                .map_err(|message| Failure::new(Cause::Answer, &message))
        });
        let decision =
            decided.map(Arc::new).map_err(|failure| self.failed(failure, CallPhase::Call))?;
        Ok(FreshDecision { decision, memory_bytes: instance.memory_bytes() })
    }
}
