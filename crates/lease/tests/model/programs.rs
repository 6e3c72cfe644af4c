//! The programs in `lua/`, run by LuaJIT as the embedded engine does, with their answers
//! remembered: a program is pure, and a search asks the same thing many times.

use std::cell::RefCell;
use std::collections::HashMap;

use mlua::{Function, Lua, Table, Variadic};

/// The most numbers that a program reads.
pub const NUMBERS_MAX: usize = 7;

/// The most values that a program returns.
const ANSWER_MAX: usize = 8;

/// A program that keeps whole numbers, or decides from what the store counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Program {
    pub name: &'static str,
    text: &'static str,
}

macro_rules! programs {
    ($($constant:ident: $name:literal),+ $(,)?) => {
        $(pub const $constant: Program = Program {
            name: $name,
            text: include_str!(concat!("../../../../lua/", $name, ".lua")),
        };)+
    };
}

programs! {
    GCRA: "gcra",
    TOKEN_BUCKET: "token_bucket",
    FIXED_WINDOW: "fixed_window",
    QUOTA: "quota",
    SLIDING_WINDOW_COUNTER: "sliding_window_counter",
    SLIDING_WINDOW_LOG: "sliding_window_log",
    SLIDING_WINDOW_BUCKETS: "sliding_window_buckets",
    CONCURRENCY: "concurrency",
}

/// The answer of `take`.
#[derive(Clone, Copy, Debug)]
pub struct Taken {
    pub fits: bool,
    pub state: [i64; 3],
    /// Time units until all is back: in a fixed window, until it ends.
    pub reset: i64,
}

#[derive(PartialEq, Eq, Hash)]
struct Question {
    program: &'static str,
    gives_back: bool,
    arguments: [i64; 6 + NUMBERS_MAX],
}

struct Vm {
    lua: Lua,
    loaded: HashMap<&'static str, (Function, Function)>,
    answers: HashMap<Question, [i64; ANSWER_MAX]>,
}

thread_local! {
    static VM: RefCell<Vm> = RefCell::new(Vm {
        lua: Lua::new(),
        loaded: HashMap::new(),
        answers: HashMap::new(),
    });
}

impl Program {
    /// Whether all instants are alike to it: it counts in no windows of the clock.
    pub fn is_even(self) -> bool {
        [GCRA, TOKEN_BUCKET, SLIDING_WINDOW_LOG, CONCURRENCY].contains(&self)
    }

    pub fn take(self, state: [i64; 3], now: i64, cost: i64, numbers: &[i64]) -> Taken {
        let answer = self.ask(false, &[&state[..], &[now, cost], numbers].concat());
        Taken { fits: answer[0] == 1, state: [answer[1], answer[2], answer[3]], reset: answer[6] }
    }

    /// The state after a give-back.
    pub fn give_back(
        self,
        state: [i64; 3],
        now: i64,
        units: i64,
        taken_at: i64,
        numbers: &[i64],
    ) -> [i64; 3] {
        let answer = self.ask(true, &[&state[..], &[now, units, taken_at], numbers].concat());
        [answer[0], answer[1], answer[2]]
    }

    fn ask(self, gives_back: bool, arguments: &[i64]) -> [i64; ANSWER_MAX] {
        let mut padded = [0; 6 + NUMBERS_MAX];
        padded[..arguments.len()].copy_from_slice(arguments);
        let question = Question { program: self.name, gives_back, arguments: padded };
        VM.with_borrow_mut(|vm| {
            if let Some(answer) = vm.answers.get(&question) {
                return *answer;
            }
            let answer = vm.call(self, gives_back, arguments);
            vm.answers.insert(question, answer);
            answer
        })
    }
}

impl Vm {
    fn call(&mut self, program: Program, gives_back: bool, arguments: &[i64]) -> [i64; ANSWER_MAX] {
        let (take, give_back) = self.loaded.entry(program.name).or_insert_with(|| {
            let table: Table = self.lua.load(program.text).eval().expect(program.name);
            (table.get("take").expect("take"), table.get("give_back").expect("give_back"))
        });
        let function = if gives_back { give_back } else { take };
        let arguments: Variadic<f64> = arguments.iter().map(|number| *number as f64).collect();
        let answer: Variadic<f64> = function.call(arguments).expect(program.name);
        let mut padded = [0; ANSWER_MAX];
        for (place, number) in padded.iter_mut().zip(answer.iter()) {
            *place = *number as i64;
        }
        padded
    }
}
