//! Flags of the original, and what was added to them; shared by both front ends.

use std::time::Duration;

use clap::Args;
use ropewalk_model::Bytes;

use crate::address::Address;
use crate::error::MultisocketError;

/// Port that the receiver listens on unless told otherwise, as in the original.
const PORT_DEFAULT: u16 = 10000;

/// Longest block: each side may keep one in memory.
const BLOCK_LEN_MAX: u64 = 1 << 30;

/// Seconds that a sender tries to connect; the original's script slept ten before it started the sender.
const SEND_WAIT_SECONDS: u32 = 10;

/// Seconds that a receiver waits for its sender: time to walk to the other machine, and an end to a forgotten one.
const RECEIVE_WAIT_SECONDS: u32 = 600;

/// Threads that a user may ask for.
const THREADS_MAX: u32 = 1024;

/// Arguments of `multisocket` and `ropewalk-bench multisocket`.
#[derive(Args, Clone, Debug)]
#[command(after_long_help = EXAMPLES)]
pub struct MultisocketArgs {
    /// Receive: listen, and count what a sender sends
    #[arg(short, long, conflicts_with = "transmit")]
    receive: bool,

    /// Transmit to HOST
    #[arg(short, long, requires = "host")]
    transmit: bool,

    /// Connections for each port; in all, connections x ports
    #[arg(short, long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..))]
    connections: u32,

    /// Bytes of a block, which is what one system call sends; 64KiB and the like are understood, too
    #[arg(short = 'b', long, value_name = "SIZE", default_value = "65536", value_parser = block_len)]
    block_size: u64,

    /// Blocks for each connection
    #[arg(short = 'B', long, value_name = "N", default_value_t = 400, value_parser = clap::value_parser!(u64).range(1..))]
    blocks: u64,

    /// First port; with --receive, 0 lets the system choose one and prints it
    #[arg(short, long, value_name = "PORT", default_value_t = PORT_DEFAULT)]
    port: u16,

    /// Ports that are listened on: PORT, PORT + 1 and so on
    #[arg(short = 'n', long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    ports: u16,

    /// With --receive: listen on this address only: a name, an IPv4 or IPv6 address, unix:PATH or unix:@NAME
    #[arg(long, value_name = "ADDR", conflicts_with = "transmit")]
    listen: Option<Address>,

    /// How long a sender tries to connect [default: 10], or a receiver waits for its sender [default: 600]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    wait: Option<u32>,

    /// Threads that move data [default: as many as cores, at most one a connection]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(THREADS_MAX)))]
    threads: Option<u32>,

    /// One JSON object instead of the line
    #[arg(long)]
    pub(crate) json: bool,

    /// Where the receiver listens: a name, an IPv4 or IPv6 address, unix:PATH or unix:@NAME
    #[arg(value_name = "HOST", conflicts_with = "receive")]
    host: Option<Address>,
}

const EXAMPLES: &str = "\
Examples:
  multisocket -r -c 32 -b 65536 -B 400 -p 10007
  multisocket -t -c 32 -b 65536 -B 400 -p 10007 HOST
      32 connections to one port, 400 blocks of 64 KiB over each: 838860800 bytes
  multisocket -r -c 250 -n 4 -b 4096
  multisocket -t -c 250 -n 4 -b 4096 HOST
      1000 connections: 250 to each of the ports 10000 to 10003
  multisocket -r --listen unix:@test
  multisocket -t unix:@test
      the same test over Unix sockets, which shows what TCP costs on one machine
  multisocket -t --json '[fe80::1%eth0]'
      to an IPv6 address; the report as JSON, with rates of connections and context switches

Both sides need the same -c, -n, -b and -B; where they differ, both report it and nothing moves. The
sender's clock ends when the receiver has confirmed every byte. Each side prints a line:

  Send: et 40.151204 bytes 838860800 Mbytes/sec 20.892544 0.0u 31.0s 162im 0sw

et: seconds; Mbytes/sec: 10^6 bytes a second; u, s: processor seconds in the program and in the
system; im: most memory resident at once, in KiB; sw: times the process was swapped out.
The commands `multisocket` and `ropewalk-bench multisocket` are the same.

Exit status: 0 done, 1 failed (a connection was lost, no peer connected or listened), 2 usage, 4 refused
(the sides differ, or the receiver has another sender), 130 interrupted.";

fn block_len(text: &str) -> Result<u64, String> {
    let Bytes(len) = text.parse::<Bytes>().map_err(|error| error.to_string())?;
    if (1..=BLOCK_LEN_MAX).contains(&len) {
        Ok(len)
    } else {
        Err("a block has from 1 byte to 1 GiB".into())
    }
}

/// What both sides must agree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Connections to each port.
    pub connections_per_port: u32,
    /// Ports that are listened on.
    pub ports: u32,
    /// Bytes of a block; at least 1.
    pub block_len: u64,
    /// Blocks for each connection; at least 1.
    pub blocks: u64,
}

impl Shape {
    /// Connections in all.
    pub fn connections(self) -> u32 {
        self.connections_per_port * self.ports
    }

    /// Bytes that cross one connection.
    pub fn connection_bytes(self) -> u64 {
        self.block_len * self.blocks
    }

    /// Bytes that cross in all.
    pub fn bytes(self) -> u64 {
        self.connection_bytes() * u64::from(self.connections())
    }

    /// The shape when its numbers make sense and their products fit.
    ///
    /// # Errors
    /// [`MultisocketError::Misuse`] says which number is too large.
    pub fn checked(self) -> Result<Self, MultisocketError> {
        let connections = self.connections_per_port.checked_mul(self.ports);
        let bytes = connections.and_then(|connections| {
            let each = self.block_len.checked_mul(self.blocks)?;
            each.checked_mul(u64::from(connections))
        });
        match (connections, bytes) {
            (Some(1..), Some(1..)) if self.block_len <= BLOCK_LEN_MAX => Ok(self),
            (None, _) => Err(MultisocketError::Misuse(format!(
                "{} connections to each of {} ports are too many",
                self.connections_per_port, self.ports
            ))),
            _ => Err(MultisocketError::Misuse(
                "the bytes in all cannot be counted in 64 bits; give fewer blocks with -B".into(),
            )),
        }
    }
}

/// Which side a process is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// It sends.
    Send {
        /// To this receiver.
        host: Address,
    },
    /// It receives.
    Receive {
        /// On this address; without one, on all of the machine.
        listen: Option<Address>,
    },
}

/// One side of a test.
#[derive(Clone, Debug)]
pub struct Test {
    /// Which side.
    pub role: Role,
    /// What moves.
    pub shape: Shape,
    /// The first port.
    pub port: u16,
    /// How long to try to connect, or to wait for a sender.
    pub wait: Duration,
    /// Threads that move data; `None` leaves it to the cores.
    pub threads: Option<usize>,
}

impl Test {
    /// Threads that share the connections.
    pub(crate) fn thread_count(&self) -> usize {
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        let asked = self.threads.unwrap_or_else(cores);
        asked.min(self.shape.connections() as usize)
    }
}

impl MultisocketArgs {
    /// The test that the arguments describe.
    ///
    /// # Errors
    /// [`MultisocketError::Misuse`] when they cannot be meant.
    pub fn test(&self) -> Result<Test, MultisocketError> {
        let misuse = |text: &str| Err(MultisocketError::Misuse(text.into()));
        let shape = Shape {
            connections_per_port: self.connections,
            ports: self.ports.into(),
            block_len: self.block_size,
            blocks: self.blocks,
        };
        let role = match (&self.host, self.transmit) {
            (Some(host), true) => Role::Send { host: host.clone() },
            (None, true) => return misuse("-t needs a HOST to send to, last on the line"),
            (_, false) if !self.receive => {
                return misuse("say which side this is: -r (--receive), or -t HOST (--transmit)");
            }
            (_, false) => Role::Receive {
                listen: self.listen.clone(),
            },
        };
        let is_sender = self.transmit;
        let is_unix = match &role {
            Role::Send { host } => host.is_unix(),
            Role::Receive { listen } => listen.as_ref().is_some_and(Address::is_unix),
        };
        if self.port == 0 && is_sender && !is_unix {
            return misuse("give the port that the receiver listens on with -p");
        }
        if self.port == 0 && self.ports > 1 {
            return misuse("with -p 0 the system chooses one port; give a first port for several");
        }
        if self.port.checked_add(self.ports - 1).is_none() {
            return misuse("the last port would be above 65535; give a lower -p or -n");
        }
        let seconds = if is_sender {
            SEND_WAIT_SECONDS
        } else {
            RECEIVE_WAIT_SECONDS
        };
        Ok(Test {
            role,
            shape: shape.checked()?,
            port: self.port,
            wait: Duration::from_secs(self.wait.unwrap_or(seconds).into()),
            threads: self.threads.map(|threads| threads as usize),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Command, FromArgMatches as _};

    fn parse(line: &str) -> Result<MultisocketArgs, clap::Error> {
        let command = MultisocketArgs::augment_args(Command::new("multisocket"));
        let matches = command.try_get_matches_from(line.split_whitespace())?;
        MultisocketArgs::from_arg_matches(&matches)
    }

    fn test(line: &str) -> Result<Test, MultisocketError> {
        parse(line).unwrap().test()
    }

    /// The command lines of the attachment give the numbers that it states.
    #[test]
    fn original_command_lines() {
        let receiver = test("multisocket -r -c 32 -b 65536 -B 400 -p 10007").unwrap();
        assert_eq!(receiver.role, Role::Receive { listen: None });
        assert_eq!(receiver.port, 10007);
        assert_eq!(receiver.shape.connections(), 32);
        assert_eq!(receiver.shape.bytes(), 838_860_800);
        let sender = test("multisocket -t -c 32 -b 65536 -B 400 -p 10007 rreceiver").unwrap();
        let host = "rreceiver".parse().unwrap();
        assert_eq!(sender.role, Role::Send { host });
        assert_eq!(sender.shape, receiver.shape);
    }

    /// Defaults are the original's port and example; connections are the product with the ports.
    #[test]
    fn defaults_and_products() {
        let plain = test("multisocket -r").unwrap();
        assert_eq!((plain.port, plain.shape.ports), (10000, 1));
        assert_eq!(plain.shape.bytes(), 838_860_800);
        assert!(plain.wait > test("multisocket -t h").unwrap().wait);
        let many = test("multisocket -r -c 250 -n 4 -b 4KiB -B 3 --wait 7").unwrap();
        assert_eq!(many.shape.connections(), 1000);
        assert_eq!(many.shape.connection_bytes(), 12288);
        assert_eq!(many.wait, Duration::from_secs(7));
        assert_eq!(many.thread_count().min(1), 1);
        let one = test("multisocket -r -c 1 --threads 9").unwrap();
        assert_eq!(
            one.thread_count(),
            1,
            "a thread without connections is none"
        );
    }

    /// Both roles, none, or a host on the wrong side are slips that clap explains.
    #[test]
    fn roles_exclude_each_other() {
        let neither = test("multisocket").unwrap_err().to_string();
        assert!(neither.contains("-r (--receive), or -t HOST"), "{neither}");
        for line in [
            "multisocket -r -t h",
            "multisocket -t",
            "multisocket -r h",
            "multisocket -t --listen a h",
            "multisocket -r -c 0",
            "multisocket -r -b 0",
            "multisocket -r -b 4K",
            "multisocket -r -B 0",
            "multisocket -r -n 0",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
    }

    /// What each flag allows may still not fit together.
    #[test]
    fn numbers_that_do_not_fit() {
        for (line, why) in [
            ("multisocket -r -p 65535 -n 2", "65535"),
            ("multisocket -r -p 0 -n 2", "several"),
            ("multisocket -t -p 0 h", "-p"),
            ("multisocket -r -c 4294967295 -n 2", "too many"),
            ("multisocket -r -b 1GiB -B 18446744073709551615", "64 bits"),
        ] {
            let error = test(line).unwrap_err();
            assert!(
                error.to_string().contains(why) && error.exit_status() == 2,
                "{line}: {error}"
            );
        }
        assert!(test("multisocket -r -p 65535").is_ok());
        assert!(test("multisocket -t -p 0 unix:@x").is_ok());
    }
}
