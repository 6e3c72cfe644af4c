//! nginx's syntax: words, strings, `;` and blocks in braces. Knows no directive but `include`.

use std::io::Read as _;
use std::iter::Peekable;
use std::path::{Path, PathBuf};
use std::str::Chars;

/// Maximum depth of blocks and of included files.
const DEPTH_MAX: usize = 32;
/// Maximum number of directives of all files.
const DIRECTIVES_MAX: usize = 100_000;
/// Maximum size of all files, in bytes.
const BYTES_MAX: usize = 16 << 20;

/// A directive with its words, and what is in its block.
#[derive(Debug)]
pub(super) struct Directive {
    /// `FILE:LINE`.
    pub(super) place: String,
    pub(super) name: String,
    pub(super) words: Vec<String>,
    pub(super) block: Option<Vec<Directive>>,
}

impl Directive {
    pub(super) fn word(&self, index: usize) -> &str {
        self.words.get(index).map_or("", String::as_str)
    }

    /// The value of a word `key=value`.
    pub(super) fn value(&self, key: &str) -> Option<&str> {
        self.words.iter().find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
    }

    pub(super) fn has(&self, word: &str) -> bool {
        self.words.iter().any(|one| one == word)
    }

    pub(super) fn block(&self) -> &[Directive] {
        self.block.as_deref().unwrap_or_default()
    }

    /// As it was written, on one line.
    pub(super) fn text(&self) -> String {
        let end = if self.block.is_some() { " { ... }" } else { "" };
        let words: String = self.words.iter().map(|word| format!(" {word}")).collect();
        format!("{}{words}{end}", self.name)
    }
}

/// Reads a file, and what it includes.
///
/// # Errors
/// A file that can't be read or is no configuration: where, and why.
pub(super) fn read(path: &Path) -> Result<Vec<Directive>, String> {
    let folder = path.parent().unwrap_or(Path::new(""));
    let mut reader = Reader { folder, directives: 0, bytes: 0 };
    reader.file(path, 0)
}

struct Reader<'a> {
    /// The folder of the first file: names in `include` are relative to it, whatever file they are
    /// in.
    folder: &'a Path,
    directives: usize,
    bytes: usize,
}

impl Reader<'_> {
    fn file(&mut self, path: &Path, depth: usize) -> Result<Vec<Directive>, String> {
        let name = path.display().to_string();
        if depth > DEPTH_MAX {
            return Err(format!("{name}: more than {DEPTH_MAX} files include one another"));
        }
        let failed = |error: std::io::Error| format!("{name}: {error}");
        let file = std::fs::File::open(path).map_err(failed)?;
        if !file.metadata().map_err(failed)?.is_file() {
            return Err(format!("{name}: expected a file"));
        }
        let mut text = String::new();
        let left = (BYTES_MAX - self.bytes) as u64;
        self.bytes += file.take(left + 1).read_to_string(&mut text).map_err(failed)?;
        if self.bytes > BYTES_MAX {
            return Err(format!("{name}: the files have more than {BYTES_MAX} bytes"));
        }
        let tokens = tokens(&text).map_err(|(line, why)| format!("{name}:{line}: {why}"))?;
        let mut tokens = tokens.into_iter();
        let all = self.block(&name, &mut tokens, depth, 0)?;
        match tokens.next() {
            Some((line, _)) => Err(format!("{name}:{line}: found `}}` without a block")),
            None => Ok(all),
        }
    }

    /// Directives up to the end of their block, or of the file.
    fn block(
        &mut self,
        name: &str,
        tokens: &mut impl Iterator<Item = (usize, Token)>,
        depth: usize,
        nested: usize,
    ) -> Result<Vec<Directive>, String> {
        if nested > DEPTH_MAX {
            return Err(format!("{name}: blocks are nested deeper than {DEPTH_MAX}"));
        }
        let mut all = Vec::new();
        let mut words: Vec<String> = Vec::new();
        let mut first = 0;
        while let Some((line, token)) = tokens.next() {
            let place = format!("{name}:{}", if words.is_empty() { line } else { first });
            let block = match token {
                Token::Word(word) => {
                    if words.is_empty() {
                        first = line;
                    }
                    words.push(word);
                    continue;
                }
                Token::End if words.is_empty() => continue,
                Token::Close if words.is_empty() && nested > 0 => return Ok(all),
                Token::Close => return Err(format!("{name}:{line}: found `}}`, expected `;`")),
                Token::Open if words.is_empty() => {
                    return Err(format!("{name}:{line}: found `{{`, expected a directive"));
                }
                Token::End => None,
                Token::Open => Some(self.block(name, tokens, depth, nested + 1)?),
            };
            self.directives += 1;
            if self.directives > DIRECTIVES_MAX {
                return Err(format!("{place}: there are more than {DIRECTIVES_MAX} directives"));
            }
            let directive = words.remove(0);
            let words = std::mem::take(&mut words);
            if directive == "include" && block.is_none() {
                let pattern = words.first().map_or("", String::as_str);
                let files = self.included(pattern).map_err(|why| format!("{place}: {why}"))?;
                if files.is_empty() {
                    // Kept, so that it is noted.
                    let words = vec![format!("{pattern} (no file)")];
                    all.push(Directive { place: place.clone(), name: directive, words, block });
                }
                for path in files {
                    all.extend(
                        self.file(&path, depth + 1).map_err(|why| format!("{place}: {why}"))?,
                    );
                }
            } else {
                all.push(Directive { place, name: directive, words, block });
            }
        }
        if let Some(word) = words.first() {
            return Err(format!("{name}:{first}: found {word:?} at the end, expected `;`"));
        }
        if nested > 0 {
            return Err(format!("{name}: a block is not closed: expected `}}`"));
        }
        Ok(all)
    }

    /// The files that are meant: in each part of a path, a star stands for any text and a question
    /// mark for any letter. None, where such a pattern matches none.
    fn included(&self, pattern: &str) -> Result<Vec<PathBuf>, String> {
        let path = self.folder.join(pattern);
        let mut found = vec![PathBuf::new()];
        for part in path.components() {
            let part = part.as_os_str();
            let name = part.to_string_lossy();
            if name.contains('[') {
                return Err(format!("include {pattern}: sets of letters are not understood"));
            }
            if !name.contains(['*', '?']) {
                found.iter_mut().for_each(|path| path.push(part));
                continue;
            }
            let mut next = Vec::new();
            for folder in found {
                let here = if folder.as_os_str().is_empty() { Path::new(".") } else { &folder };
                let entries = match std::fs::read_dir(here) {
                    Ok(entries) => entries,
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                    Err(error) => return Err(format!("{}: {error}", here.display())),
                };
                let names = entries.filter_map(Result::ok).map(|entry| entry.file_name());
                let fits = names.filter(|entry| {
                    let entry = entry.to_string_lossy();
                    !entry.starts_with('.') && matches(name.as_bytes(), entry.as_bytes())
                });
                next.extend(fits.map(|entry| folder.join(entry)));
                if next.len() > DIRECTIVES_MAX {
                    return Err(format!("include {pattern}: too many files"));
                }
            }
            next.sort();
            found = next;
        }
        if pattern.contains(['*', '?']) {
            found.retain(|path| path.exists());
        }
        Ok(found)
    }
}

/// Whether a name fits a pattern with `*` and `?`.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut at, mut from) = (0, 0);
    let mut star = None;
    while let Some(letter) = name.get(from) {
        match pattern.get(at) {
            Some(b'*') => {
                star = Some((at, from));
                at += 1;
            }
            Some(wanted) if wanted == letter || *wanted == b'?' => {
                at += 1;
                from += 1;
            }
            _ => match &mut star {
                // The star takes one letter more.
                Some((place, taken)) => {
                    *taken += 1;
                    (at, from) = (*place + 1, *taken);
                }
                None => return false,
            },
        }
    }
    pattern.get(at..).is_some_and(|rest| rest.iter().all(|letter| *letter == b'*'))
}

#[derive(Debug, PartialEq, Eq)]
enum Token {
    Word(String),
    End,
    Open,
    Close,
}

/// What follows a backslash: quotes and the usual letters stand for something else, everything else
/// keeps its backslash, as expressions need it.
fn escaped(letters: &mut impl Iterator<Item = char>, line: &mut usize, word: &mut String) {
    match letters.next() {
        Some(letter @ ('"' | '\'' | '\\')) => word.push(letter),
        Some('n') => word.push('\n'),
        Some('r') => word.push('\r'),
        Some('t') => word.push('\t'),
        Some(other) => {
            *line += usize::from(other == '\n');
            word.extend(['\\', other]);
        }
        None => word.push('\\'),
    }
}

/// The end of the names of directives with a program in Lua in their braces.
const LUA: &str = "_by_lua_block";

/// Skips a comment of Lua after its two hyphens: to the end of the line, or a long one.
fn skip_comment(letters: &mut Peekable<Chars<'_>>, line: &mut usize) {
    if !(letters.next_if_eq(&'[').is_some() && skip_long(letters, line)) {
        while letters.next_if(|next| *next != '\n').is_some() {}
    }
}

/// Skips a program in Lua up to the brace that closes its block, and counts its lines. False if
/// there is none.
fn skip_lua(letters: &mut Peekable<Chars<'_>>, line: &mut usize) -> bool {
    let mut depth = 1_usize;
    while let Some(letter) = letters.next() {
        *line += usize::from(letter == '\n');
        match letter {
            '{' => depth += 1,
            '}' => depth -= 1,
            '-' if letters.next_if_eq(&'-').is_some() => skip_comment(letters, line),
            '[' => {
                skip_long(letters, line);
            }
            quote @ ('"' | '\'') => {
                // A string of Lua ends on its line.
                while let Some(next) = letters.next_if(|next| *next != '\n') {
                    if next == quote {
                        break;
                    }
                    if next == '\\' && letters.next() == Some('\n') {
                        *line += 1;
                    }
                }
            }
            _ => {}
        }
        if depth == 0 {
            return true;
        }
    }
    false
}

/// Skips the rest of `[[text]]` or `[==[text]==]`, of which one bracket was read. False if it is
/// another bracket.
fn skip_long(letters: &mut Peekable<Chars<'_>>, line: &mut usize) -> bool {
    let mut ahead = letters.clone();
    let mut level = 0;
    while ahead.next_if_eq(&'=').is_some() {
        level += 1;
    }
    if ahead.next() != Some('[') {
        return false;
    }
    let end = format!("]{}]", "=".repeat(level));
    let rest: String = ahead.clone().collect();
    let length = rest.find(&end).map_or(rest.len(), |at| at + end.len());
    let skipped = rest.get(..length).unwrap_or(&rest);
    *line += skipped.matches('\n').count();
    *letters = ahead;
    letters.by_ref().take(skipped.chars().count()).for_each(drop);
    true
}

/// Whether the brace behind these tokens begins a program in Lua.
fn is_lua(tokens: &[(usize, Token)]) -> bool {
    let is_word = |token: &&(usize, Token)| matches!(token.1, Token::Word(_));
    let name = tokens.iter().rev().take_while(is_word).last();
    name.is_some_and(|(_, token)| matches!(token, Token::Word(name) if name.ends_with(LUA)))
}

/// Splits a text, with the line of each token.
fn tokens(text: &str) -> Result<Vec<(usize, Token)>, (usize, String)> {
    let mut all = Vec::new();
    let mut line = 1;
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '\n' => line += 1,
            letter if letter.is_whitespace() => {}
            '#' => while letters.next_if(|next| *next != '\n').is_some() {},
            ';' => all.push((line, Token::End)),
            '{' => {
                let has_lua = is_lua(&all);
                all.push((line, Token::Open));
                if has_lua {
                    let start = line;
                    if !skip_lua(&mut letters, &mut line) {
                        return Err((start, "the block of Lua is not closed".to_owned()));
                    }
                    all.push((line, Token::Close));
                }
            }
            '}' => all.push((line, Token::Close)),
            quote @ ('"' | '\'') => {
                let start = line;
                let mut word = String::new();
                loop {
                    match letters.next() {
                        None => return Err((start, format!("the {quote} is not closed"))),
                        Some(next) if next == quote => break,
                        Some('\\') => escaped(&mut letters, &mut line, &mut word),
                        Some(next) => {
                            line += usize::from(next == '\n');
                            word.push(next);
                        }
                    }
                }
                all.push((start, Token::Word(word)));
            }
            first => {
                let mut word = String::new();
                match first {
                    '\\' => escaped(&mut letters, &mut line, &mut word),
                    first => word.push(first),
                }
                // `${name}` is a variable and not a block.
                while let Some(next) = letters.peek().copied() {
                    let is_variable = next == '{' && word.ends_with('$')
                        || next == '}'
                            && word.rfind("${").is_some_and(|at| {
                                word.get(at..).is_some_and(|rest| !rest.contains('}'))
                            });
                    let ends = next.is_whitespace() || matches!(next, ';' | '{' | '}');
                    if ends && !is_variable {
                        break;
                    }
                    letters.next();
                    match next {
                        '\\' => escaped(&mut letters, &mut line, &mut word),
                        next => word.push(next),
                    }
                }
                all.push((line, Token::Word(word)));
            }
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(directives: &[Directive]) -> String {
        let one = |directive: &Directive| {
            let words: String = directive.words.iter().map(|word| format!(" <{word}>")).collect();
            match &directive.block {
                Some(block) => format!("{}{words} {{{}}}", directive.name, written(block)),
                None => format!("{}{words};", directive.name),
            }
        };
        directives.iter().map(one).collect()
    }

    #[test]
    fn words_strings_comments_and_blocks_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("nginx.conf");
        std::fs::create_dir(folder.path().join("conf.d")).unwrap();
        std::fs::write(folder.path().join("conf.d/b.conf"), "b 2;").unwrap();
        std::fs::write(folder.path().join("conf.d/a.conf"), "a \"x;y\" 'it\\'s';").unwrap();
        std::fs::write(folder.path().join("conf.d/.c.conf"), "c;").unwrap();
        let text = "# first\nhttp { # more {\n  key ${a}b$c;\n include conf.d/*.conf;\n}\nlast;";
        std::fs::write(&path, text).unwrap();
        let all = read(&path).unwrap();
        assert_eq!(written(&all), "http {key <${a}b$c>;a <x;y> <it's>;b <2>;}last;");
        assert_eq!(all[0].block()[0].place, format!("{}:3", path.display()));
    }

    #[test]
    fn a_program_in_lua_is_no_configuration() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("nginx.conf");
        let text = "access_by_lua_block {
            -- don't } [[
            --[==[ ' } ]] ]==] local a = { [1] = \"}\\\"'\", b = '\\'}' }
            local text = [[ } \" ]] if a[b[1]] then ngx.exit(403) end
        }
        set_by_lua_block $x { return 1 }
        after 1;";
        std::fs::write(&path, text).unwrap();
        let all = read(&path).unwrap();
        assert_eq!(written(&all), "access_by_lua_block {}set_by_lua_block <$x> {}after <1>;");
        assert_eq!(all[2].place, format!("{}:7", path.display()));
        std::fs::write(&path, "a_by_lua_block { x = '}'").unwrap();
        assert!(read(&path).err().unwrap().contains(":1: the block of Lua is not closed"));
    }

    #[test]
    fn what_is_no_configuration_is_refused_with_its_place() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("nginx.conf");
        for (text, expected) in [
            ("a b", ":1: found \"a\" at the end, expected `;`"),
            ("a {\n", ": a block is not closed"),
            ("a;\n}", ":2: found `}`"),
            ("\n{", ":2: found `{`, expected a directive"),
            ("a \"b;", ":1: the \" is not closed"),
            ("include nginx.conf;", "more than 32 files"),
            ("include absent.conf;", ":1: "),
        ] {
            std::fs::write(&path, text).unwrap();
            let error = read(&path).err().unwrap();
            assert!(error.contains(expected), "{text}: {error}");
        }
        std::fs::write(&path, "a {".repeat(40)).unwrap();
        assert!(read(&path).err().unwrap().contains("nested deeper"));
    }
}
