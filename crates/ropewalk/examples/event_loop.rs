//! Two transfers at once in one thread that waits for descriptors, as a program with an event loop does.

use std::fs;
use std::path::Path;

use ropewalk::{Agent, AgentOptions, Error, Row, RowTransfer, new_token};
use rustix::event::{PollFd, PollFlags, poll};

/// Makes a file, copies its halves in two transfers, and compares.
pub fn main() -> Result<(), Error> {
    let folder = std::env::temp_dir().join(format!("ropewalk-loop-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a temporary folder can be made");
    let result = run(&folder);
    fs::remove_dir_all(&folder).expect("a temporary folder can be removed");
    result
}

fn run(folder: &Path) -> Result<(), Error> {
    let data = vec![5; 2_000_000];
    fs::write(folder.join("data"), &data).expect("a file can be written");
    let token = new_token();
    let agents = [false, true].map(|is_writable| {
        Agent::start(AgentOptions {
            listen: vec![([127, 0, 0, 1], 0).into()],
            token,
            roots: vec![(folder.into(), is_writable)],
        })
    });
    let [sender, receiver] = agents;
    let (sender, receiver) = (sender?, receiver?);
    let port = |agent: &Agent| agent.addresses()[0].port();

    let mut transfers = Vec::new();
    for (name, range) in [("head", 0..1_000_000), ("tail", 1_000_000..2_000_000)] {
        let mut transfer = RowTransfer::new();
        transfer.token(token);
        let from = Row::writer(
            "127.0.0.1",
            port(&sender),
            folder.join("data"),
            range.clone(),
        )?;
        let to = Row::reader(
            "127.0.0.1",
            port(&receiver),
            folder.join(name),
            range.clone(),
        )?;
        transfer.schedule(from.file_offset(range.start));
        transfer.schedule(to);
        // Starts it, and returns at once.
        transfer.transfer()?;
        transfers.push(transfer);
    }
    while !transfers.is_empty() {
        let mut descriptors: Vec<PollFd<'_>> = transfers
            .iter()
            .filter_map(RowTransfer::descriptor)
            .map(|descriptor| PollFd::from_borrowed_fd(descriptor, PollFlags::IN))
            .collect();
        poll(&mut descriptors, None).expect("descriptors can be polled");
        let mut under_way = Vec::new();
        for mut transfer in transfers {
            // Takes the events, so that the descriptor is silent until the next one.
            transfer.events();
            match transfer.transfer()? {
                Some(report) => println!(
                    "{} bytes in {:.2} s",
                    report.delivered_bytes, report.seconds
                ),
                None => under_way.push(transfer),
            }
        }
        transfers = under_way;
    }
    let read = |name: &str| fs::read(folder.join(name)).expect("the copy is there");
    assert_eq!([read("head"), read("tail")].concat(), data);
    sender.stop()?;
    receiver.stop()
}
