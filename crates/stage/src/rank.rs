//! What `mpirun` starts in the place of a process of a stream.

use std::io::{Read as _, Write as _};
use std::path::Path;

use ropewalk_lane::mpi::join::{Place, RANK_KEY, RankKey};
use ropewalk_lane::unix;

/// What Open MPI and MPICH name the number of a rank by.
const NUMBERS: [&str; 2] = ["OMPI_COMM_WORLD_RANK", "PMI_RANK"];

/// Gives its place to a process of the agent of its node, and returns when the agent closes the connection.
///
/// * `stream`: its id in 32 hexadecimal digits.
/// * `each`: processes of a node.
/// * `agents`: instance names of the agents of all nodes, in their order.
/// * `library`: of MPI.
///
/// # Errors
/// What to print for the agent that has started `mpirun`.
pub fn join(stream: &str, each: u32, agents: &[String], library: &Path) -> Result<(), String> {
    let number = NUMBERS.iter().find_map(|name| std::env::var(name).ok());
    let number = number.and_then(|text| text.parse::<u32>().ok());
    let number = number.ok_or("mpirun gave this process no number; it is run by agents only")?;
    let key = std::env::var(RANK_KEY).ok();
    let key = key.and_then(|text| RankKey::parse(&text));
    let key = key.ok_or("the key of the stream is missing")?;
    let stream = u128::from_str_radix(stream, 16)
        .map_err(|_| "the stream's id is not 32 hexadecimal digits")?
        .to_be_bytes();
    let each = each.max(1);
    let agent = agents
        .get((number / each) as usize)
        .ok_or("there are more ranks than processes")?;
    let said = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::ConnectionRefused => format!(
            "rank {number} is on a host without the agent of its node; --lane mpi is for nodes of one host"
        ),
        _ => format!("rank {number} cannot join its agent: {error}"),
    };
    let mut socket = unix::connect(&unix::agent_name(agent)).map_err(said)?;
    let preface = key.ask(stream, number % each);
    socket.write_all(&preface).map_err(said)?;
    let place = Place::own(library, std::env::vars_os());
    place.send(&socket).map_err(said)?;
    // The launcher's socket is the other process's now.
    drop(place);
    // Nothing is sent: the end is waited for, whatever it looks like.
    let _ = socket.read(&mut [0]);
    Ok(())
}
