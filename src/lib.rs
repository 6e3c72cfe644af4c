//! Weir is a reverse proxy that rate-limits requests. Which limits apply to a request is decided by
//! a policy, a WebAssembly guest. The counters are kept in memory or in Redis.
//!
//! The path of a request, module by module:
//!
//! 1. [`listen`] accepts the connection and reads the request: HTTP/1.1 with our own `http1`,
//!    HTTP/2 with h2.
//! 2. [`proxy`] finds the request's route, and collects the facts about the request that the
//!    route's policy uses.
//! 3. [`policy`] runs the guest. It is given the facts and returns a [`plan`]: the limits that
//!    apply, each with its key and its cost.
//! 4. [`limit`] charges the plan's limits. The [`engine`] does the counting, with the same Lua (in
//!    `lua/`) in memory and on Redis.
//! 5. If a limit is exceeded, the client gets a 429. Otherwise [`upstream`] chooses a host and
//!    sends the request on, and `proxy` passes the reply back.
//! 6. When the reply has ended, `proxy` settles the request: refunds, the policy's adjustments, the
//!    access log.
//!
//! What is useful without the proxy is in crates of its own, in `crates/`, and named here as if it
//! were modules: `limit` and `engine` are `weir-limit`, which knows no HTTP; `listen`, `upstream`
//! and `wire` are `weir-http`, which knows no limit; `policy` and `inspect` are `weir-host`, which
//! knows neither; `replay` and `chart` are `weir-replay`. `plan`, `clock`, `telemetry` and TLS
//! material are one crate each. `http1`, TLS material, the algorithms and `weir-lease`, on which
//! `limit` and quotas for Envoy rest, are not named here.
//!
//! Where a policy reads bodies, [`inspect`] finds values in requests, and the usage that replies
//! report while they stream. [`insight`] remembers for the operator what was decided.
//!
//! Around this path: [`cli`] is the command line. [`app`] wires the modules together and runs the
//! workers. [`config`] reads and checks `proxy.toml`. [`reload`] watches the files and has a new
//! configuration built. [`admin`] serves the operator's pages. [`otlp`] exports traces and metrics
//! to an OpenTelemetry collector. [`wire`] holds what both ends share, such as messages and bodies.
//! [`spelling`] knows which spellings of a value upstreams read as one.
//! [`clock`] tells the time, [`telemetry`] has logs and metrics, and [`replay`] reads access logs
//! and reports what a configuration would have done with them. [`chart`] draws charts for people.
//!
//! To read the code, start with `proxy/serve.rs` and `proxy/context.rs`.
//! Then read the `mod.rs` of whatever they call: it says what a module is for, and contains its
//! public types. ARCHITECTURE.md explains the design and says which module may use which;
//! `tests/tidy` enforces that.

pub mod app;
pub mod cli;

pub mod config;
pub mod reload;

pub mod proxy;

pub mod insight;

pub mod admin;
pub mod fetch;
pub mod otlp;

pub mod spelling;

pub use weir_clock as clock;
pub use weir_host::{inspect, policy};
pub use weir_http::{listen, upstream, wire};
pub use weir_limit::{engine, limit};
pub use weir_plan as plan;
pub use weir_replay::{chart, replay};
pub use weir_telemetry as telemetry;

pub use app::App;
