//! A connection's input: bytes that were read but not used yet. Knows nothing about what they mean.
//!
//! An empty buffer holds no memory, so idle connections cost none: its space is taken from the
//! worker when it is needed and returned when the buffer is empty. While a body streams, the space
//! may be much larger, because the size of the pieces decides what large bodies cost.

use std::cell::RefCell;
use std::io;
use std::task::Poll;

use super::budget;

/// The usual size of a buffer's space, and of one read.
pub(crate) const PLAIN_BYTES: usize = 16 << 10;
/// The size of the space while a body streams.
const LARGE_BYTES: usize = 512 << 10;
/// Maximum plain spaces that a worker keeps for reuse, and large spaces that it has in total. The
/// latter bounds what slow readers hold.
const SPARE_PLAIN_MAX: usize = 64;
const LARGE_MAX: usize = 8;

thread_local! {
    static SPACES: RefCell<FreeSpaces> = const { RefCell::new(FreeSpaces { plain: Vec::new(), large: Vec::new(), large_used: 0 }) };
}

struct FreeSpaces {
    plain: Vec<Box<[u8]>>,
    large: Vec<Box<[u8]>>,
    large_used: usize,
}

/// See the module documentation.
#[derive(Debug, Default)]
pub(crate) struct Buffer {
    space: Box<[u8]>,
    start: usize,
    end: usize,
    /// The space is a large one.
    large: bool,
    /// The last read filled the room that it was given.
    filled_up: bool,
}

impl Buffer {
    /// The bytes in the buffer.
    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        self.space.get(self.start..self.end).unwrap_or_default()
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.end - self.start
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Removes the first `bytes`.
    pub(crate) fn consume(&mut self, bytes: usize) {
        self.start = self.start.saturating_add(bytes).min(self.end);
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Calls `read` to append to the buffer, up to `most` bytes in total. Returns how many were
    /// read, 0 at the end of the stream. Pending if the buffer is full. An empty buffer takes no
    /// space until something has arrived: `read` is given the worker's next spare space.
    pub(crate) fn poll_fill(
        &mut self,
        most: usize,
        read: impl FnOnce(&mut [u8]) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if self.space.is_empty() {
            return self.poll_fill_spare(most, read);
        }
        let room = self.room(most);
        if room.is_empty() {
            return Poll::Pending;
        }
        let read = read(room);
        self.filled(&read);
        read
    }

    /// Like [`poll_fill`](Self::poll_fill) while a body streams; see
    /// [`body_room`](Self::body_room).
    pub(crate) fn poll_fill_body(
        &mut self,
        read: impl FnOnce(&mut [u8]) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if self.space.is_empty() && !self.filled_up {
            return self.poll_fill_spare(PLAIN_BYTES, read);
        }
        let read = read(self.body_room());
        self.filled(&read);
        read
    }

    fn poll_fill_spare(
        &mut self,
        most: usize,
        read: impl FnOnce(&mut [u8]) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if most == 0 {
            return Poll::Pending;
        }
        let mut read = Some(read);
        let offer = |spaces: &RefCell<FreeSpaces>| {
            let plain = &mut spaces.try_borrow_mut().ok()?.plain;
            if plain.is_empty() {
                plain.push(new_plain());
            }
            let room = plain.last_mut()?.get_mut(..most.min(PLAIN_BYTES))?;
            let read = read.take()?(room);
            if let Poll::Ready(Ok(1..)) = read {
                self.put(plain.pop()?);
            }
            Some(read)
        };
        let read = match SPACES.try_with(offer).ok().flatten() {
            Some(read) => read,
            // The thread is exiting and its thread-locals are gone, or this read runs inside
            // another.
            None => {
                let Some(read) = read else { return Poll::Pending };
                self.put(new_plain());
                read(self.room(most))
            }
        };
        self.filled(&read);
        read
    }

    /// Returns the space to the worker if the buffer is empty.
    pub(crate) fn release_if_empty(&mut self) {
        if self.is_empty() && !self.space.is_empty() {
            self.release();
            (self.start, self.end) = (0, 0);
        }
    }

    /// Where to put the next bytes, so that the buffer holds at most `most`. Empty if it is full.
    fn room(&mut self, most: usize) -> &mut [u8] {
        if self.space.is_empty() {
            self.put(take_plain());
        }
        if self.start > 0 && self.end == self.space.len() {
            self.space.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        if self.end == self.space.len() && self.end < most {
            self.grow((2 * self.end).min(most.max(PLAIN_BYTES)));
        }
        let end = self.space.len().min(self.start + most.max(self.len()));
        self.space.get_mut(self.end..end).unwrap_or_default()
    }

    /// Like [`room`](Self::room) while a body streams. If the last read filled its room, this takes
    /// a large space, as long as few are in use.
    fn body_room(&mut self) -> &mut [u8] {
        if self.is_empty()
            && self.filled_up
            && !self.large
            && let Some(large) = take_large()
        {
            self.release();
            self.put(large);
            (self.large, self.start, self.end) = (true, 0, 0);
        }
        self.room(PLAIN_BYTES.max(self.space.len()))
    }

    /// Takes account of a read's result.
    fn filled(&mut self, read: &Poll<io::Result<usize>>) {
        match read {
            Poll::Ready(Ok(bytes)) => {
                self.end = (self.end + bytes).min(self.space.len());
                // In a large space, a read of a plain one's size is reason enough to keep it.
                self.filled_up = self.end == self.space.len() || *bytes >= PLAIN_BYTES;
            }
            Poll::Ready(Err(_)) | Poll::Pending => {}
        }
        self.release_if_empty();
    }

    /// Appends `bytes`.
    #[cfg(test)]
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        if self.space.is_empty() {
            self.put(take_plain());
        }
        let needed = self.len() + bytes.len();
        if self.end + bytes.len() > self.space.len() {
            if needed > self.space.len() {
                self.grow(needed.next_power_of_two());
            } else {
                self.space.copy_within(self.start..self.end, 0);
                (self.start, self.end) = (0, self.end - self.start);
            }
        }
        if let Some(room) = self.space.get_mut(self.end..self.end + bytes.len()) {
            room.copy_from_slice(bytes);
            self.end += bytes.len();
        }
    }

    fn grow(&mut self, bytes: usize) {
        let mut space = vec![0; bytes].into_boxed_slice();
        let len = self.len();
        if let (Some(to), Some(from)) = (space.get_mut(..len), self.space.get(self.start..self.end))
        {
            to.copy_from_slice(from);
        }
        self.release();
        self.put(space);
        (self.start, self.end) = (0, len);
    }

    /// Sets the space of a buffer that has none.
    fn put(&mut self, space: Box<[u8]>) {
        budget::hold(space.len());
        self.space = space;
    }

    fn release(&mut self) {
        let space = std::mem::take(&mut self.space);
        budget::release(space.len());
        let large = std::mem::take(&mut self.large);
        // If the thread is exiting, its thread-locals are gone and the space is freed.
        let _ = SPACES.try_with(|spaces| {
            // It is freed too if this buffer is dropped inside a read into the worker's spare
            // space.
            let Ok(mut spaces) = spaces.try_borrow_mut() else { return };
            if large {
                spaces.large_used = spaces.large_used.saturating_sub(1);
                spaces.large.push(space);
            } else if space.len() == PLAIN_BYTES && spaces.plain.len() < SPARE_PLAIN_MAX {
                spaces.plain.push(space);
            }
        });
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if !self.space.is_empty() {
            self.release();
        }
    }
}

fn take_plain() -> Box<[u8]> {
    let spare = SPACES.try_with(|spaces| spaces.try_borrow_mut().ok()?.plain.pop()).ok().flatten();
    spare.unwrap_or_else(new_plain)
}

fn new_plain() -> Box<[u8]> {
    vec![0; PLAIN_BYTES].into()
}

fn take_large() -> Option<Box<[u8]>> {
    let spaces = |spaces: &RefCell<FreeSpaces>| {
        let mut spaces = spaces.try_borrow_mut().ok()?;
        (spaces.large_used < LARGE_MAX).then(|| {
            spaces.large_used += 1;
            spaces.large.pop().unwrap_or_else(|| vec![0; LARGE_BYTES].into())
        })
    };
    SPACES.try_with(spaces).ok().flatten()
}

/// Frees the large spaces that are not in use. Called now and then, so that a burst of large bodies
/// does not keep its memory.
pub(crate) fn trim() {
    let _ = SPACES.try_with(|spaces| spaces.borrow_mut().large.clear());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_out_as_they_went_in_whatever_the_sizes() {
        let mut buffer = Buffer::default();
        let (mut put, mut taken) = (0_u32, 0_u32);
        for round in 1..200_usize {
            let piece: Vec<u8> = (0..round * 37 % 911)
                .map(|_| {
                    put += 1;
                    (put % 251) as u8
                })
                .collect();
            if round % 2 == 0 {
                buffer.push(&piece);
            } else {
                let mut rest = piece.as_slice();
                while !rest.is_empty() {
                    let put = buffer.poll_fill(1 << 20, |room| {
                        let now = room.len().min(rest.len());
                        assert!(now > 0);
                        room[..now].copy_from_slice(&rest[..now]);
                        Poll::Ready(Ok(now))
                    });
                    let Poll::Ready(Ok(now)) = put else { panic!("{put:?}") };
                    rest = &rest[now..];
                }
            }
            let now = (round * 53 % 700).min(buffer.len());
            for byte in &buffer.bytes()[..now] {
                taken += 1;
                assert_eq!(*byte, (taken % 251) as u8);
            }
            buffer.consume(now);
        }
        assert_eq!(put - taken, buffer.len() as u32);
    }

    #[test]
    fn it_takes_no_more_than_it_may() {
        let mut buffer = Buffer::default();
        buffer.push(&[1; 100]);
        assert_eq!(buffer.room(120).len(), 20);
        assert_eq!(buffer.room(100).len(), 0);
        assert_eq!(buffer.room(50).len(), 0);
        let most = PLAIN_BYTES * 3;
        while buffer.poll_fill(most, |room| Poll::Ready(Ok(room.len()))).is_ready() {}
        assert_eq!(buffer.len(), most);
    }

    #[test]
    fn an_empty_one_holds_nothing_and_large_spaces_are_few() {
        let mut buffer = Buffer::default();
        buffer.push(b"x");
        buffer.consume(1);
        buffer.release_if_empty();
        assert!(buffer.space.is_empty());
        assert!(buffer.poll_fill(9, |_| Poll::Pending).is_pending() && buffer.space.is_empty());
        assert!(buffer.poll_fill_body(|_| Poll::Pending).is_pending() && buffer.space.is_empty());
        assert!(
            matches!(buffer.poll_fill(9, |_| Poll::Ready(Ok(0))), Poll::Ready(Ok(0)))
                && buffer.space.is_empty()
        );
        let inside = buffer.poll_fill(9, |room| {
            let mut other = Buffer::default();
            other.push(b"y");
            room[0] = other.bytes()[0];
            Poll::Ready(Ok(1))
        });
        assert!(
            matches!(inside, Poll::Ready(Ok(1))) && buffer.bytes() == b"y",
            "a read inside a read"
        );
        let mut many: Vec<Buffer> = (0..LARGE_MAX + 2).map(|_| Buffer::default()).collect();
        let fill = |buffer: &mut Buffer| {
            let Poll::Ready(Ok(room)) = buffer.poll_fill_body(|room| Poll::Ready(Ok(room.len())))
            else {
                return 0;
            };
            buffer.consume(room);
            room
        };
        assert!(
            many.iter_mut().all(|buffer| fill(buffer) == PLAIN_BYTES),
            "no read has filled its room yet"
        );
        let large = many
            .iter_mut()
            .filter_map(|buffer| (fill(buffer) == LARGE_BYTES).then_some(()))
            .count();
        assert_eq!(large, LARGE_MAX);
        assert!(many.iter_mut().all(|buffer| !buffer.body_room().is_empty()));
        many.clear();
        assert_eq!(
            SPACES.with_borrow(|spaces| (spaces.large_used, spaces.large.len())),
            (0, LARGE_MAX)
        );
        trim();
        assert_eq!(SPACES.with_borrow(|spaces| spaces.large.len()), 0);
    }
}
