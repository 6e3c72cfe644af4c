//! What a route changes in its replies, checked when the snapshot is built. A route that changes
//! nothing has an empty pointer.

use std::sync::Arc;

use http::StatusCode;

use super::compress::Compress;
use super::page::Page;
use crate::proxy::forward::extras::rules;
use crate::proxy::forward::rules::Rules;
use crate::proxy::receive::hop;
use crate::proxy::route::cors::Cors;
use crate::proxy::settings::{Extras, FieldStyle, RefusalPage};
use crate::telemetry::SettingError;
use crate::wire::{Fields, InterimFilter, Known, KnownSet};

/// Changes to a reply.
#[derive(Debug)]
pub(in crate::proxy) struct ReplyExtras {
    headers: Option<Rules>,
    pub(in crate::proxy) cors: Option<Cors>,
    pub(in crate::proxy) compress: Option<Compress>,
    pages: Vec<Page>,
    /// The pages of every route.
    all: Arc<[Page]>,
}

impl ReplyExtras {
    /// Checks the settings for replies of the route at the setting `at`. Errors are added to
    /// `errors`.
    pub(in crate::proxy) fn build(
        extras: &Extras,
        style: FieldStyle,
        all: &Arc<[Page]>,
        at: &str,
        errors: &mut Vec<SettingError>,
    ) -> Option<Self> {
        let headers = rules(&extras.response_headers, &format!("{at}.response_headers"), errors);
        let cors = extras
            .cors
            .as_ref()
            .and_then(|written| Cors::build(written, style, &format!("{at}.cors"), errors));
        let compress = extras
            .compress
            .as_ref()
            .map(|written| Compress::build(written, &format!("{at}.compress"), errors));
        let pages = pages(&extras.refusals, &format!("{at}.refusals"), errors);
        let some = headers.is_some()
            || cors.is_some()
            || compress.is_some()
            || !pages.is_empty()
            || !all.is_empty();
        some.then(|| Self { headers, cors, compress, pages, all: Arc::clone(all) })
    }

    /// The changes for requests that match no route.
    pub(in crate::proxy) fn no_route(all: &Arc<[Page]>) -> Option<Self> {
        (!all.is_empty()).then(|| Self {
            headers: None,
            cors: None,
            compress: None,
            pages: Vec::new(),
            all: Arc::clone(all),
        })
    }

    /// Applied to a reply's own fields, before Weir adds its own.
    pub(in crate::proxy) fn apply(&self, fields: &mut Fields) {
        self.apply_rules(fields);
        if let Some(cors) = &self.cors {
            cors.expose(fields);
        }
    }

    /// The changes to header fields alone.
    pub(in crate::proxy) fn apply_rules(&self, fields: &mut Fields) {
        if let Some(rules) = &self.headers {
            rules.apply(fields);
        }
    }

    /// The operator's page for a refusal. The route's own take precedence.
    pub(in crate::proxy) fn page(&self, status: StatusCode) -> Option<&Page> {
        self.pages.iter().chain(&*self.all).find(|page| page.is_for(status))
    }
}

/// What is done with an upstream's interim replies (103): what is done with its replies, as far as
/// it can be done before they come. `X-Request-Id` comes with the reply, and is Weir's.
#[derive(Debug)]
pub(in crate::proxy) struct Interim {
    extras: Option<Arc<ReplyExtras>>,
}

impl Interim {
    /// The filter of a route with these changes to its replies.
    pub(in crate::proxy) fn new(extras: Option<Arc<ReplyExtras>>) -> Self {
        Self { extras }
    }
}

impl InterimFilter for Interim {
    fn filter(&self, fields: &mut Fields) {
        const OF_REPLIES: KnownSet =
            KnownSet::of(&[Known::RequestId, Known::ContentLength, Known::Trailer]);
        hop::strip(fields);
        fields.remove_all(OF_REPLIES);
        if let Some(extras) = &self.extras {
            extras.apply_rules(fields);
        }
    }
}

/// Checks the pages under the setting `at`.
pub(in crate::proxy) fn pages(
    written: &[RefusalPage],
    at: &str,
    errors: &mut Vec<SettingError>,
) -> Vec<Page> {
    written
        .iter()
        .enumerate()
        .filter_map(|(index, page)| Page::build(page, &format!("{at}[{index}]"), errors))
        .collect()
}
