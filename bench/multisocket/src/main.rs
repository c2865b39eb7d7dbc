//! The `multisocket` program: the same as `ropewalk-bench multisocket`.

use std::process::ExitCode;

use clap::{Args as _, Command, FromArgMatches as _};
use ropewalk_multisocket::MultisocketArgs;

fn command() -> Command {
    MultisocketArgs::augment_args(Command::new("multisocket"))
        .version(env!("CARGO_PKG_VERSION"))
        .about("Measures what some number of sockets carry together, from one process to another")
        .max_term_width(100)
}

fn main() -> ExitCode {
    let matches = command().get_matches();
    let args = MultisocketArgs::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    ExitCode::from(ropewalk_multisocket::run(&args))
}
