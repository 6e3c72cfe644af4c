//! The part of Weir's `wire` that `http1` needs.

#[path = "../../src/wire/body.rs"]
mod body;
#[path = "../../src/wire/budget.rs"]
mod budget;
#[path = "../../src/wire/buffer.rs"]
mod buffer;
#[path = "../../src/wire/content.rs"]
mod content;
#[path = "../../src/wire/end.rs"]
mod end;
#[path = "../../src/wire/fields.rs"]
mod fields;
#[path = "../../src/wire/known.rs"]
mod known;
#[path = "../../src/wire/linger.rs"]
mod linger;
#[path = "../../src/wire/message.rs"]
mod message;
#[path = "../../src/wire/pace.rs"]
mod pace;
#[path = "../../src/wire/read_on.rs"]
mod read_on;
#[path = "../../src/wire/timeouts.rs"]
mod timeouts;
#[path = "../../src/wire/timer.rs"]
mod timer;
#[path = "../../src/wire/trailers.rs"]
mod trailers;

pub use body::{Body, BodyError, Source};
pub(crate) use budget::{Charge, counted};
pub(crate) use buffer::{Buffer, PLAIN_BYTES};
pub use end::{BodyEnd, BodyFailure, BodyOutcome, OnEnd};
pub(crate) use fields::Span;
pub use fields::{Fields, is_padded};
pub use known::{Known, KnownSet, Name};
pub use message::{InterimFilter, InterimSender, Request, Response, Stream, Upgrade};
pub(crate) use pace::Pace;
pub use pace::Rate;
pub(crate) use timer::Timer;
pub use trailers::TrailerFilter;
