//! Moves the data of CEP Figure 2 row by row between agents of this process: `schedule`, `transfer`, `data_sent`.

use std::fs;
use std::path::Path;

use ropewalk::{Agent, AgentOptions, Error, Row, RowTransfer, new_token};

/// Bytes of each of the four parts.
const PART: u64 = 1024;

/// Makes the files of the four writers, moves them to the three readers, and compares.
pub fn main() -> Result<(), Error> {
    let folder = std::env::temp_dir().join(format!("ropewalk-rows-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a temporary folder can be made");
    let result = move_rows(&folder);
    fs::remove_dir_all(&folder).expect("a temporary folder can be removed");
    result
}

fn move_rows(folder: &Path) -> Result<(), Error> {
    let data: Vec<u8> = (0..4 * PART).map(|at| (at / 7) as u8).collect();
    let half = data.len() / 2;
    fs::write(folder.join("half1"), &data[..half]).expect("a file can be written");
    fs::write(folder.join("half2"), &data[half..]).expect("a file can be written");
    let token = new_token();
    let agents: Vec<Agent> = (0..7)
        .map(|_| {
            Agent::start(AgentOptions {
                listen: vec![([127, 0, 0, 1], 0).into()],
                token,
                roots: vec![(folder.into(), true)],
            })
        })
        .collect::<Result<_, _>>()?;
    let port = |agent: usize| agents[agent].addresses()[0].port();

    let mut transfer = RowTransfer::new();
    transfer.token(token);
    for (agent, file, offset) in [
        (0, "half1", 0),
        (1, "half1", PART),
        (2, "half2", 0),
        (3, "half2", PART),
    ] {
        let start = agent as u64 * PART;
        let row = Row::writer(
            "127.0.0.1",
            port(agent),
            folder.join(file),
            start..start + PART,
        )?;
        transfer.schedule(row.file_offset(offset));
    }
    for (agent, file, offset, range) in [
        (4, "copy1", 0, 0..2 * PART),
        (5, "copy2", 2 * PART, 2 * PART..4 * PART),
        (6, "copy3", 0, 0..4 * PART),
    ] {
        let row = Row::reader("127.0.0.1", port(agent), folder.join(file), range)?;
        transfer.schedule(row.file_offset(offset));
    }
    let report = transfer.wait()?;
    println!("{} bytes in {:.2} s", transfer.data_sent(), report.seconds);

    let read = |name: &str| fs::read(folder.join(name)).expect("the copy is there");
    assert_eq!(read("copy1"), data[..half]);
    assert_eq!(read("copy2")[half..], data[half..]);
    assert_eq!(read("copy3"), data);
    agents.into_iter().try_for_each(Agent::stop)
}
