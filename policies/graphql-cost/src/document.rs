//! Reads a GraphQL document as far as its cost depends on it: operations, fragments, fields and
//! their arguments (GraphQL specification, September 2025, section 2).
//!
//! Types, directives and the values inside lists are only checked for their syntax. A document is
//! read once, from left to right, into a few flat lists, so that its size bounds time and memory.

use std::ops::Range;

use crate::lexer::{Lexer, Token};
use crate::refusal::{Refusal, shown};

/// Maximum nesting depth of selections, fragments, types and values. Each is a call on the guest's
/// stack. Far above what people write: the usual query for a schema has fewer than 20.
pub(crate) const NESTING_MAX: u32 = 200;

/// How much of a value is kept: all of an argument's own, with the members of an object; of such a
/// member only itself.
const ARGUMENT: u8 = 2;
const NOTHING: u8 = 0;

/// The most that a document may have of each kind.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Tokens of all documents of a request.
    pub(crate) tokens: u64,
    /// Aliases in one document.
    pub(crate) aliases: u64,
    /// Directives in one document.
    pub(crate) directives: u64,
}

/// A document.
#[derive(Debug, Default)]
pub(crate) struct Document<'a> {
    pub(crate) operations: Vec<Operation<'a>>,
    /// Sorted by name.
    pub(crate) fragments: Vec<Fragment<'a>>,
    /// All selections in the order of the text: each is followed by those inside it.
    pub(crate) selections: Vec<Selection<'a>>,
    /// The arguments of all fields.
    pub(crate) arguments: Vec<Argument<'a>>,
    /// The members of all objects that are an argument's value.
    pub(crate) members: Vec<Argument<'a>>,
    /// The default values of all operations' variables.
    pub(crate) defaults: Vec<Argument<'a>>,
    pub(crate) aliases: u64,
    pub(crate) directives: u64,
    /// Whether it asks for the schema anywhere.
    pub(crate) introspects: bool,
}

#[derive(Debug)]
pub(crate) struct Operation<'a> {
    pub(crate) kind: Kind,
    pub(crate) name: Option<&'a str>,
    pub(crate) defaults: Range<usize>,
    pub(crate) selections: Range<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Query,
    Mutation,
    Subscription,
}

#[derive(Debug)]
pub(crate) struct Fragment<'a> {
    pub(crate) name: &'a str,
    pub(crate) selections: Range<usize>,
}

#[derive(Debug)]
pub(crate) struct Selection<'a> {
    pub(crate) what: Selected<'a>,
    /// The index of the first selection that is not inside this one.
    pub(crate) end: usize,
}

#[derive(Debug)]
pub(crate) enum Selected<'a> {
    Field {
        name: &'a str,
        arguments: Range<usize>,
        /// Whether it has selections: then it is an object, or a list of them.
        object: bool,
    },
    /// `... on User { }`
    Inline,
    /// `...Name`
    Spread(&'a str),
}

/// An argument, a member of an input object, or a variable's default.
#[derive(Debug)]
pub(crate) struct Argument<'a> {
    pub(crate) name: &'a str,
    pub(crate) value: Value<'a>,
}

/// A value, as far as it may say how long a list is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value<'a> {
    /// A number of 0 or more, even if it is written as a text.
    Number(u64),
    /// The length of a list.
    List(u64),
    Variable(&'a str),
    /// An index into the document's members.
    Object(Range<usize>),
    Other,
}

impl<'a> Document<'a> {
    /// Reads a document, and returns how many tokens are left for others.
    pub(crate) fn parse(
        source: &'a str,
        left: u64,
        bounds: Bounds,
    ) -> Result<(Self, u64), Refusal> {
        let lexer = Lexer::new(source, left, bounds.tokens);
        let document = Self::default();
        let mut parser =
            Parser { lexer, token: Token::End, start: 0, nesting: 0, bounds, document };
        parser.advance()?;
        parser.definitions()?;
        let (left, mut document) = (parser.lexer.left(), parser.document);
        document.fragments.sort_unstable_by_key(|fragment| fragment.name);
        let mut names: Vec<&str> =
            document.operations.iter().filter_map(|operation| operation.name).collect();
        names.sort_unstable();
        let fragments = document.fragments.iter().map(|fragment| fragment.name);
        match repeated(fragments).or_else(|| repeated(names)) {
            Some(name) => Err(Refusal::Twice(shown(name))),
            None => Ok((document, left)),
        }
    }

    /// The fragment with this name.
    pub(crate) fn fragment(&self, name: &str) -> Option<(usize, &Fragment<'a>)> {
        let index = self.fragments.binary_search_by_key(&name, |fragment| fragment.name).ok()?;
        Some((index, self.fragments.get(index)?))
    }
}

/// A name that occurs twice in a sorted list.
fn repeated<'a>(names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let mut last = None;
    names.into_iter().find(|name| last.replace(*name) == Some(*name))
}

struct Parser<'a> {
    lexer: Lexer<'a>,
    /// The next token, and where it begins.
    token: Token<'a>,
    start: usize,
    /// What is open around it.
    nesting: u32,
    bounds: Bounds,
    document: Document<'a>,
}

impl<'a> Parser<'a> {
    fn definitions(&mut self) -> Result<(), Refusal> {
        loop {
            let described = matches!(self.token, Token::Text(_));
            if described {
                self.advance()?;
            }
            match self.token {
                Token::Punctuator(b'{') if !described => self.operation(Kind::Query, None)?,
                Token::Name("query") => self.named_operation(Kind::Query)?,
                Token::Name("mutation") => self.named_operation(Kind::Mutation)?,
                Token::Name("subscription") => self.named_operation(Kind::Subscription)?,
                Token::Name("fragment") => self.fragment()?,
                _ => return Err(self.unexpected("an operation or a fragment")),
            }
            if self.token == Token::End {
                return Ok(());
            }
        }
    }

    fn named_operation(&mut self, kind: Kind) -> Result<(), Refusal> {
        self.advance()?;
        let name = if matches!(self.token, Token::Name(_)) { Some(self.name()?) } else { None };
        self.operation(kind, name)
    }

    fn operation(&mut self, kind: Kind, name: Option<&'a str>) -> Result<(), Refusal> {
        let defaults = self.document.defaults.len();
        if self.eat(b'(')? {
            self.variable()?;
            while !self.eat(b')')? {
                self.variable()?;
            }
        }
        self.directives()?;
        let defaults = defaults..self.document.defaults.len();
        let selections = self.selections()?;
        self.document.operations.push(Operation { kind, name, defaults, selections });
        Ok(())
    }

    /// `$name: Type = default @directive`
    fn variable(&mut self) -> Result<(), Refusal> {
        if matches!(self.token, Token::Text(_)) {
            self.advance()?;
        }
        self.expect(b'$', "`$` and a variable's name")?;
        let name = self.name()?;
        self.expect(b':', "`:` and a type")?;
        self.type_reference()?;
        if self.eat(b'=')? {
            let value = self.value(ARGUMENT)?;
            self.document.defaults.push(Argument { name, value });
        }
        self.directives()
    }

    fn type_reference(&mut self) -> Result<(), Refusal> {
        if self.eat(b'[')? {
            self.enter()?;
            self.type_reference()?;
            self.expect(b']', "`]`")?;
            self.nesting -= 1;
        } else {
            self.name()?;
        }
        self.eat(b'!').map(|_| ())
    }

    fn fragment(&mut self) -> Result<(), Refusal> {
        self.advance()?;
        if self.token == Token::Name("on") {
            return Err(self.unexpected("a fragment's name"));
        }
        let name = self.name()?;
        if self.token != Token::Name("on") {
            return Err(self.unexpected("`on` and a type"));
        }
        self.advance()?;
        self.name()?;
        self.directives()?;
        let selections = self.selections()?;
        self.document.fragments.push(Fragment { name, selections });
        Ok(())
    }

    /// `{ ... }`: at least one selection.
    fn selections(&mut self) -> Result<Range<usize>, Refusal> {
        let first = self.document.selections.len();
        self.expect(b'{', "`{`")?;
        self.enter()?;
        self.selection()?;
        while !self.eat(b'}')? {
            self.selection()?;
        }
        self.nesting -= 1;
        Ok(first..self.document.selections.len())
    }

    fn selection(&mut self) -> Result<(), Refusal> {
        if self.token != Token::Spread {
            return self.field();
        }
        self.advance()?;
        match self.token {
            Token::Name("on") => {
                self.advance()?;
                self.name()?;
            }
            Token::Name(name) => {
                self.advance()?;
                self.directives()?;
                let index = self.push(Selected::Spread(name));
                self.close(index);
                return Ok(());
            }
            _ => {}
        }
        self.directives()?;
        let index = self.push(Selected::Inline);
        self.selections()?;
        self.close(index);
        Ok(())
    }

    /// `alias: name(arguments) @directives { selections }`
    fn field(&mut self) -> Result<(), Refusal> {
        let Token::Name(mut name) = self.token else {
            return Err(self.unexpected("a field, `...` or `}`"));
        };
        self.advance()?;
        if self.eat(b':')? {
            self.document.aliases += 1;
            if self.document.aliases > self.bounds.aliases {
                return Err(Refusal::Aliases { max: self.bounds.aliases });
            }
            name = self.name()?;
        }
        self.document.introspects |= matches!(name, "__schema" | "__type");
        let first = self.document.arguments.len();
        self.arguments(ARGUMENT)?;
        let arguments = first..self.document.arguments.len();
        self.directives()?;
        let object = self.token == Token::Punctuator(b'{');
        let index = self.push(Selected::Field { name, arguments, object });
        if object {
            self.selections()?;
        }
        self.close(index);
        Ok(())
    }

    fn push(&mut self, what: Selected<'a>) -> usize {
        let index = self.document.selections.len();
        self.document.selections.push(Selection { what, end: index });
        index
    }

    /// Everything since this selection is inside it.
    fn close(&mut self, index: usize) {
        let end = self.document.selections.len();
        if let Some(selection) = self.document.selections.get_mut(index) {
            selection.end = end;
        }
    }

    fn directives(&mut self) -> Result<(), Refusal> {
        while self.eat(b'@')? {
            self.document.directives += 1;
            if self.document.directives > self.bounds.directives {
                return Err(Refusal::Directives { max: self.bounds.directives });
            }
            self.name()?;
            self.arguments(NOTHING)?;
        }
        Ok(())
    }

    /// `(name: value)`, if there is one. They are kept if `levels` is above [`NOTHING`].
    fn arguments(&mut self, levels: u8) -> Result<(), Refusal> {
        if !self.eat(b'(')? {
            return Ok(());
        }
        loop {
            let argument = self.member(levels)?;
            if levels > NOTHING {
                self.document.arguments.push(argument);
            }
            if self.eat(b')')? {
                return Ok(());
            }
        }
    }

    /// `name: value`
    fn member(&mut self, levels: u8) -> Result<Argument<'a>, Refusal> {
        let name = self.name()?;
        self.expect(b':', "`:` and a value")?;
        Ok(Argument { name, value: self.value(levels)? })
    }

    /// A value, of which this many levels are kept.
    fn value(&mut self, levels: u8) -> Result<Value<'a>, Refusal> {
        let value = match self.token {
            Token::Punctuator(b'$') => {
                self.advance()?;
                return Ok(Value::Variable(self.name()?));
            }
            Token::Punctuator(b'[') => return self.list(),
            Token::Punctuator(b'{') => return self.object(levels),
            Token::Int(text) | Token::Text(text) => whole(text),
            Token::Float(text) => text.parse().ok().and_then(rounded),
            Token::Name(_) => None,
            _ => return Err(self.unexpected("a value")),
        };
        self.advance()?;
        Ok(value.map_or(Value::Other, Value::Number))
    }

    fn list(&mut self) -> Result<Value<'a>, Refusal> {
        self.advance()?;
        self.enter()?;
        let mut length = 0;
        while !self.eat(b']')? {
            self.value(NOTHING)?;
            length += 1;
        }
        self.nesting -= 1;
        Ok(Value::List(length))
    }

    fn object(&mut self, levels: u8) -> Result<Value<'a>, Refusal> {
        self.advance()?;
        self.enter()?;
        let first = self.document.members.len();
        while !self.eat(b'}')? {
            let member = self.member(levels.saturating_sub(1))?;
            if levels == ARGUMENT {
                self.document.members.push(member);
            }
        }
        self.nesting -= 1;
        Ok(Value::Object(first..self.document.members.len()))
    }

    fn enter(&mut self) -> Result<(), Refusal> {
        self.nesting += 1;
        if self.nesting > NESTING_MAX {
            return Err(Refusal::Nested { max: NESTING_MAX });
        }
        Ok(())
    }

    fn name(&mut self) -> Result<&'a str, Refusal> {
        let Token::Name(name) = self.token else { return Err(self.unexpected("a name")) };
        self.advance()?;
        Ok(name)
    }

    /// Goes on if the next token is this one.
    fn eat(&mut self, punctuator: u8) -> Result<bool, Refusal> {
        let found = self.token == Token::Punctuator(punctuator);
        if found {
            self.advance()?;
        }
        Ok(found)
    }

    fn expect(&mut self, punctuator: u8, expected: &'static str) -> Result<(), Refusal> {
        if self.eat(punctuator)? { Ok(()) } else { Err(self.unexpected(expected)) }
    }

    fn advance(&mut self) -> Result<(), Refusal> {
        (self.token, self.start) = self.lexer.next()?;
        Ok(())
    }

    fn unexpected(&self, expected: &'static str) -> Refusal {
        self.lexer.unexpected(self.start, expected)
    }
}

/// A number of 0 or more in decimal digits, some of which may be written as escapes: some servers
/// read a text as the number that is in it.
pub(crate) fn whole(text: &str) -> Option<u64> {
    let resolved;
    let text = if text.contains('\\') {
        // `\u0037` is 7.
        resolved = text.replace("\\u003", "");
        &resolved
    } else {
        text
    };
    let digits = !text.is_empty() && text.bytes().all(|next| next.is_ascii_digit());
    digits.then(|| text.parse().unwrap_or(u64::MAX))
}

/// A number of 0 or more, rounded up.
pub(crate) fn rounded(number: f64) -> Option<u64> {
    // The conversion saturates.
    (number >= 0.0).then(|| number.ceil() as u64)
}
