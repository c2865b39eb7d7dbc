//! Copies a folder from one agent to another, both within this process.

use std::path::{Path, PathBuf};

use ropewalk::{Agent, AgentOptions, Error, Event, Place, Transfer, new_token};

/// Makes a folder with a file, copies it, and removes both.
pub fn main() -> Result<(), Error> {
    let folder = std::env::temp_dir().join(format!("ropewalk-example-{}", std::process::id()));
    let source = folder.join("source/set");
    std::fs::create_dir_all(&source).expect("a temporary folder can be made");
    std::fs::write(source.join("numbers"), vec![7; 3_000_000]).expect("a file can be written");
    std::fs::create_dir_all(folder.join("copies")).expect("a temporary folder can be made");
    let result = copy(&folder);
    std::fs::remove_dir_all(&folder).expect("a temporary folder can be removed");
    result
}

fn copy(folder: &Path) -> Result<(), Error> {
    let token = new_token();
    let start = |root: PathBuf, is_writable| {
        Agent::start(AgentOptions {
            listen: vec![([127, 0, 0, 1], 0).into()],
            token,
            roots: vec![(root, is_writable)],
        })
    };
    let sender = start(folder.join("source"), false)?;
    let receiver = start(folder.join("copies"), true)?;
    let at = |agent: &Agent, path: &str| {
        let port = agent.addresses()[0].port();
        Place::at_agent("127.0.0.1", port, folder.join(path))
    };
    let report = Transfer::new()
        .from(at(&sender, "source/set"))
        .to(at(&receiver, "copies/set"))
        .token(token)
        .on_event(|event| {
            if let Event::Note { message, .. } = event {
                println!("{message}");
            }
        })
        .run()?;
    println!(
        "{} bytes in {:.2} s",
        report.delivered_bytes, report.seconds
    );
    let copied = std::fs::read(folder.join("copies/set/numbers")).expect("the copy is there");
    assert_eq!(copied, vec![7; 3_000_000]);
    sender.stop()?;
    receiver.stop()
}
