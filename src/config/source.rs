//! The position of each setting in the file, and how errors are shown: file, line, the text
//! marked, and what was expected.
//!
//! Keeps the file's text for errors that show later (those of other modules and of guests), with
//! anything that looks like a secret replaced by stars. Also keeps the texts of the data files that
//! it names; each is the value of one setting. Their keys and values may be customers' keys, and
//! one of them may be where its digest belongs. So nothing of such a file is shown but its
//! structure. Knows no section's meaning.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::sync::OnceLock;

use annotate_snippets::{AnnotationKind, Level, Origin, Renderer, Snippet};
use toml::de::{DeTable, DeValue};

use super::finding::{Finding, Mark, Span, join, unquoted};
use super::secrets::{
    DIGEST_BEGIN, DIGEST_KEYS, DIGESTS_IN, blot, is_secret, secret_lines, user_infos,
    without_user_infos,
};
use super::{ConfigErrors, Difference, ErrorAt, Source, Warning, drop_flat, json};
use crate::reload::Watch;
use crate::telemetry::{Lint, SettingError, error_line};

/// Maximum number of errors that are shown; the rest is counted.
const SHOWN_MAX: usize = 50;
/// Maximum length of one part of a message, in characters: a guest's message may be long.
const MESSAGE_CHARS_MAX: usize = 300;
/// Maximum size of a setting's path that is looked up, in bytes: a guest may send any path.
const SETTING_BYTES_MAX: usize = 1_024;
/// Levels of tables and arrays that are indexed. Deeper settings are marked at their parent.
const DEPTH_MAX: usize = 64;
/// Shown in place of a text that may be a secret.
const NOT_SHOWN: &str = "a text that is not shown, as it may be a secret";

/// A text, and the position of each setting in it.
#[derive(Default)]
pub(super) struct Page {
    /// The file's path.
    name: String,
    /// The text, with secrets replaced by stars.
    text: String,
    spans: HashMap<String, Span>,
    /// Those of settings with quotes in their paths, by the paths without them.
    unquoted: HashMap<String, Span>,
}

/// A file whose content is the value of one setting.
pub(super) struct Data {
    setting: String,
    /// The file's path.
    name: String,
    text: String,
    is_json: bool,
    /// Made only when an error needs it, since such a file may be large.
    page: OnceLock<Page>,
}

impl Data {
    pub(super) fn new(setting: String, path: &Path, text: String, is_json: bool) -> Self {
        Self { setting, name: path.display().to_string(), text, is_json, page: OnceLock::new() }
    }

    fn page(&self) -> &Page {
        self.page.get_or_init(|| {
            let mut spans = HashMap::new();
            if self.is_json {
                spans = json::spans(&self.text, &self.setting);
            } else {
                let (root, _) = DeTable::parse_recoverable(&self.text);
                index(&mut spans, &self.setting, root.get_ref(), 0);
                drop_flat(root.into_inner());
            }
            Page::with(&self.name, structure(&self.text), spans)
        })
    }

    fn holds(&self, setting: &str) -> bool {
        unquoted(setting)
            .strip_prefix(&unquoted(&self.setting))
            .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    }
}

impl fmt::Debug for Data {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Data({}, {} bytes)", self.name, self.text.len())
    }
}

impl Source {
    /// `root` is what could be read of the text, all of it unless the text `is_torn`.
    pub(super) fn new(path: &Path, text: &str, root: &DeTable<'_>, is_torn: bool) -> Self {
        let mut spans = HashMap::new();
        index(&mut spans, "", root, 0);
        let page = Page::of(&path.display().to_string(), text, spans, is_torn);
        Self { page, data: Vec::new(), watched: Vec::new() }
    }

    pub(super) fn with(mut self, data: Vec<Data>, watched: Vec<Watch>) -> Self {
        (self.data, self.watched) = (data, watched);
        self
    }

    /// The same file, whose settings are also known under `section`.
    pub(super) fn under(mut self, root: &DeTable<'_>, section: &str) -> Self {
        let Page { name, text, mut spans, .. } = std::mem::take(&mut self.page);
        index(&mut spans, section, root, 0);
        self.page = Page::with(&name, text, spans);
        self
    }

    /// What differs from what the file says, each drawn where it is said.
    #[must_use]
    pub fn differences(&self, all: &[Difference]) -> String {
        let excerpt = |difference: &Difference| {
            let Difference { setting, found, expected, help } = difference;
            let error = SettingError::new(setting, found, expected);
            let finding = Finding::new(error, Mark::Value, help.clone());
            let (_, page) = self.page_of(setting);
            let place = page.place(&finding);
            page.render(place, &self.shown(finding))
        };
        let mut text: String =
            all.iter().take(SHOWN_MAX).map(|one| excerpt(one) + "\n\n").collect();
        if all.len() > SHOWN_MAX {
            text.push_str(&format!("... and {} more\n", all.len() - SHOWN_MAX));
        }
        text
    }

    /// Errors that other modules found, with file and line.
    #[must_use]
    pub fn locate(&self, errors: &[SettingError]) -> ConfigErrors {
        self.report(errors.iter().cloned().map(Finding::elsewhere).collect())
    }

    /// All findings as one text, in the order of the files. Findings without a position come last.
    pub(super) fn report(&self, findings: Vec<Finding>) -> ConfigErrors {
        let count = findings.len();
        let placed = |finding: Finding| {
            let (number, page) = self.page_of(&finding.error.setting);
            let place = page.place(&finding);
            let order = (place.is_none(), number, place.as_ref().map(|place| place.start));
            (order, page, place, self.shown(finding))
        };
        let mut placed: Vec<_> = findings.into_iter().map(placed).collect();
        placed.sort_by_key(|(order, ..)| *order);
        let mut text = String::new();
        let mut each = Vec::with_capacity(count.min(SHOWN_MAX));
        for (_, page, place, finding) in placed.iter().take(SHOWN_MAX) {
            text.push_str(&page.render(place.clone(), finding));
            text.push_str("\n\n");
            each.push(ErrorAt {
                file: page.name.clone(),
                line: place.as_ref().map(|place| page.line_at(place.start)),
                text: finding.sentence(),
            });
        }
        if count > SHOWN_MAX {
            text.push_str(&format!("... and {} more\n", count - SHOWN_MAX));
        }
        text.push_str(&format!(
            "{}: {count} error{}",
            self.page.name,
            if count == 1 { "" } else { "s" }
        ));
        let watched = self.watched.clone();
        ConfigErrors { count, text, each, watched, may_pass: false, rest: None }
    }

    /// A finding without what may be a secret: below a setting whose keys and values may be.
    fn shown(&self, finding: Finding) -> Finding {
        let setting = &finding.error.setting;
        let data = self.data.iter().find(|data| data.holds(setting));
        let of_data = data.map(|data| data.setting.clone());
        let of_digests = || {
            let end = setting.find(DIGESTS_IN)? + DIGESTS_IN.len();
            let (above, below) = setting.split_at_checked(end)?;
            let key = below.strip_prefix('.')?.trim_start_matches('"');
            (!key.starts_with(DIGEST_BEGIN)).then(|| above.to_owned())
        };
        match of_data.or_else(of_digests) {
            Some(setting) => finding.below(setting),
            None => finding,
        }
    }

    /// A lint as a warning, with file and line.
    #[must_use]
    pub fn warn(&self, lint: &Lint) -> Warning {
        let (_, page) = self.page_of(&lint.setting);
        Warning {
            name: lint.name.clone(),
            place: page.line_of(&lint.setting, lint.in_key),
            text: plain(&lint.text),
            remedy: lint.remedy.as_deref().map(plain),
            rendering: page.render_lint(lint),
        }
    }

    /// The file that contains a setting, and its number.
    fn page_of(&self, setting: &str) -> (usize, &Page) {
        let data = self.data.iter().enumerate().find(|(_, data)| data.holds(setting));
        data.map_or((0, &self.page), |(number, data)| (number + 1, data.page()))
    }
}

impl Page {
    fn of(name: &str, text: &str, spans: HashMap<String, Span>, is_torn: bool) -> Self {
        let secret = spans.iter().filter(|(path, span)| {
            is_secret(path, text.get(span.value.clone()).unwrap_or_default())
        });
        let mut blots: Vec<Range<usize>> = secret.map(|(_, span)| span.value.clone()).collect();
        let in_digests = spans.iter().filter(|(path, span)| {
            path.contains(DIGEST_KEYS)
                && !text.get(span.key.clone()).is_some_and(|key| key.contains(DIGEST_BEGIN))
        });
        blots.extend(in_digests.map(|(_, span)| span.key.clone()));
        blots.extend(secret_lines(text, is_torn));
        blots.extend(user_infos(text));
        Self::with(name, blot(text, &blots), spans)
    }

    fn with(name: &str, text: String, spans: HashMap<String, Span>) -> Self {
        let mut quoted: Vec<_> = spans.iter().filter(|(path, _)| path.contains('"')).collect();
        // The first in the file, where two have the same.
        quoted.sort_by_key(|(_, span)| Reverse(span.key.start));
        let unquoted = quoted.into_iter().map(|(path, span)| (unquoted(path), span.clone()));
        Self { name: name.to_owned(), text, unquoted: unquoted.collect(), spans }
    }

    /// The span of a setting, whose path may lack the quotes.
    fn span(&self, setting: &str) -> Option<&Span> {
        self.spans.get(setting).or_else(|| self.unquoted.get(&unquoted(setting)))
    }

    /// `file:line:column` of a setting, or only the file if the setting is not in it.
    fn line_of(&self, setting: &str, in_key: bool) -> String {
        let of_span = |span: &Span| if in_key { span.key.start } else { span.value.start };
        let Some(place) = self.nearest_span(setting).map(of_span) else {
            return self.name.clone();
        };
        let before = self.text.get(..place).unwrap_or_default();
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        format!("{}:{}:{column}", self.name, self.line_at(place))
    }

    /// The line of a byte, from 1.
    fn line_at(&self, at: usize) -> usize {
        self.text.get(..self.text.floor_char_boundary(at)).unwrap_or_default().matches('\n').count()
            + 1
    }

    fn place(&self, finding: &Finding) -> Option<Range<usize>> {
        match &finding.mark {
            Mark::At(range) => Some(range.clone()),
            Mark::Key => self.nearest_span(&finding.error.setting).map(|span| span.key.clone()),
            Mark::Value => self.nearest_span(&finding.error.setting).map(|span| span.value.clone()),
        }
    }

    /// A setting's span, or that of the nearest setting above it: a missing key is marked at its
    /// table.
    fn nearest_span(&self, setting: &str) -> Option<&Span> {
        let mut path = setting.get(..setting.floor_char_boundary(SETTING_BYTES_MAX))?;
        loop {
            if let Some(span) = self.span(path) {
                return Some(span);
            }
            path = path.get(..path.rfind(['.', '['])?)?;
        }
    }

    fn render(&self, place: Option<Range<usize>>, finding: &Finding) -> String {
        let other = &finding.error.other;
        let (mut title, expected) = finding.parts();
        let mut group = match place {
            Some(place) => {
                let other = other.as_deref().and_then(|(setting, label)| {
                    Some((self.span(setting)?.value.clone(), plain(label)))
                });
                let beside: Vec<_> = other.iter().map(|(place, _)| place.clone()).collect();
                let (line_number, lines, marked, marked_beside) = self.lines(&place, &beside);
                let label = Some(expected).filter(|label| !label.is_empty());
                let snippet =
                    Snippet::source(lines).line_start(line_number).path(self.name.as_str());
                let beside = marked_beside
                    .into_iter()
                    .zip(other)
                    .map(|(marked, (_, label))| AnnotationKind::Context.span(marked).label(label));
                let snippet = snippet
                    .annotation(AnnotationKind::Primary.span(marked).label(label))
                    .annotations(beside);
                Level::ERROR.primary_title(title).element(snippet)
            }
            None => {
                if !expected.is_empty() {
                    title = format!("{title}, {expected}");
                }
                Level::ERROR.primary_title(title).element(Origin::path(self.name.as_str()))
            }
        };
        if let Some(help) = finding.help.clone().or_else(|| self.dotted_name(finding)) {
            group = group.element(Level::HELP.message(plain(&help)));
        }
        Renderer::plain().render(&[group])
    }

    /// A hint for a name with a dot that is written without quotes: `models.gpt-4.1 = { input = 5
    /// }` is read as a table `gpt-4` with a table `1` in it. That was meant if the inner table has
    /// one of the keys that are expected in the outer one.
    fn dotted_name(&self, finding: &Finding) -> Option<String> {
        let SettingError { setting, expected, .. } = &finding.error;
        let above = setting.rsplit_once('.').filter(|_| matches!(finding.mark, Mark::Key))?.0;
        let (outer, inner) = (self.spans.get(above)?, self.spans.get(setting)?);
        // Nothing but a dot is between the two keys.
        let dot = self.text.get(outer.key.end..inner.key.start)?;
        let known: Vec<&str> = expected.split('`').skip(1).step_by(2).collect();
        let is_meant = |path: &&String| {
            let below = path.strip_prefix(setting.as_str()).and_then(|rest| rest.strip_prefix('.'));
            below.is_some_and(|below| known.contains(&below.rsplit('.').next().unwrap_or(below)))
        };
        // The nearest of them, so that the hint does not depend on the map's order.
        let meant = self.spans.keys().filter(is_meant).min_by_key(|path| path.len())?;
        let last = self.spans.get(meant.rsplit_once('.')?.0)?;
        let name = self.text.get(outer.key.start..last.key.end)?;
        let is_plain = dot.trim() == "." && !name.contains(['"', '\'', '\n', '[', ']']);
        is_plain.then(|| {
            let parts = name.replacen('.', "` with `", 1);
            format!(
                "`{name}` is a table `{parts}` in it: write a name with a dot in quotes, \"{name}\""
            )
        })
    }

    /// A lint's sentence, with its setting and those beside it marked.
    fn render_lint(&self, lint: &Lint) -> String {
        let level = Level::WARNING;
        let title = format!("{} [{}]", plain(&lint.text), lint.name);
        let span = self.nearest_span(&lint.setting);
        let place = span.map(|span| if lint.in_key { &span.key } else { &span.value });
        let mut group = match place {
            Some(place) => {
                let others = lint.beside.iter().filter_map(|(setting, label)| {
                    Some((self.span(setting)?.value.clone(), plain(label)))
                });
                let others: Vec<_> = others.collect();
                let beside: Vec<_> = others.iter().map(|(place, _)| place.clone()).collect();
                let (line_number, lines, marked, marked_beside) = self.lines(place, &beside);
                let beside = marked_beside.into_iter().zip(others);
                let beside = beside
                    .map(|(marked, (_, label))| AnnotationKind::Context.span(marked).label(label));
                let snippet = Snippet::source(lines)
                    .line_start(line_number)
                    .path(self.name.as_str())
                    .annotation(AnnotationKind::Primary.span(marked))
                    .annotations(beside);
                level.primary_title(title).element(snippet)
            }
            None => level.primary_title(title).element(Origin::path(self.name.as_str())),
        };
        if let Some(remedy) = &lint.remedy {
            group = group.element(Level::HELP.message(plain(remedy)));
        }
        Renderer::plain().render(&[group])
    }

    /// The lines from the first to the last of several ranges: the number of the first line, the
    /// text, and what is marked in it. Of a range over several lines, only the first line is
    /// marked.
    fn lines(
        &self,
        place: &Range<usize>,
        beside: &[Range<usize>],
    ) -> (usize, &str, Range<usize>, Vec<Range<usize>>) {
        let (line, marked) = self.marked(place);
        let beside: Vec<_> = beside.iter().map(|beside| self.marked(beside)).collect();
        let first = beside.iter().map(|(other, _)| other.start).fold(line.start, usize::min);
        let end = beside.iter().map(|(other, _)| other.end).fold(line.end, usize::max);
        let number = self.text.get(..first).unwrap_or_default().matches('\n').count() + 1;
        let inside = |marked: Range<usize>| marked.start - first..marked.end - first;
        (
            number,
            self.text.get(first..end).unwrap_or_default(),
            inside(marked),
            beside.into_iter().map(|(_, marked)| inside(marked)).collect(),
        )
    }

    /// The line on which `place` begins, and the part of `place` that is on that line.
    fn marked(&self, place: &Range<usize>) -> (Range<usize>, Range<usize>) {
        let start = self.text.floor_char_boundary(place.start);
        let end = self.text.ceil_char_boundary(place.end.max(start));
        let line_start =
            self.text.get(..start).unwrap_or_default().rfind('\n').map_or(0, |at| at + 1);
        let rest = self.text.get(line_start..).unwrap_or_default();
        let line_end =
            line_start + rest.split('\n').next().unwrap_or_default().trim_end_matches('\r').len();
        (line_start..line_end, start.min(line_end)..end.min(line_end))
    }
}

/// A text with stars for everything but what gives it its structure.
fn structure(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for letter in text.chars() {
        if letter.is_ascii_whitespace() || "=[]{},:.\"'".contains(letter) {
            shown.push(letter);
        } else {
            (0..letter.len_utf8()).for_each(|_| shown.push('*'));
        }
    }
    shown
}

impl Finding {
    /// The same finding, named by a setting above it, and without texts that may be from the file:
    /// what is quoted, and single words.
    fn below(mut self, setting: String) -> Self {
        let found = &self.error.found;
        let end = found.find(['"', '\'', '`']).unwrap_or(found.len());
        let words = found.get(..end).unwrap_or_default().trim_end();
        self.error.found =
            if words.contains(' ') { words.to_owned() } else { NOT_SHOWN.to_owned() };
        self.error.setting = setting;
        self.help = None;
        self
    }

    /// What was found where, and what was expected, if that is known.
    fn parts(&self) -> (String, String) {
        let SettingError { setting, found, expected, .. } = &self.error;
        // Without `expected`, `found` is a whole sentence, of the TOML parser or of a guest.
        let syntax = matches!(self.mark, Mark::At(_));
        let sentence = syntax || setting.is_empty() || expected.is_empty() || found.is_empty();
        let found = if sentence { plain(found) } else { format!("found {}", plain(found)) };
        let parts = [plain(setting), found].into_iter().filter(|part| !part.is_empty());
        let title = parts.collect::<Vec<_>>().join(": ");
        let expected = if expected.is_empty() {
            String::new()
        } else {
            format!("expected {}", plain(expected))
        };
        (title, expected)
    }

    /// The finding as one sentence.
    fn sentence(&self) -> String {
        let (title, expected) = self.parts();
        if expected.is_empty() { title } else { format!("{title}, {expected}") }
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Source({}, {} settings)", self.page.name, self.page.spans.len())
    }
}

fn index(spans: &mut HashMap<String, Span>, path: &str, table: &DeTable<'_>, depth: usize) {
    for (key, value) in table {
        let path = join(path, key.get_ref());
        spans.insert(path.clone(), Span { key: key.span(), value: value.span() });
        index_value(spans, &path, value.get_ref(), depth + 1);
    }
}

fn index_value(spans: &mut HashMap<String, Span>, path: &str, value: &DeValue<'_>, depth: usize) {
    if depth > DEPTH_MAX {
        return;
    }
    match value {
        DeValue::Table(table) => index(spans, path, table, depth),
        DeValue::Array(array) => {
            for (position, element) in array.iter().enumerate() {
                let path = format!("{path}[{position}]");
                spans.insert(path.clone(), Span { key: element.span(), value: element.span() });
                index_value(spans, &path, element.get_ref(), depth + 1);
            }
        }
        _ => {}
    }
}

/// One bounded line, without control characters and URL passwords.
fn plain(text: &str) -> String {
    error_line(&without_user_infos(text), MESSAGE_CHARS_MAX)
}
