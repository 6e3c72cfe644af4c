//! Which routes each listener has: all of them, except for those that name other listeners. Knows
//! nothing of what a route does.

use http::Method;

use super::routes::{Matcher, Routes, RoutingError};
use super::trie::{Match, Pattern, UnreachedRoute};
use crate::proxy::settings::Paths;
use crate::telemetry::SettingError;

/// The routes of all listeners.
#[derive(Debug)]
pub(in crate::proxy) struct Tables {
    /// The tables by the listener's number; only one where all listeners have the same routes.
    each: Vec<Table>,
    /// The listeners' names, in the order of their numbers.
    names: Vec<Option<String>>,
    paths: Paths,
}

/// The routes of one listener.
#[derive(Debug)]
pub(in crate::proxy) struct Table {
    routes: Routes,
    /// The same routes with all spellings distinct.
    exact: Option<Routes>,
    /// Those that are in it.
    indices: Vec<usize>,
}

impl Table {
    fn new(paths: Paths) -> Self {
        let exact = Some(Routes::new(paths.exact()));
        Self { routes: Routes::new(paths), exact, indices: Vec::new() }
    }

    fn add(&mut self, index: usize, matcher: Matcher<'_>) -> Result<Pattern, SettingError> {
        let pattern = self.routes.add(index, matcher)?;
        if let Some(exact) = &mut self.exact {
            exact.add(index, matcher)?;
        }
        self.indices.push(index);
        Ok(pattern)
    }

    /// Whether any route names a host.
    pub(in crate::proxy) fn know_hosts(&self) -> bool {
        self.routes.know_hosts()
    }

    /// The most specific route: see [`Routes::find`].
    pub(in crate::proxy) fn find<'p>(
        &self,
        host: &str,
        path: &'p str,
        method: &Method,
    ) -> Result<Match<'p>, RoutingError> {
        self.routes.find(host, path, method)
    }

    /// The most specific route for the path exactly as spelt. None if that makes no difference to
    /// any route.
    pub(in crate::proxy) fn find_exact<'p>(
        &self,
        host: &str,
        path: &'p str,
        method: &Method,
    ) -> Option<Match<'p>> {
        self.exact.as_ref()?.find(host, path, method).ok()
    }
}

impl Tables {
    /// No routes. `names` are those of the listeners, in the order of their numbers; `differ` says
    /// whether any route names its listeners.
    pub(in crate::proxy) fn new(paths: Paths, names: &[Option<String>], differ: bool) -> Self {
        let count = if differ { names.len().max(1) } else { 1 };
        let each = (0..count).map(|_| Table::new(paths)).collect();
        Self { each, names: names.to_vec(), paths }
    }

    /// Adds the route at `index`, to the listeners of these names; to all where there are none.
    ///
    /// # Errors
    /// The first error in it.
    pub(in crate::proxy) fn add(
        &mut self,
        index: usize,
        matcher: Matcher<'_>,
        listeners: &[String],
    ) -> Result<Pattern, SettingError> {
        let Self { each, names, paths } = self;
        let has = |number: usize| {
            let name = names.get(number).and_then(Option::as_ref);
            listeners.is_empty() || name.is_some_and(|name| listeners.contains(name))
        };
        let mut added = None;
        for (number, table) in each.iter_mut().enumerate() {
            if has(number) {
                added = Some(table.add(index, matcher)?);
            }
        }
        // A listener that this process will have once it is started again.
        added.map_or_else(|| Table::new(*paths).add(index, matcher), Ok)
    }

    /// How a path is spelt makes no difference to any route.
    pub(in crate::proxy) fn drop_exact(&mut self) {
        self.each.iter_mut().for_each(|table| table.exact = None);
    }

    /// The routes of a listener.
    pub(in crate::proxy) fn of(&self, listener: usize) -> Option<&Table> {
        match &*self.each {
            [only] => Some(only),
            each => each.get(listener),
        }
    }

    /// The routes that no request reaches, or none that clients usually send, on any listener.
    pub(in crate::proxy) fn unreached(&self, uri_bytes_max: usize) -> Vec<UnreachedRoute> {
        let tables: Vec<_> =
            self.each.iter().map(|table| (table, table.routes.unreached(uri_bytes_max))).collect();
        let mut all: Vec<UnreachedRoute> = Vec::new();
        for one in tables.iter().flat_map(|(_, unreached)| unreached) {
            let reached = tables.iter().any(|(table, unreached)| {
                table.indices.contains(&one.route)
                    && !unreached.iter().any(|other| other.route == one.route)
            });
            if !reached && !all.iter().any(|other| other.route == one.route) {
                all.push(one.clone());
            }
        }
        all.sort_unstable_by_key(|one| one.route);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proxy::route::trie::UnreachedCause;

    /// A path, and the names of its listeners.
    type Written = (&'static str, &'static [&'static str]);

    fn built(names: &[Option<&str>], written: &[Written]) -> Result<Tables, SettingError> {
        let names: Vec<_> = names.iter().map(|name| name.map(str::to_owned)).collect();
        let differ = written.iter().any(|(_, listeners)| !listeners.is_empty());
        let mut tables = Tables::new(Paths::default(), &names, differ);
        for (index, (path, listeners)) in written.iter().enumerate() {
            let matcher = Matcher { host: None, path, methods: &[], redirects: false };
            let listeners: Vec<_> = listeners.iter().map(|name| (*name).to_owned()).collect();
            tables.add(index, matcher, &listeners)?;
        }
        Ok(tables)
    }

    fn found(tables: &Tables, listener: usize, path: &str) -> Option<usize> {
        Some(tables.of(listener)?.find("", path, &Method::GET).ok()?.route)
    }

    #[test]
    fn a_route_is_on_the_listeners_that_it_names_or_on_all() {
        let names = [Some("public"), None, Some("private")];
        let written: [Written; 4] =
            [("/*", &[]), ("/admin/*", &["private"]), ("/a", &["public"]), ("/a", &["private"])];
        let tables = built(&names, &written).unwrap();
        let on = |listener| ["/x", "/admin/x", "/a"].map(|path| found(&tables, listener, path));
        assert_eq!(on(0), [Some(0), Some(0), Some(2)]);
        assert_eq!(on(1), [Some(0), Some(0), Some(0)]);
        assert_eq!(on(2), [Some(0), Some(1), Some(3)]);
        assert_eq!(on(3), [None; 3]);
    }

    #[test]
    fn all_listeners_have_the_same_routes_if_no_route_names_any() {
        let tables = built(&[Some("public"), None], &[("/*", &[])]).unwrap();
        assert_eq!([0, 1, 7].map(|listener| found(&tables, listener, "/x")), [Some(0); 3]);
    }

    #[test]
    fn two_routes_for_the_same_requests_are_an_error_only_on_the_same_listener() {
        let names = [Some("public"), Some("private")];
        let error = built(&names, &[("/a", &["public"]), ("/a", &[])]).unwrap_err();
        assert_eq!(error.setting, "routes[1].path");
        // Also that of a listener that does not run yet.
        let error = built(&names, &[("a", &["new"])]).unwrap_err();
        assert_eq!(error.setting, "routes[0].path");
        let tables = built(&names, &[("/a", &["new"])]).unwrap();
        assert_eq!([0, 1].map(|listener| found(&tables, listener, "/a")), [None; 2]);
    }

    #[test]
    fn a_route_is_unreached_if_no_listener_has_requests_for_it() {
        let names = [Some("public"), Some("private")];
        let hidden = |on: &'static [&'static str]| {
            built(&names, &[("/a/*", on), ("/a", &["public"]), ("/a/{x}/*", &["public"])])
                .unwrap()
                .unreached(8_192)
        };
        assert_eq!(hidden(&[]), []);
        assert_eq!(hidden(&["private"]), []);
        let why = UnreachedCause::Hidden(vec![1, 2]);
        assert_eq!(hidden(&["public"]), [UnreachedRoute { route: 0, why }]);
    }
}
