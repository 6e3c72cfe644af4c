//! Recognises errors caused by a lack of file descriptors. Knows nothing about what the descriptor
//! was for.

use std::io;

use rustix::io::Errno;

/// Whether this process (`EMFILE`) or the whole system (`ENFILE`) has too many open files. The
/// fault is ours, and not the peer's.
#[must_use]
pub fn is_out_of_descriptors(error: &io::Error) -> bool {
    let ours = [Errno::MFILE, Errno::NFILE].map(Errno::raw_os_error);
    error.raw_os_error().is_some_and(|found| ours.contains(&found))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_lack_of_descriptors_is_one() {
        for (errno, is) in [
            (Errno::MFILE, true),
            (Errno::NFILE, true),
            (Errno::CONNREFUSED, false),
            (Errno::NOMEM, false),
        ] {
            assert_eq!(is_out_of_descriptors(&errno.into()), is, "{errno}");
        }
        assert!(!is_out_of_descriptors(&io::ErrorKind::TimedOut.into()));
    }
}
