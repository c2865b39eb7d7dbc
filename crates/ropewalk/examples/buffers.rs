//! Memory of this program as source and destination: an array is written to a file of another agent, and part of that file read back.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use ropewalk::{Agent, AgentOptions, Buffer, Error, Row, RowTransfer, new_token};

/// Bytes of the array.
const LEN: u64 = 1 << 20;

/// Writes the array, reads the second half of the file, and compares.
pub fn main() -> Result<(), Error> {
    let folder = std::env::temp_dir().join(format!("ropewalk-buffers-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a temporary folder can be made");
    let result = there_and_back(&folder);
    fs::remove_dir_all(&folder).expect("a temporary folder can be removed");
    result
}

fn there_and_back(folder: &Path) -> Result<(), Error> {
    let token = new_token();
    let agent = |roots| {
        Agent::start(AgentOptions {
            listen: vec![([127, 0, 0, 1], 0).into()],
            token,
            roots,
        })
    };
    // The store would be on another host; this program serves nothing but what it lends.
    let store = agent(vec![(folder.into(), true)])?;
    let program = agent(Vec::new())?;
    let port = |agent: &Agent| agent.addresses()[0].port();

    let array: Arc<[u8]> = (0..LEN).map(|at| (at / 3) as u8).collect();
    program.lend("array", Buffer::readable(array.clone()))?;
    let half = Buffer::writable(vec![0; LEN as usize / 2]);
    program.lend("half", half.clone())?;

    let mut transfer = RowTransfer::new();
    transfer.token(token);
    let file = folder.join("array.bin");
    transfer.schedule(Row::from_buffer(
        "127.0.0.1",
        port(&program),
        "array",
        0..LEN,
    )?);
    transfer.schedule(Row::reader("127.0.0.1", port(&store), &file, 0..LEN)?);
    transfer.wait()?;

    let row = Row::writer("127.0.0.1", port(&store), &file, LEN / 2..LEN)?;
    transfer.schedule(row.file_offset(LEN / 2));
    transfer.schedule(Row::to_buffer(
        "127.0.0.1",
        port(&program),
        "half",
        LEN / 2..LEN,
    )?);
    transfer.wait()?;
    println!("delivered to the buffer: {:?}", half.written());
    assert_eq!(half.take_back(), array[array.len() / 2..]);
    program.stop()?;
    store.stop()
}
