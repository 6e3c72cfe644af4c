//! How a policy that keeps failing is tried, stopped and resumed: see `breaker` for when.

use super::breaker::{Suspicion, Trial, TrialChange, Turn};
use super::error::{Cause, Failure, PolicyError};
use super::instance::StartError;
use super::{Policy, PolicyStats, abi, answer};
use crate::telemetry::Label as _;

/// Whether a policy is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyState {
    /// It is called for each request that no decision is remembered for.
    Running,
    /// It kept failing: its requests follow `on_policy_error` at once, but for a probe now and
    /// then.
    Stopped,
}

impl Policy {
    /// Whether the policy is called.
    #[must_use]
    pub fn state(&self) -> PolicyState {
        if self.breaker.is_stopped() { PolicyState::Stopped } else { PolicyState::Running }
    }

    /// What is known about the policy, for the operator.
    #[must_use]
    pub fn stats(&self) -> PolicyStats {
        self.health.stats(self.breaker.is_stopped())
    }

    /// Tells the breaker about a failed decision, and tries the policy if that makes it suspect.
    #[cold]
    pub(super) fn suspect(&self, turn: Turn, error: &PolicyError) {
        let suspicion = self.breaker.failed(turn, error.cause, || self.health.decisions());
        let Suspicion::Try(trial) = suspicion else { return };
        let policy = &*self.bounds().policy;
        match self.breaker.tried(turn, self.works(&trial)) {
            TrialChange::Nothing | TrialChange::StillStopped => {}
            TrialChange::Resumed => self.resumed(),
            TrialChange::Stopped(pause) => {
                self.health.stops.inc();
                tracing::error!(
                    policy,
                    cause = error.cause.label(),
                    error = error.message,
                    "the policy kept failing, even with facts that it had answered before: it is stopped, and tried again after {}",
                    humantime::format_duration(pause)
                );
            }
        }
    }

    #[cold]
    pub(super) fn resumed(&self) {
        tracing::info!(policy = &*self.bounds().policy, "the policy works again and is called");
    }

    /// Whether a fresh instance answers any of these facts as it did before. If there are none yet,
    /// whether it survives a call without facts.
    fn works(&self, trial: &Trial) -> bool {
        if trial.samples.is_empty() {
            return match self.tried_with(&[]) {
                Ok(()) => true,
                Err(failure) => matches!(failure.cause, Cause::Guest | Cause::Overload),
            };
        }
        trial.samples.iter().any(|sample| {
            let facts: Vec<(&str, &str)> =
                sample.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
            match self.tried_with(&facts) {
                Ok(()) => true,
                // That says nothing about the policy.
                Err(failure) => failure.cause == Cause::Overload,
            }
        })
    }

    fn tried_with(&self, facts: &[(&str, &str)]) -> Result<(), Failure> {
        let mut instance = self.starter.start().map_err(|unready| match unready {
            StartError::Failed(failure) => failure,
            StartError::Refused(_) => Failure::new(Cause::Trap, "it refused its configuration"),
        })?;
        let decided: abi::types::Decision = instance.decide(facts, None)?;
        answer::decision(decided, &self.scripts)
            .map(drop)
            .map_err(|message| Failure::new(Cause::Answer, &message))
    }
}
