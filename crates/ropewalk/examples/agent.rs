//! Serves a folder for reading, shows where, and stops.

use ropewalk::{Agent, AgentOptions, Error, new_token};

/// Starts and stops an agent.
pub fn main() -> Result<(), Error> {
    let agent = Agent::start(AgentOptions {
        listen: vec![([127, 0, 0, 1], 0).into()],
        token: new_token(),
        roots: vec![(std::env::temp_dir(), false)],
    })?;
    for address in agent.addresses() {
        println!("serving {} at {address}", std::env::temp_dir().display());
    }
    agent.stop()
}
