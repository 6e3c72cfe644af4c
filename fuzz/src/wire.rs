//! The part of Weir's `wire` that `http1` needs.

#[path = "../../crates/http/src/wire/body.rs"]
mod body;
#[path = "../../crates/http/src/wire/budget.rs"]
mod budget;
#[path = "../../crates/http/src/wire/buffer.rs"]
mod buffer;
#[path = "../../crates/http/src/wire/content.rs"]
mod content;
#[path = "../../crates/http/src/wire/end.rs"]
mod end;
#[path = "../../crates/http/src/wire/fields.rs"]
mod fields;
#[path = "../../crates/http/src/wire/known.rs"]
mod known;
#[path = "../../crates/http/src/wire/linger.rs"]
mod linger;
#[path = "../../crates/http/src/wire/message.rs"]
mod message;
#[path = "../../crates/http/src/wire/pace.rs"]
mod pace;
#[path = "../../crates/http/src/wire/read_on.rs"]
mod read_on;
#[path = "../../crates/http/src/wire/stream.rs"]
mod stream;
#[path = "../../crates/http/src/wire/timeouts.rs"]
mod timeouts;
#[path = "../../crates/http/src/wire/timer.rs"]
mod timer;
#[path = "../../crates/http/src/wire/trailers.rs"]
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
