//! `ropewalk-bench multisocket` is the `multisocket` program, whose own tests say more.

mod common;

use std::process::Stdio;

use common::{Place, Ran};

/// Both sides run as commands of ours, and print the original's lines.
#[test]
fn both_sides() {
    let place = Place::new();
    let socket = format!("unix:{}", place.text("socket"));
    let numbers = ["multisocket", "-c", "3", "-b", "65536", "-B", "4"];
    let mut receiver = place.command();
    receiver.args(numbers).args(["-r", "--listen", &socket]);
    receiver.stdout(Stdio::piped()).stderr(Stdio::piped());
    let receiver = receiver.spawn().unwrap();
    let mut sender = place.command();
    let sender = sender.args(numbers).args(["-t", "--wait", "60", &socket]);
    Ran(sender.output().unwrap())
        .assert_status(0)
        .assert_says(" bytes 786432 Mbytes/sec ");
    Ran(receiver.wait_with_output().unwrap())
        .assert_status(0)
        .assert_says("Receive: et ");
}
