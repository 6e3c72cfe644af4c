//! Tells systemd what this process does, where it runs under it (`Type=notify-reload`). Does
//! nothing elsewhere.

use sd_notify::NotifyState;

/// It serves. It says its id, too, as it may have taken over from the process that systemd started.
pub(super) fn ready() {
    send(&[NotifyState::Ready, NotifyState::MainPid(std::process::id())]);
}

/// It reads its configuration again; [`ready`] follows.
pub(super) fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => send(&[NotifyState::Reloading, now]),
        Err(error) => tracing::debug!(%error, "systemd is not told of this reload"),
    }
}

/// It ends.
pub(super) fn stopping() {
    send(&[NotifyState::Stopping]);
}

fn send(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!(%error, "systemd can't be told the state");
    }
}
