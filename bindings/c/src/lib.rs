//! Ropewalk from C: the header is `include/ropewalk.h`, which a test writes from this source; `include/cep.h` has the calls of CEP Table 1.
//!
//! * Handles are made by a `_new` function and released by `_free`. Any number of threads use one socket (of which one receives), listener, stream, connection or
//!   region; one at a time uses any other handle. Handles are independent.
//! * Calls that can fail return a [`ropewalk_result`] and have, last, a place for an error, which may be `NULL`.
//! * Texts are UTF-8 with a zero byte at the end, and copied. Pointers that may be `NULL` say so; others are checked and refused.
//! * In a child that `fork` has made, handles of the parent are refused and may be released, and once the parent has made something that runs, new ones are refused.
//! * No call exits, prints, raises a signal, or lets a panic out.

#![allow(non_camel_case_types, reason = "these are the names in C")]

mod agent;
mod cep;
mod error;
mod message;
mod process;
mod region;
mod sigpipe;
mod stream;
mod transfer;

pub use agent::*;
pub use cep::*;
pub use error::*;
pub use message::*;
pub use region::*;
pub use stream::*;
pub use transfer::*;
