//! The multisocket test: one process sends over some number of connections, another receives, both say how fast.
//!
//! It is the test of attachment 1 of "Multisocket and streaming" (Maui SP2): connections = connections a port x
//! ports, data flow one way, and each side ends with a line such as
//!
//! ```text
//! Send: et 40.151204 bytes 838860800 Mbytes/sec 20.892544 0.0u 31.0s 162im 0sw
//! ```
//!
//! ```text
//!  sender                                   receiver
//!    connect, header (run, number, shape) ─▶  checks, gathers all connections
//!    ◀────────────────────────────── Welcome, or why not
//!    ◀──────────────────────────────── Go     all are there: its clock begins
//!    clock begins; blocks ─────────────────▶  counts bytes, connection by connection
//!    ◀──────────────────────── Done (bytes)   this connection is whole; the last one ends its clock
//!    the last Done ends the clock
//! ```
//!
//! | to | use |
//! |---|---|
//! | run as a command does | [`run`] with [`MultisocketArgs`] |
//! | send, receive | [`send`](sender::send), [`receive`](receiver::receive) with a [`Test`] |
//! | print | [`Report::line`], [`Report::json`] |
//!
//! **Goals.** The original command lines work unchanged. A byte counts when the receiver has it in memory and has
//! said so; a send call that returned proves nothing. A connection that is lost fails the test on both sides.
//! Other connections are rejected and change nothing. Every wait has a deadline.
//!
//! **Not goals.** No encryption, no checksums, no content: what is measured is the network and the sockets.
//! Congestion control stays as the host has it, and so do TCP's buffers between hosts.
//!
//! Threads are as many as cores (at most one a connection); each drives its share of connections by epoll, so that
//! a thousand connections cost no more memory in the process than one.
//!
//! Differs from the original: the sender waits for a receiver that is not there yet; block size, blocks and
//! connections of both sides are compared, not trusted.

use std::io::Write as _;
use std::sync::atomic::AtomicBool;

mod address;
mod error;
mod flow;
mod gather;
mod options;
pub mod receiver;
mod report;
pub mod sender;
mod sys;
mod watch;
mod wire;

pub use address::Address;
pub use error::MultisocketError;
pub use options::{MultisocketArgs, Role, Shape, Test};
pub use report::{Rates, Report, Usage};

/// Runs one side of the test, prints its report, and says with which status to exit.
///
/// Ctrl-C and SIGTERM end it in order until it returns; call it once in a process.
pub fn run(args: &MultisocketArgs) -> u8 {
    let stop = sys::stop_on_signals();
    let result = args.test().and_then(|test| {
        let report = carry_out(&test, stop)?;
        Ok(if args.json {
            report.json().to_string()
        } else {
            report.line()
        })
    });
    match result {
        Ok(text) => {
            say(&text);
            0
        }
        Err(error) => {
            if args.json {
                say(&error.json().to_string());
            }
            eprintln!("multisocket: {error}");
            error.exit_status()
        }
    }
}

fn say(line: &str) {
    // Nobody need read it.
    let _ = writeln!(std::io::stdout(), "{line}");
}

fn carry_out(test: &Test, stop: &AtomicBool) -> Result<Report, MultisocketError> {
    match &test.role {
        Role::Send { host } => sender::send(test, host, stop),
        Role::Receive { listen } => receiver::receive(test, listen.as_ref(), stop, |place| {
            eprintln!("multisocket: listening on {place}");
        }),
    }
}
