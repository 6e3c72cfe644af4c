//! Starts the log, and waits for it.

use crate::config::Config;
use crate::telemetry;

/// Starts the log as `config` says. A program does this once, before anything else.
pub fn start_log(config: &Config) {
    telemetry::start(&config.log);
}

/// Starts a log of warnings and errors alone, on standard error, for a command that prints results.
pub fn start_quiet_log() {
    telemetry::start(&telemetry::Settings {
        level: "warn".into(),
        format: telemetry::Format::Text,
        access: telemetry::Access::Off,
        on_stderr: true,
        ..telemetry::Settings::default()
    });
}

/// Waits until what was logged is written.
pub fn flush_log() {
    telemetry::flush();
}
