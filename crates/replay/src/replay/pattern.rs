//! Lines of text that a pattern describes, as in nginx's `log_format`: text, and variables that
//! reach to the next piece of text.

use std::borrow::Cow;

use memchr::memmem;

use super::line::Line;
use super::variable::{Variable, cut};

/// The common log format of NCSA, and the combined one of Apache and nginx.
pub(super) const COMMON: &str =
    "$remote_addr $identity $remote_user [$time_local] \"$request\" $status $body_bytes_sent";
/// What combined has beyond common.
pub(super) const COMBINED: &str = "$remote_addr $identity $remote_user [$time_local] \"$request\" \
     $status $body_bytes_sent \"$http_referer\" \"$http_user_agent\"";

/// A line's shape.
#[derive(Debug)]
pub(super) struct Pattern {
    /// What comes before the first variable.
    start: String,
    parts: Vec<Part>,
    /// Whether a line may go on after the last variable.
    open: bool,
    /// Lines have paths without their queries.
    no_queries: bool,
}

#[derive(Debug)]
struct Part {
    /// Its name, for errors.
    name: String,
    variable: Variable,
    /// What ends it; empty at the end of the line.
    until: memmem::Finder<'static>,
    /// It is between quotes, inside which a quote is escaped.
    quoted: bool,
}

impl Pattern {
    /// # Errors
    /// What is wrong with it.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mut pieces = text.split('$');
        let start = pieces.next().unwrap_or_default().to_owned();
        let mut parts = Vec::new();
        let mut before = start.clone();
        let mut pieces = pieces.peekable();
        // The position of the next `$`, in characters from 1.
        let mut place = start.chars().count() + 1;
        while let Some(piece) = pieces.next() {
            let at = |wrong: String| format!("at character {place}: {wrong}");
            let (name, until) = named(piece).map_err(at)?;
            if until.is_empty() && pieces.peek().is_some() {
                return Err(at(format!(
                    "found ${name} directly before the next variable, expected text between them"
                )));
            }
            let variable = Variable::named(name)
                .map_err(|expected| at(format!("found the variable ${}, {expected}", cut(name))))?;
            place += piece.chars().count() + 1;
            parts.push(Part {
                name: name.to_owned(),
                variable,
                until: memmem::Finder::new(until).into_owned(),
                quoted: before.ends_with('"') && until.starts_with('"'),
            });
            before = until.to_owned();
        }
        let mut pattern = Self { start, parts, open: false, no_queries: false };
        pattern.check()?;
        pattern.prefer();
        Ok(pattern)
    }

    /// Where several variables hold the path, only the one that is nearest to what the client sent
    /// counts: nginx may have rewritten the others.
    fn prefer(&mut self) {
        let order: [&[Variable]; 3] =
            [&[Variable::Request], &[Variable::Target], &[Variable::Path, Variable::Query]];
        let has = |any: &[Variable]| self.parts.iter().any(|part| any.contains(&part.variable));
        let Some(best) = order.iter().position(|any| has(any)) else { return };
        self.no_queries = best == 2 && !has(&[Variable::Query]);
        for part in &mut self.parts {
            if order.iter().skip(best + 1).any(|any| any.contains(&part.variable)) {
                part.variable = Variable::Other;
            }
        }
    }

    /// Whether lines may go on after the last variable, as formats with more fields than combined
    /// do.
    pub(super) fn open(self) -> Self {
        Self { open: true, ..self }
    }

    fn check(&self) -> Result<(), String> {
        let has = |any: &[Variable]| self.parts.iter().any(|part| any.contains(&part.variable));
        let needed: [(&[Variable], &str); 3] = [
            (&[Variable::Client], "$remote_addr"),
            (
                &[Variable::TimeLocal, Variable::TimeIso, Variable::Milliseconds],
                "$time_local, $time_iso8601 or $msec",
            ),
            (
                &[Variable::Request, Variable::Target, Variable::Path],
                "$request, or $request_method with $request_uri or $uri",
            ),
        ];
        match needed.into_iter().find(|(any, _)| !has(any)) {
            Some((_, name)) => Err(format!("found a pattern without {name}, expected one with it")),
            None => Ok(()),
        }
    }

    /// # Errors
    /// Where the line differs.
    pub(super) fn read<'l>(&self, text: &'l str) -> Result<Line<'l>, Cow<'static, str>> {
        let (stamp_is_end, no_queries) = (true, self.no_queries);
        let mut line = Line { stamp_is_end, no_queries, ..Line::default() };
        let mut rest = text.strip_prefix(self.start.as_str()).ok_or_else(|| {
            format!("found a line that begins with {:?}, expected {:?}", cut(text), self.start)
        })?;
        for part in &self.parts {
            let (value, after) = part.split(rest, self.open).ok_or_else(|| {
                format!("fewer fields than expected: the line ends in ${}", part.name)
            })?;
            part.variable.tell(value, &mut line)?;
            rest = after;
        }
        if !rest.is_empty() && !self.open {
            let found = cut(rest);
            return Err(format!(
                "found {found:?} after the last field, expected the end of the line"
            )
            .into());
        }
        Ok(line)
    }
}

/// The variable's name at the beginning of `piece`, `NAME` or `{NAME}`, and the text after it.
fn named(piece: &str) -> Result<(&str, &str), String> {
    if let Some(rest) = piece.strip_prefix('{') {
        return rest
            .split_once('}')
            .ok_or_else(|| format!("found \"${}\", expected `}}`", cut(piece)));
    }
    let end = piece.find(|byte: char| !byte.is_ascii_alphanumeric() && byte != '_');
    let (name, until) = piece.split_at_checked(end.unwrap_or(piece.len())).unwrap_or((piece, ""));
    if name.is_empty() {
        let until = cut(until);
        return Err(format!("found `$` before {until:?}, expected a variable such as $status"));
    }
    Ok((name, until))
}

impl Part {
    /// Its value, and what follows its end.
    fn split<'t>(&self, text: &'t str, is_open: bool) -> Option<(&'t str, &'t str)> {
        let until = self.until.needle();
        if until.is_empty() {
            // The last one. Where the line may go on, it ends at a blank.
            let end = text.find(' ').filter(|_| is_open);
            return text.split_at_checked(end.unwrap_or(text.len()));
        }
        let mut from = 0;
        loop {
            let found = from + self.until.find(text.as_bytes().get(from..)?)?;
            let value = text.get(..found)?;
            let slashes = value.bytes().rev().take_while(|byte| *byte == b'\\').count();
            if !self.quoted || slashes.is_multiple_of(2) {
                return Some((value, text.get(found + until.len()..)?));
            }
            from = found + 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_is_read_as_nginx_writes_it() {
        let pattern = Pattern::parse(
            "${remote_addr}|$time_iso8601|\"$request\"|$status|$request_time|$http_x_api_key|$upstream_addr",
        )
        .unwrap();
        let line = pattern
            .read(r#"10.0.0.1|2015-05-17T10:05:03Z|"GET /a\"|b HTTP/2.0"|204|0.250|k1|10.0.0.9:80"#)
            .unwrap();
        assert_eq!(line.client.as_deref(), Some("10.0.0.1"));
        assert_eq!((line.status, line.took_us), (Some(204), Some(250_000)));
        assert_eq!(line.target.as_deref(), Some("/a\"|b"));
        assert_eq!(line.headers.as_slice(), [("x-api-key".into(), "k1".into())]);
    }

    #[test]
    fn the_path_is_the_one_that_the_client_sent() {
        let line = |pattern: &str, rest: &str| {
            let pattern = format!("$remote_addr $time_iso8601 {pattern}");
            let text = format!("10.0.0.1 2015-05-17T10:05:03Z {rest}");
            let line = Pattern::parse(&pattern).unwrap();
            let line = line.read(&text).unwrap();
            let text = |part: Option<Cow<'_, str>>| part.map(Cow::into_owned);
            (text(line.target).unwrap(), text(line.query), line.no_queries)
        };
        let sent = ("/a?b=1".to_owned(), None, false);
        let rewritten = "/index.php";
        assert_eq!(
            line("\"$request\" $uri", &format!("\"GET /a?b=1 HTTP/1.1\" {rewritten}")),
            sent
        );
        assert_eq!(
            line("$uri \"$request\"", &format!("{rewritten} \"GET /a?b=1 HTTP/1.1\"")),
            sent
        );
        assert_eq!(line("$request_uri $uri $args", &format!("/a?b=1 {rewritten} q=/a")), sent);
        assert_eq!(line("$uri $args", "/a b=1"), ("/a".to_owned(), Some("b=1".to_owned()), false));
        assert_eq!(line("$uri", "/a"), ("/a".to_owned(), None, true), "queries are not logged");
    }

    #[test]
    fn the_last_variable_reaches_to_the_end_of_the_line() {
        for (last, text) in [
            ("$http_user_agent", "Mozilla/5.0 (X11; Linux x86_64)"),
            ("$request", "GET /a b HTTP/1.1"),
            ("$time_local", "17/May/2015:10:05:03 +0000"),
        ] {
            let rest = "$request|$time_local|".replace(&format!("{last}|"), "");
            let before = rest.replace("$request", "GET / HTTP/1.1");
            let before = before.replace("$time_local", "17/May/2015:10:05:04 +0000");
            let pattern = Pattern::parse(&format!("$remote_addr|{rest}{last}")).unwrap();
            let text = format!("10.0.0.1|{before}{text}");
            let line = pattern.read(&text).unwrap_or_else(|told| panic!("{text}: {told}"));
            match last {
                "$request" => assert_eq!(line.target.as_deref(), Some("/a b")),
                "$time_local" => assert_eq!(line.stamp_us, Some(1_431_857_103_000_000)),
                _ => assert_eq!(line.headers[0].1, "Mozilla/5.0 (X11; Linux x86_64)"),
            }
        }
    }

    #[test]
    fn a_pattern_without_a_needed_variable_is_refused_by_its_name() {
        for (pattern, told) in [
            ("$remote_addr $status", "without $time_local"),
            ("$remote_addr$status", "directly before"),
            ("[$time_local] \"$request\"", "without $remote_addr"),
            ("$", "at character 1: found `$` before \"\", expected a variable"),
            ("$remote_adr [$time_local]", "at character 1: found the variable $remote_adr, "),
            ("\u{e9} ${status} [$time_locla]", "at character 14: found the variable $time_locla, "),
            ("$remote_addr$status", "at character 1: found $remote_addr directly before"),
            ("$status ${oops", "at character 9: found \"${oops\", expected `}`"),
            ("$status $tme_local", "the nearest is $time_local; known are $remote_addr, "),
        ] {
            let found = Pattern::parse(pattern).unwrap_err();
            assert!(found.contains(told), "{found}");
        }
    }

    #[test]
    fn a_line_of_another_shape_says_where() {
        let pattern = Pattern::parse(COMMON).unwrap();
        for (text, told) in [
            ("", "the line ends in $remote_addr"),
            ("a - - [17/May/2015:10:05:03 +0000] \"GET / HTTP/1.1\" 200", "ends in $status"),
            ("a - - [yesterday] \"GET / HTTP/1.1\" 200 1", "the time"),
            ("a - - [17/May/2015:10:05:03 +0000] \"\\x16\\x03\" 400 1", "no request line"),
            (
                "a - - [17/May/2015:10:05:03 +0000] \"GET / HTTP/1.1\" ok 1",
                "the status \"ok\", expected",
            ),
            (
                "a - - [17/May/2015:10:05:03 +0000] \"GET / HTTP/1.1\" 200 1 2",
                "the length \"1 2\", expected",
            ),
        ] {
            let found = pattern.read(text).unwrap_err();
            assert!(found.contains(told), "{text}: {found}");
        }
    }
}
