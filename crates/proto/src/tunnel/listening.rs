//! What an operator lets tunnels listen on.

use std::fmt;
use std::str::FromStr;

use super::{is_host, split};

/// Stands for all addresses of a host, or for any port.
const ANY: &str = "*";
/// Where a tunnel listens that names no address: programs of that host alone can connect.
const LOOPBACK: &str = "localhost";

/// Where a tunnel listens on a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bind {
    /// Name or address of the host, without brackets; `localhost`, `*` for all addresses.
    pub host: String,
    /// Port; 0 lets the system choose.
    pub port: u16,
}

impl Bind {
    /// Where a peer asks to listen; an empty host is `*`. `None` for what is no host or port.
    #[must_use]
    pub fn new(host: &str, port: u32) -> Option<Self> {
        let host = if host.is_empty() { ANY } else { host };
        let port = u16::try_from(port).ok()?;
        (host == ANY || is_host(host)).then(|| Self {
            host: host.to_owned(),
            port,
        })
    }

    /// Port of loopback alone.
    #[must_use]
    pub fn loopback(port: u16) -> Self {
        Self {
            host: LOOPBACK.to_owned(),
            port,
        }
    }
}

impl fmt::Display for Bind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

/// Where an agent listens for tunnels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listening {
    /// Where its user could listen: its master has the user's login there.
    Anything,
    /// Where one of these rules says.
    Only(Vec<ListenRule>),
}

/// One rule, `[BIND:]PORT`; `*` in place of either means any. Without BIND it is `localhost`.
///
/// Addresses are compared as they are written, without case. A rule for an address does not permit to listen on all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenRule {
    host: Option<String>,
    port: Option<u16>,
}

/// A text that is no rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no [BIND:]PORT; * in place of one means any, ports are 1 to 65535, and an IPv6 address needs brackets"
)]
pub struct ListenRuleError(String);

impl FromStr for ListenRule {
    type Err = ListenRuleError;

    fn from_str(text: &str) -> Result<Self, ListenRuleError> {
        let read = || {
            let (host, port) = match text.contains(':') {
                true => split(text)?,
                false => (LOOPBACK, text),
            };
            let port = match port {
                ANY => None,
                port => Some(port.parse().ok().filter(|port| *port > 0)?),
            };
            let host = match host {
                ANY => None,
                host => Some(is_host(host).then(|| host.to_owned())?),
            };
            Some(Self { host, port })
        };
        read().ok_or_else(|| ListenRuleError(text.to_owned()))
    }
}

impl ListenRule {
    fn permits(&self, bind: &Bind) -> bool {
        let host = self.host.as_ref();
        host.is_none_or(|host| host.eq_ignore_ascii_case(&bind.host))
            && self.port.is_none_or(|port| port == bind.port)
    }
}

impl Listening {
    /// Nowhere.
    #[must_use]
    pub fn nowhere() -> Self {
        Self::Only(Vec::new())
    }

    /// Whether a tunnel may listen there.
    #[must_use]
    pub fn permits(&self, bind: &Bind) -> bool {
        match self {
            Self::Anything => true,
            Self::Only(rules) => rules.iter().any(|rule| rule.permits(bind)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each part is compared; a port that the system chooses needs a rule for all, and all addresses one for any.
    #[test]
    fn rules_name_what_they_permit() {
        let permits = |rules: &[&str], host: &str, port: u32| {
            let rules = rules.iter().map(|rule| rule.parse().unwrap()).collect();
            Listening::Only(rules).permits(&Bind::new(host, port).unwrap())
        };
        assert!(permits(&["8080"], "LOCALHOST", 8080));
        assert!(permits(&["x:1", "*"], "localhost", 0));
        assert!(permits(&["*:8080"], "", 8080));
        assert!(permits(&["[fd00::1]:*"], "fd00::1", 9));
        for (rule, host, port) in [
            ("8080", "localhost", 8081),
            ("8080", "*", 8080),
            ("8080", "127.0.0.1", 8080),
            ("8080", "localhost", 0),
            ("10.0.0.1:8080", "", 8080),
            ("*:80", "localhost", 8080),
        ] {
            assert!(!permits(&[rule], host, port), "{rule} {host} {port}");
        }
        assert!(!permits(&[], "localhost", 8080));
        assert!(Listening::Anything.permits(&Bind::loopback(0)));
        assert!(!Listening::nowhere().permits(&Bind::loopback(0)));
        for text in [
            "",
            "0",
            "x",
            "x:0",
            "a b:1",
            ":8080",
            "fd00::1:8080",
            "70000",
            "*:*:*",
        ] {
            assert!(text.parse::<ListenRule>().is_err(), "{text}");
        }
    }

    #[test]
    fn what_a_peer_asks_for_is_checked() {
        assert_eq!(Bind::new("", 7).unwrap().to_string(), "*:7");
        assert_eq!(Bind::new("fd00::1", 7).unwrap().to_string(), "[fd00::1]:7");
        assert_eq!(Bind::new("db", 70_000), None);
        assert_eq!(Bind::new("-db", 7), None);
    }
}
