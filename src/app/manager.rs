//! Tells systemd what this process does, where it runs under it (`Type=notify-reload`). Does
//! nothing elsewhere.

use sd_notify::NotifyState;

/// Says that it serves, with its id, as it may have taken over from the process that systemd
/// started.
pub(super) fn started() {
    send(&[NotifyState::Ready, NotifyState::MainPid(std::process::id())]);
}

/// Says that it reads its configuration again; [`reloaded`] follows.
pub(super) fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => send(&[NotifyState::Reloading, now]),
        Err(error) => tracing::debug!(%error, "systemd could not be notified of this reload"),
    }
}

/// Says that it serves, by the new configuration or still by the old one.
pub(super) fn reloaded() {
    send(&[NotifyState::Ready]);
}

/// Says that it ends.
pub(super) fn stopping() {
    send(&[NotifyState::Stopping]);
}

fn send(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!(%error, "systemd could not be notified of the state");
    }
}
