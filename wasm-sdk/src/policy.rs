//! The trait that a policy's author implements.

use serde::de::DeserializeOwned;

use crate::{Decision, Facts, Manifest, Mistakes, ResponseView, Settlement};

/// A policy: made once from its configuration, then called for each request.
///
/// The proxy keeps several instances, and may discard one at any time. Whatever a policy remembers
/// between calls is at best a cache.
pub trait Policy: Sized + 'static {
    /// `[policies.NAME.config]`. Put `#[serde(deny_unknown_fields)]` on it, so that a misspelt key
    /// is reported.
    type Config: DeserializeOwned;

    /// Whether [`Policy::settle`] is implemented. If not, a limit with `refund = "by_settle"` or a
    /// `debt` is a configuration mistake: nothing would ever be given back or owed.
    const SETTLES: bool = false;

    /// Makes the policy, and checks what its type alone can't.
    ///
    /// # Errors
    /// All mistakes found, each with the setting's path (`bypass[1]`). What doesn't fit `Config` is
    /// reported by the caller.
    fn new(config: Self::Config) -> Result<Self, Mistakes>;

    /// The facts that [`Policy::decide`] reads. Nothing else is shown. A name that the proxy
    /// doesn't know is a configuration mistake.
    fn manifest(&self) -> Manifest;

    /// Decides about one request.
    ///
    /// # Errors
    /// A sentence for the proxy's log. The request is then handled according to its route's
    /// `on_policy_error`.
    fn decide(&self, facts: &Facts) -> Result<Decision, String>;

    /// Called at the end of the response, if the decision asked for it with
    /// [`Decision::settle_with`]; perhaps in another instance. After a refusal it is called only if
    /// the decision asked for that, too ([`Decision::settle_refusals`]). A policy that implements
    /// it sets [`Policy::SETTLES`].
    ///
    /// # Errors
    /// A sentence for the proxy's log. The charge then stands.
    fn settle(&self, memo: &str, response: &ResponseView) -> Result<Settlement, String> {
        let _ = (memo, response);
        Ok(Settlement::nothing())
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
                ) -> ::core::result::Result<handler::Settlement, ::std::string::String> {
                    POLICY.with(|slot| slot.settle(&memo, &response))
                }
            }

    $crate::bindings::__export_policy!(Guest with_types_in $crate::bindings);
        };
    };
}
