//! Whole transfers between hosts of the lab: namespaces with interfaces of their own. Skipped, visibly,
//! where namespaces cannot be made.

mod changes;
mod control;
mod hosts;
mod paths;
mod rails;
mod speeds;
mod streams;
mod transfers;
