//! `script`: the operator's own Lua file.

use std::sync::Arc;

use smallvec::SmallVec;

#[cfg(feature = "host")]
use crate::Content;
use crate::written::Written;
use crate::{
    ARGUMENT_MAX, ARGUMENTS_MAX, Breach, Describe, Moment, NUMBERS_MAX, Program, Setting,
    ShapeExtra,
};

/// The operator's own Lua file.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Script {
    /// The file's name without `.lua`.
    pub name: Arc<str>,
    /// Its numbers: up to [`ARGUMENTS_MAX`], each of an absolute value of at most [`ARGUMENT_MAX`].
    pub arguments: SmallVec<[i64; ARGUMENTS_MAX]>,
}

impl Describe for Script {
    const NAME: &'static str = "script";
    const CODE: &'static str = "script";
    const SETTINGS: &'static [Setting] = &[Setting::Script, Setting::Arguments];
    const NEEDED: &'static [(Setting, &'static str)] =
        &[(Setting::Script, "the name of a script, such as `script = \"mine\"` for `mine.lua`")];

    fn program() -> Option<&'static Program> {
        None
    }

    fn read(written: &Written<'_>) -> Option<Self> {
        let arguments = SmallVec::from_slice(written.arguments.unwrap_or_default());
        Some(Self { name: written.script?.into(), arguments })
    }

    /// Whether the script exists is not known here.
    fn check(&self, breaches: &mut Vec<Breach>) {
        if self.arguments.len() > ARGUMENTS_MAX {
            let found = format!("{} numbers", self.arguments.len());
            let expected = format!("at most {ARGUMENTS_MAX}");
            breaches.push(Breach::new(Setting::Arguments, found, expected));
        }
        if let Some(far) = self.arguments.iter().find(|one| one.unsigned_abs() > ARGUMENT_MAX) {
            let expected = "whole numbers of at most 2^53 either way";
            breaches.push(Breach::new(Setting::Arguments, far, expected));
        }
    }

    fn numbers(&self, _: Moment) -> [i64; NUMBERS_MAX] {
        std::array::from_fn(|index| self.arguments.get(index).copied().unwrap_or(0))
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn amount(&self) -> Option<u64> {
        None
    }

    fn refuses_all(&self) -> bool {
        false
    }

    fn of_shape(&self) -> Self {
        Self { name: Arc::clone(&self.name), arguments: SmallVec::new() }
    }

    fn write_shape(&self, extra: &ShapeExtra) -> String {
        let digest = if let ShapeExtra::Script(digest) = extra { digest.as_str() } else { "" };
        format!("{}-{}-{digest}", Self::CODE, self.name)
    }

    fn read_shape(text: &str) -> Option<(Self, ShapeExtra)> {
        // A script's name may contain a hyphen, its digest can't.
        let (name, digest) = text.strip_prefix(Self::CODE)?.strip_prefix('-')?.rsplit_once('-')?;
        let script = Self { name: name.into(), arguments: SmallVec::new() };
        Some((script, ShapeExtra::Script(digest.to_owned())))
    }

    #[cfg(feature = "host")]
    fn state(&self, _: &ShapeExtra, content: &Content, _: u64, _: bool) -> Option<String> {
        let Content::Numbers(numbers) = content else { return None };
        Some(format!("the numbers {numbers:?}"))
    }
}
