//! What a policy is: the one trait that its author writes.

use serde::de::DeserializeOwned;

use crate::{Adjustment, Decision, Facts, Manifest, Mistakes, ResponseView};

/// A policy: made once from its configuration, then asked about each request.
///
/// The proxy keeps several instances, and may throw one away at any time: what a policy remembers
/// between calls is a cache at best.
pub trait Policy: Sized + 'static {
    /// `[policies.NAME.config]`. Write `#[serde(deny_unknown_fields)]` on it, so that a misspelt
    /// key is a mistake and not a silence.
    type Config: DeserializeOwned;

    /// Whether [`Policy::settle`] is written. Where it is not, a limit with `refund = "by_settle"`
    /// is a mistake in the configuration: its units would never be given back.
    const SETTLES: bool = false;

    /// Makes the policy, and says what a type alone can't check.
    ///
    /// # Errors
    /// All mistakes found, each with the setting's path (`bypass[1]`). What doesn't fit `Config` is
    /// reported by the caller.
    fn new(config: Self::Config) -> Result<Self, Mistakes>;

    /// The facts that [`Policy::decide`] reads. Nothing else is shown; a name that the proxy
    /// doesn't know refuses the configuration.
    fn manifest(&self) -> Manifest;

    /// Answers for one request.
    ///
    /// # Errors
    /// A sentence for the proxy's log. The request is then handled as its route's `on_policy_error`
    /// says.
    fn decide(&self, facts: &Facts) -> Result<Decision, String>;

    /// Called at the end of the response, where the decision said [`Decision::settle_with`];
    /// perhaps in another instance. A policy that writes it sets [`Policy::SETTLES`].
    ///
    /// # Errors
    /// A sentence for the proxy's log; what was taken then stands.
    fn settle(&self, memo: &str, response: &ResponseView) -> Result<Vec<Adjustment>, String> {
        let _ = (memo, response);
        Ok(Vec::new())
    }
}

/// Exports a [`Policy`] from the module: once, in its `lib.rs`, with `crate-type = ["cdylib"]`. On
/// the host it does nothing.
#[macro_export]
macro_rules! export {
    ($policy:ty) => {
        #[cfg(target_arch = "wasm32")]
        const _: () = {
            use $crate::bindings::exports::weir::policy::handler;

            struct Guest;

            ::std::thread_local! {
                static POLICY: $crate::guest::Slot<$policy> = const { $crate::guest::Slot::new() };
            }

            impl handler::Guest for Guest {
                fn configure(
                    config: ::std::string::String,
                ) -> ::core::result::Result<handler::Manifest, ::std::vec::Vec<handler::Mistake>>
                {
                    POLICY.with(|slot| slot.configure(&config))
                }

                fn decide(
                    facts: ::std::vec::Vec<handler::Fact>,
                ) -> ::core::result::Result<handler::Decision, ::std::string::String> {
                    POLICY.with(|slot| slot.decide(&facts))
                }

                fn settle(
                    memo: ::std::string::String,
                    response: handler::ResponseView,
                ) -> ::core::result::Result<
                    ::std::vec::Vec<handler::Adjustment>,
                    ::std::string::String,
                > {
                    POLICY.with(|slot| slot.settle(&memo, &response))
                }
            }

    $crate::bindings::__export_policy!(Guest with_types_in $crate::bindings);
        };
    };
}
