//! Whole transfers between hosts of the lab: namespaces with interfaces of their own. Skipped, visibly,
//! where namespaces cannot be made.

mod changes;
#[path = "../common/mod.rs"]
mod common;
mod control;
mod hosts;
mod liars;
mod paths;
mod rails;
mod relays;
mod speeds;
mod streams;
mod transfers;
mod tunnels;
