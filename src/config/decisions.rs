//! `[[decisions.tokens]]`: who may call for decisions.

use std::collections::HashSet;

use super::reader::{Item, Table};
use super::settings::Kind as _;
use super::settings::decisions::{SCOPES, TOKENS_MAX, tokens};
use super::{check_name, files};
use crate::listen::{self, Serves};
use crate::proxy::settings::{Caller, Callers, TokenDigest};

pub(super) fn callers(root: &mut Table<'_>, listeners: &[listen::Settings]) -> Callers {
    let mut table = root.section("decisions");
    let written = table.take("tokens");
    table.finish();
    let Some(written) = written else { return Callers::default() };
    let items = written.list(TOKENS_MAX);
    if items.is_empty() && written.value.is_array() {
        written.found("no token", "one `[[decisions.tokens]]` or more", None);
    }
    if !listeners.iter().any(|listener| listener.serves == Serves::Decisions) {
        let expected = "a `[[listeners]]` with `serves = \"decisions\"`";
        written.found_key("tokens, and no listener that they are for", expected, None);
    }
    let (mut names, mut seen) = (HashSet::new(), Vec::new());
    Callers::new(items.iter().filter_map(|item| caller(item, &mut names, &mut seen)).collect())
}

fn caller(
    item: &Item<'_>,
    names: &mut HashSet<String>,
    seen: &mut Vec<TokenDigest>,
) -> Option<Caller> {
    let mut table = item.table()?;
    let name = table.required(&tokens::NAME).and_then(|item| {
        let name = item.text("a name")?;
        check_name(name, &item);
        if !names.insert(name.to_owned()) {
            item.wrong("a name that no other token has");
        }
        Some(name.to_owned())
    });
    let is_given = table.has("token_file") || table.has("token_env");
    let token = files::token(&mut table, &tokens::TOKEN_FILE, &tokens::TOKEN_ENV);
    if !is_given {
        table.found("no token", "`token_file` or `token_env`");
    }
    let token = token.map(|token| TokenDigest::of(token.0.as_bytes()));
    if let Some(token) = token {
        if seen.contains(&token) {
            table.found("a token that another one is, too", "a token of its own");
        }
        seen.push(token);
    }
    let scopes = table.required_list(&tokens::SCOPES_OF).map(|item| {
        let items = item.list(tokens::SCOPES_OF.kind.max);
        if items.is_empty() && item.value.is_array() {
            item.found("no scope", "one or more", None);
        }
        items.iter().filter_map(|item| SCOPES.read(item)).collect()
    });
    let has_domains = table.has("domains");
    let domains = table.items(&tokens::DOMAINS);
    let domains = domains.iter().filter_map(|item| item.text("a domain").map(str::to_owned));
    let domains = Some(domains.collect()).filter(|_| has_domains);
    table.finish();
    Some(Caller { name: name?, token: token?, scopes: scopes?, domains })
}
