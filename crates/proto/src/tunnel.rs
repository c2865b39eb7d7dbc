//! Tunnels: TCP connections to a port of one host that another host makes, as byte streams over all interfaces of both.
//!
//! ```text
//!   program ── TCP ──▶ command ══ rails: one message socket, a byte stream for each connection ══▶ agent ── TCP ──▶ target
//!                         └──────── control connection: which targets; not needed once a rail works ────────┘
//! ```
//!
//! Of a remote forward programs connect to the agent, and the command to the target.
//!
//! Decided here: what an operator lets tunnels connect to ([`allowed`]) and listen on ([`listening`]), which pairs of interfaces are rails ([`pairing`]), and
//! what is said of rails and the control connection while a tunnel runs ([`watch`]).

use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;

pub mod allowed;
pub mod listening;
pub mod pairing;
pub mod report;
pub mod watch;

/// Forwards of one tunnel, both ways together.
pub const TARGETS_MAX: usize = 64;

/// Longest name of a host in the DNS.
const HOST_LEN_MAX: usize = 253;

/// A tunnel in which no rail has worked for so many seconds is over.
pub const LOST_SECONDS: u64 = 10;

/// Code of a byte stream whose target was not reached: the user should know.
pub const CODE_UNREACHED: u32 = 1;

/// Code of a byte stream whose TCP connection broke or was reset, at either end: the programs know.
pub const CODE_BROKEN: u32 = 2;

/// What tunnels may do on an agent's host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Permitted {
    /// Where they connect to.
    pub targets: allowed::Allowed,
    /// Where they listen.
    pub listening: listening::Listening,
}

impl Permitted {
    /// Nothing.
    #[must_use]
    pub fn nothing() -> Self {
        Self {
            targets: allowed::Allowed::nothing(),
            listening: listening::Listening::nowhere(),
        }
    }

    /// All that the agent's user may do: its master has that user's login.
    #[must_use]
    pub fn anything() -> Self {
        Self {
            targets: allowed::Allowed::Anything,
            listening: listening::Listening::Anything,
        }
    }
}

/// Where connections of a tunnel go on to, as the host finds it that connects: the agent's, of a remote forward the command's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Name or address, without brackets.
    pub host: String,
    /// TCP port, from 1 on.
    pub port: u16,
}

/// A text that is no target.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no HOST:PORT; an IPv6 address needs brackets, and ports are 1 to 65535")]
pub struct TargetError(String);

impl Target {
    /// A target as a peer names it; `None` for what is no host or port.
    #[must_use]
    pub fn new(host: &str, port: u32) -> Option<Self> {
        let port = u16::try_from(port).ok().filter(|port| *port > 0)?;
        is_host(host).then(|| Self {
            host: host.to_owned(),
            port,
        })
    }
}

fn is_host(host: &str) -> bool {
    let is_name = |host: &str| {
        let mut letters = host.bytes();
        !host.starts_with('-')
            && letters.all(|letter| letter.is_ascii_alphanumeric() || b"._-".contains(&letter))
    };
    let fits = !host.is_empty() && host.len() <= HOST_LEN_MAX;
    fits && (is_name(host) || host.parse::<Ipv6Addr>().is_ok())
}

/// Cuts `HOST:PORT` at the port; brackets of an address are removed.
pub fn split(text: &str) -> Option<(&str, &str)> {
    let (host, port) = text.rsplit_once(':')?;
    let host = match host.strip_prefix('[') {
        Some(rest) => rest.strip_suffix(']')?,
        // An address of IPv6 without brackets could end anywhere.
        None if host.contains(':') => return None,
        None => host,
    };
    Some((host, port))
}

impl FromStr for Target {
    type Err = TargetError;

    fn from_str(text: &str) -> Result<Self, TargetError> {
        let target = split(text).and_then(|(host, port)| Self::new(host, port.parse().ok()?));
        target.ok_or_else(|| TargetError(text.to_owned()))
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

/// The greeting of a connection's byte stream: the position of its target in the request.
#[must_use]
pub fn greeting(target: u32) -> [u8; 4] {
    target.to_le_bytes()
}

/// Reads a greeting; `None` for one of another kind.
#[must_use]
pub fn target_of(greeting: &[u8]) -> Option<u32> {
    Some(u32::from_le_bytes(greeting.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is written is read again, and what means nothing is refused.
    #[test]
    fn targets_are_read() {
        for text in ["db:5432", "10.0.0.1:80", "[fd00::1]:22", "my_host.x-y:1"] {
            assert_eq!(text.parse::<Target>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "db",
            ":80",
            "db:0",
            "db:65536",
            "fd00::1:22",
            "[fd00::1:22",
            "-x:1",
            "a b:1",
            "[db]x:1",
            "*:1",
        ] {
            assert!(text.parse::<Target>().is_err(), "{text}");
        }
        assert_eq!(Target::new("db", 70_000), None);
        assert_eq!(Target::new(&"x".repeat(300), 7), None);
    }

    #[test]
    fn greetings_name_targets() {
        assert_eq!(target_of(&greeting(7)), Some(7));
        assert_eq!(target_of(b"other"), None);
    }
}
