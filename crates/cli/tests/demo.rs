//! `demo` whose output nobody takes.

mod common;

use common::{Place, Ran};

/// A reader that has gone, or a full disk, is no reason to stop in the middle.
#[test]
fn output_that_is_full_stops_nothing() {
    let place = Place::new();
    std::fs::create_dir(place.path("demo")).unwrap();
    let full = std::fs::File::options().write(true).open("/dev/full");
    let mut command = place.command();
    command.args(["demo", "--size", "4096", "--dir", "demo"]);
    command.stdout(full.unwrap());
    Ran(command.output().unwrap()).assert_status(0);
    assert_eq!(std::fs::read_dir(place.path("demo")).unwrap().count(), 0);
}
