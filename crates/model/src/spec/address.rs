//! Host and port of an agent.

use std::fmt;
use std::str::FromStr;

/// Where an agent listens.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostPort {
    /// Name or address; an IPv6 address without its brackets.
    pub host: String,
    /// TCP port; not 0 when parsed.
    pub port: u16,
}

/// Why an address could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AddressError {
    /// No port.
    #[error("\"{0}\" has no port; write host:port")]
    NoPort(String),
    /// The port is not a number between 1 and 65535.
    #[error("\"{0}\" is not a port; ports are 1 to 65535")]
    BadPort(String),
    /// No host before the port.
    #[error("\"{0}\" has no host before the port; write host:port")]
    NoHost(String),
    /// An IPv6 address without brackets.
    #[error("\"{0}\" has several colons; write IPv6 addresses in brackets, as in [::1]:5555")]
    Unbracketed(String),
    /// A bracketed address that is not IPv6, or a bracket out of place.
    #[error(
        "\"{0}\" is not an address; IPv6 addresses look like [::1]:5555, host lists are not allowed here"
    )]
    BadBrackets(String),
}

impl FromStr for HostPort {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let owned = || text.to_owned();
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (host, port) = rest
                    .split_once(']')
                    .ok_or_else(|| AddressError::BadBrackets(owned()))?;
                // A zone such as %eth0 is kept; what is before it must be an address.
                let address = host.split('%').next().unwrap_or(host);
                if address.parse::<core::net::Ipv6Addr>().is_err() {
                    return Err(AddressError::BadBrackets(owned()));
                }
                let port = port.strip_prefix(':');
                (host, port.ok_or_else(|| AddressError::NoPort(owned()))?)
            }
            None => {
                let (host, port) = text
                    .rsplit_once(':')
                    .ok_or_else(|| AddressError::NoPort(owned()))?;
                if host.contains(':') {
                    return Err(AddressError::Unbracketed(owned()));
                }
                if host.contains(['[', ']']) {
                    return Err(AddressError::BadBrackets(owned()));
                }
                (host, port)
            }
        };
        if host.is_empty() {
            return Err(AddressError::NoHost(owned()));
        }
        let digits = port.bytes().all(|b| b.is_ascii_digit());
        match port.parse() {
            Ok(port) if port > 0 && digits => Ok(Self {
                host: host.to_owned(),
                port,
            }),
            _ => Err(AddressError::BadPort(port.to_owned())),
        }
    }
}

/// `host:port`, with brackets around an IPv6 address.
impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}
