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
    /// A host that programs it is handed to would take for an option, or for two words.
    #[error(
        "\"{0}\" is not a host; names have letters, digits and . _ - : % only, and do not begin with a dash"
    )]
    BadHost(String),
    /// An IPv6 address without brackets.
    #[error("\"{0}\" has several colons; write IPv6 addresses in brackets, as in [::1]:5555")]
    Unbracketed(String),
    /// A bracketed address that is not IPv6, or a bracket out of place.
    #[error(
        "\"{0}\" is not an address; IPv6 addresses look like [::1]:5555, host lists are not allowed here"
    )]
    BadBrackets(String),
}

/// Whether a text, perhaps with a user before an `@`, can be handed to ssh and resolvers as a host's name: a dash at its
/// beginning would make it an option, which may name a program to run, and a shell that ssh's own configuration runs with the
/// name in it would take other letters for its own.
#[must_use]
pub fn is_host(text: &str) -> bool {
    let is_part = |part: &str| {
        !part.is_empty()
            && !part.starts_with('-')
            && part.chars().all(|c| match c.is_ascii() {
                true => c.is_ascii_alphanumeric() || "._-:%".contains(c),
                false => !c.is_whitespace() && !c.is_control(),
            })
    };
    match text.rsplit_once('@') {
        Some((user, name)) => is_part(user) && is_part(name),
        None => is_part(text),
    }
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
        if !is_host(host) {
            return Err(AddressError::BadHost(host.to_owned()));
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

#[cfg(test)]
mod tests {
    use super::*;

    /// What ssh would take for an option is no host, nor are two words.
    #[test]
    fn hosts_are_no_options() {
        for text in [
            "-oProxyCommand=touch${IFS}/tmp/x:22",
            "a b:1",
            "a\n:1",
            "u@-x:1",
            "-u@x:1",
            "@x:1",
            "`touch${IFS}x`:1",
            "a;b:1",
            "a|b:1",
            "a&b:1",
            "a'b:1",
            "a\"b:1",
            "$x@y:1",
        ] {
            let error = text.parse::<HostPort>().unwrap_err();
            assert!(matches!(error, AddressError::BadHost(_)), "{text}: {error}");
        }
        for text in ["a-b_c.d:1", "[fe80::1%eth0]:1", "u@x:1", "é:1"] {
            assert!(text.parse::<HostPort>().is_ok(), "{text}");
        }
        assert!(!is_host("") && is_host("user@host"));
    }
}
