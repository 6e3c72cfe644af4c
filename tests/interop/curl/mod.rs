//! curl, the command, to Weir itself: what most people try a proxy with. `clients` has it in front
//! of real upstreams.

mod bodies;
mod http;
mod tls;
