//! Whole transfers between hosts of the lab: namespaces with interfaces of their own. Skipped, visibly,
//! where namespaces cannot be made.

mod changes;
mod hosts;
mod rails;
mod speeds;
mod transfers;
