//! Transfers that a program describes by the calls of CEP Table 1, and that a running `ropewalk serve` carries out.

mod common;

use std::time::Duration;

use common::serving::{Serving, job, jobs, state};
use common::{Place, RunningAgent, bytes, wait_for};
use ropewalk::{ByteRate, Error, Event, Row, RowTransfer};

const ANY_PORT: &[&str] = &["--listen", "127.0.0.1:0"];

/// Two agents, a file on the first, and a program with the token.
struct Scene {
    place: Place,
    agents: [RunningAgent; 2],
    len: u64,
}

impl Scene {
    fn new(len: u64) -> Self {
        let place = Place::new();
        place.make_token();
        std::fs::write(place.path("data"), bytes(len as usize, 3)).unwrap();
        let agents = [(); 2].map(|()| place.agent(place.dir.path()));
        Self { place, agents, len }
    }

    fn transfer(&self, port: u16, copy: &str) -> RowTransfer {
        let mut transfer = RowTransfer::new();
        let token = self.place.path("home/.config/ropewalk/token");
        transfer.token_file(token).unwrap();
        transfer.master(&format!("127.0.0.1:{port}")).unwrap();
        let [from, to] = &self.agents;
        let (data, copy) = (self.place.path("data"), self.place.path(copy));
        transfer.schedule(Row::writer("127.0.0.1", from.port, data, 0..self.len).unwrap());
        transfer.schedule(Row::reader("127.0.0.1", to.port, copy, 0..self.len).unwrap());
        transfer
    }

    #[track_caller]
    fn assert_copied(&self, copy: &str) {
        let read = |name| std::fs::read(self.place.path(name)).unwrap();
        assert!(read("data") == read(copy), "{copy} differs");
    }
}

/// The program gets the report of the master, and the events of its run; the queue has the job.
#[test]
fn a_standing_master_carries_rows_out() {
    let scene = Scene::new(300_000);
    let (serving, port) = Serving::listening(&scene.place, ANY_PORT);
    let mut transfer = scene.transfer(port, "copy");
    transfer.option("verify", "sink").unwrap();
    let report = transfer.wait().unwrap();
    assert_eq!(report.delivered_bytes, 300_000);
    assert_eq!(transfer.data_sent(), 300_000);
    scene.assert_copied("copy");
    assert_eq!(jobs(&scene.place).len(), 1);
    assert_eq!(state(&job(&scene.place, 1)), "done");

    // The next rows are another job.
    let mut second = scene.transfer(port, "copy2");
    assert!(second.transfer().unwrap().is_none());
    let mut seen = Vec::new();
    while second
        .wait_for(Duration::from_millis(50))
        .unwrap()
        .is_none()
    {
        seen.extend(second.events());
    }
    assert!(
        seen.iter()
            .any(|event| matches!(event, Event::HandedOver { job: 2, .. })),
        "{seen:?}"
    );
    scene.assert_copied("copy2");
    drop(serving);
}

/// One that is cancelled ends at the master, too; one that is dropped goes on there.
#[test]
fn jobs_are_cancelled_and_left() {
    let scene = Scene::new(4_000_000);
    let (_serving, port) = Serving::listening(&scene.place, ANY_PORT);
    let slow = |copy: &str| {
        let mut transfer = scene.transfer(port, copy);
        transfer.limit(ByteRate(1_000_000));
        assert!(transfer.transfer().unwrap().is_none());
        wait_for("the job to be handed over", || {
            assert!(transfer.transfer().unwrap().is_none());
            let events = transfer.events();
            let is_over = |event: &Event| matches!(event, Event::HandedOver { .. });
            events.iter().any(is_over).then_some(())
        });
        transfer
    };
    let mut cancelled = slow("cancelled");
    cancelled.cancel();
    let error = cancelled.wait().unwrap_err();
    assert!(error.fault().report.is_some(), "{error}");
    assert_eq!(state(&job(&scene.place, 1)), "cancelled");
    assert!(!scene.place.path("cancelled").exists());

    drop(slow("left"));
    scene.place.run(&["queue", "--wait", "2"]).assert_status(0);
    scene.assert_copied("left");
}

/// What cannot be handed over is refused by name, and nothing moves.
#[test]
fn what_cannot_be_handed_over_is_refused() {
    let scene = Scene::new(1000);
    let (serving, port) = Serving::listening(&scene.place, ANY_PORT);
    let error = |transfer: &mut RowTransfer| transfer.wait().unwrap_err();

    let mut other = scene.transfer(port, "copy");
    other.token([7; 32]);
    let wrong = error(&mut other);
    assert!(matches!(wrong, Error::Input(_)), "{wrong}");
    assert!(wrong.to_string().contains("another token"), "{wrong}");

    let mut ssh = scene.transfer(port, "copy");
    ssh.over_ssh();
    assert!(error(&mut ssh).to_string().contains("none over ssh"));

    serving.kill();
    let absent = error(&mut scene.transfer(port, "copy"));
    assert!(absent.is_retryable(), "{absent}");
    assert!(
        absent.to_string().contains("no `ropewalk serve` answers"),
        "{absent}"
    );
    assert!(!scene.place.path("copy").exists());
    let mut none = RowTransfer::new();
    assert!(none.master("-x:1").is_err() && none.master("a").is_err());
}
