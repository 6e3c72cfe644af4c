//! The part of Weir's `wire` that `http1` needs.

#[path = "../../src/wire/alarm.rs"]
mod alarm;
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
#[path = "../../src/wire/wait.rs"]
mod wait;

pub(crate) use alarm::Alarm;
pub use body::{Body, BodyError, Source};
pub(crate) use budget::{Charge, counted};
pub(crate) use buffer::{Buffer, PLAIN_BYTES};
pub use end::{End, Ending, Failure, OnEnd};
pub use fields::Fields;
pub(crate) use fields::Span;
pub use known::{Known, KnownSet, Name};
pub use message::{Interim, Request, Response, Stream, Upgrade};
pub(crate) use pace::Pace;
pub use pace::Rate;
