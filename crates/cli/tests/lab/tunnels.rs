//! Tunnels over two interfaces, of which one after the other goes silent: also the one of the control connection.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::Child;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use ropewalk_lab::{HostSpec, Lab, LabBuilder, NicSpec};
use serde_json::Value;

use crate::hosts::{agent_with, begin, bytes, close};

/// Longest time that anything may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(180);

/// Bytes that have crossed, both ways, before something happens to a rail.
const STEP: usize = 6 << 20;

/// Sends back what arrives, on each connection; the port in the network of a host.
fn echo(lab: &Lab, host: &str) -> u16 {
    let listener = lab.in_network(host, || TcpListener::bind("127.0.0.1:0").unwrap());
    let listener = listener.unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for socket in listener.incoming() {
            let socket = socket.unwrap();
            thread::spawn(move || {
                // It ends with an error where the tunnel does.
                let _ = std::io::copy(&mut &socket, &mut &socket);
                let _ = socket.shutdown(Shutdown::Write);
            });
        }
    });
    port
}

/// A tunnel from `a` to the echo of `b`.
struct Tunnel {
    command: Child,
    events: Receiver<Value>,
    port: u16,
}

impl Tunnel {
    fn start(lab: &Lab, target: u16) -> Self {
        let forward = format!("127.0.0.1:0:127.0.0.1:{target}");
        let (command, all) = begin(lab, "a", &["tunnel", "b:7420", &forward]);
        let (sender, events) = channel();
        // Events that are not looked at must not stop the command.
        thread::spawn(move || all.for_each(|event| drop(sender.send(event))));
        let mut tunnel = Self {
            command,
            events,
            port: 0,
        };
        let started = tunnel.until("the start", |event| event["event"] == "started");
        let address = started["forwards"][0]["listen"][0].as_str().unwrap();
        tunnel.port = address.rsplit_once(':').unwrap().1.parse().unwrap();
        tunnel
    }

    /// The next event of which this is true.
    fn until(&self, what: &str, is: impl Fn(&Value) -> bool) -> Value {
        let begun = Instant::now();
        loop {
            let left = PATIENCE.saturating_sub(begun.elapsed());
            let event = self.events.recv_timeout(left);
            let event = event.unwrap_or_else(|_| panic!("no event: {what}"));
            if is(&event) {
                return event;
            }
        }
    }

    fn until_up(&self, up: [bool; 2]) {
        self.until(&format!("rails {up:?}"), |event| {
            let is_up = |rail: usize| event["rails"][rail]["up"] == up[rail];
            event["event"] == "progress" && is_up(0) && is_up(1)
        });
    }

    fn connect(&self, lab: &Lab) -> TcpStream {
        let port = self.port;
        let connect = || TcpStream::connect(("127.0.0.1", port)).unwrap();
        let socket = lab.in_network("a", connect).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.set_write_timeout(Some(PATIENCE)).unwrap();
        socket
    }
}

/// Sends all bytes while it reads them back, compares, and calls `at` with how many were received.
fn compare(mut socket: TcpStream, data: &[u8], mut at: impl FnMut(usize)) {
    thread::scope(|scope| {
        let mut sending = socket.try_clone().unwrap();
        scope.spawn(move || {
            sending.write_all(data).unwrap();
            sending.shutdown(Shutdown::Write).unwrap();
        });
        let (mut got, mut space) = (0, vec![0; 64 << 10]);
        loop {
            let count = match socket.read(&mut space) {
                Ok(count) => count,
                Err(error) => panic!("after {got} of {} bytes: {error}", data.len()),
            };
            if count == 0 {
                break;
            }
            assert!(space[..count] == data[got..got + count], "at {got}");
            got += count;
            at(got);
        }
        assert_eq!(got, data.len());
    });
}

/// The first interface, which also carries the control connection, goes silent, then the other one: bytes go on over the one that is left,
/// and are equal. So they do when the control connection is given up. With both silent the command ends, and says why.
#[test]
fn tunnels_go_on_over_the_interfaces_that_are_left() {
    if ropewalk_lab::skip("tunnels_go_on_over_the_interfaces_that_are_left") {
        return;
    }
    let nic = || NicSpec::rate_bits(100_000_000);
    let host = |name| HostSpec::new(name).nic(nic()).nic(nic());
    let builder = LabBuilder::new().host(host("a")).host(host("b"));
    let lab = builder.build().unwrap();
    let target = echo(&lab, "b");
    let allowed = format!("127.0.0.1:{target}");
    let agent = agent_with(&lab, "b", 7420, &["--forward", &allowed]);
    let mut tunnel = Tunnel::start(&lab, target);
    tunnel.until_up([true, true]);
    let data = bytes(4 * STEP);
    let mut step = 0;
    compare(tunnel.connect(&lab), &data, |got| {
        if got >= STEP && step == 0 {
            lab.blackhole("a", 0, true).unwrap();
            step = 1;
        } else if got >= 2 * STEP && step == 1 {
            // More than crosses while the silence is noticed: the other rail has carried it.
            tunnel.until_up([false, true]);
            step = 2;
        }
    });
    assert_eq!(step, 2);
    // Nothing waits for the control connection, and its loss ends nothing.
    tunnel.until("the loss of control", |event| {
        let message = event["message"].as_str().unwrap_or_default();
        message.contains("the control connection to b:7420 is lost")
    });
    compare(tunnel.connect(&lab), &data[..STEP], |_| {});
    lab.blackhole("a", 0, false).unwrap();
    tunnel.until_up([true, true]);
    let mut is_silent = false;
    compare(tunnel.connect(&lab), &data[..3 * STEP], |got| {
        if got >= STEP && !is_silent {
            lab.blackhole("b", 1, true).unwrap();
            is_silent = true;
        }
    });
    tunnel.until_up([true, false]);
    lab.blackhole("a", 0, true).unwrap();
    let ended = tunnel.until("the end", |event| event["event"] == "ended");
    let report = &ended["report"];
    assert_eq!(report["error_kind"], "lost", "{report:#}");
    let error = report["error"].as_str().unwrap();
    assert!(error.contains("b:7420 is lost: no rail"), "{error}");
    assert_eq!(tunnel.command.wait().unwrap().code(), Some(1));
    close(lab, [agent]);
}
