//! What an access line shows of a call for a decision.

use super::Call;
use crate::proxy::callers::Caller;
use crate::telemetry::{AccessField, AccessFields};

/// Maximum bytes that are kept of a call's descriptors, and of its domain.
const TEXT_BYTES_MAX: usize = 1_024;

/// What was kept.
#[derive(Debug, Default)]
pub(in crate::proxy) struct NotedCall {
    /// The name of the caller's token.
    pub(in crate::proxy) caller: Option<String>,
    pub(in crate::proxy) domain: Option<String>,
    /// The entries of its descriptors, as JSON. Cut if they are long.
    pub(in crate::proxy) descriptors: Option<String>,
    /// The units that it takes, less those that it gives back, if they are not one for each
    /// descriptor.
    pub(in crate::proxy) hits: Option<i128>,
}

impl NotedCall {
    pub(in crate::proxy) fn note_caller(&mut self, fields: AccessFields, caller: Option<&Caller>) {
        if fields.has(AccessField::Caller) {
            self.caller = caller.map(|caller| caller.name.clone());
        }
    }

    pub(in crate::proxy) fn note_call(&mut self, fields: AccessFields, call: &Call) {
        if fields.has(AccessField::Domain) {
            let end = call.domain.floor_char_boundary(TEXT_BYTES_MAX);
            self.domain = call.domain.get(..end).map(str::to_owned);
        }
        if fields.has(AccessField::Hits) {
            let plain = |hits, gives_back| hits == 1 && gives_back == 0;
            if !call.descriptors.iter().all(|one| plain(one.hits, one.gives_back)) {
                let net = |hits, gives_back| i128::from(hits) - i128::from(gives_back);
                let each = call.descriptors.iter().map(|one| net(one.hits, one.gives_back));
                self.hits = Some(each.sum());
            }
        }
        if fields.has(AccessField::Descriptors) {
            let mut text = "[".to_owned();
            for (index, descriptor) in call.descriptors.iter().enumerate() {
                text.push_str(if index == 0 { "" } else { "," });
                text.push_str(&descriptor.text);
                if text.len() >= TEXT_BYTES_MAX {
                    break;
                }
            }
            text.push(']');
            text.truncate(text.floor_char_boundary(TEXT_BYTES_MAX));
            self.descriptors = Some(text);
        }
    }
}
