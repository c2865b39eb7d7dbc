//! Where a receiver listens: a host by name or number, or a Unix socket by path or abstract name.

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs as _};
use std::path::PathBuf;
use std::str::FromStr;

use socket2::SockAddr;

/// A host or a Unix socket, as it is written on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A name, or an IPv4 or IPv6 address without brackets.
    Host(String),
    /// A Unix socket in the file system.
    Path(PathBuf),
    /// A Unix socket with an abstract name, which goes with its process.
    Abstract(String),
}

/// What is wrong with a text that should be an address.
#[derive(Debug, thiserror::Error)]
#[error("{text}: {why}")]
pub struct AddressError {
    text: String,
    why: &'static str,
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let wrong = |why| {
            Err(AddressError {
                text: text.into(),
                why,
            })
        };
        if let Some(place) = text.strip_prefix("unix:") {
            return match place.strip_prefix('@') {
                Some("") => wrong("write unix:@NAME"),
                Some(name) => Ok(Self::Abstract(name.into())),
                None if place.is_empty() => wrong("write unix:PATH or unix:@NAME"),
                None => Ok(Self::Path(place.into())),
            };
        }
        if let Some(inner) = text.strip_prefix('[') {
            return match inner.strip_suffix(']') {
                Some(inner) if inner.contains(':') => Ok(Self::Host(inner.into())),
                _ => wrong("write an IPv6 address between the brackets, and the port after -p"),
            };
        }
        match text.matches(':').count() {
            0 if text.is_empty() => wrong("write a name or an address"),
            1 => wrong("give the port after -p"),
            _ => Ok(Self::Host(text.into())),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host(host) => f.write_str(host),
            Self::Path(path) => write!(f, "unix:{}", path.display()),
            Self::Abstract(name) => write!(f, "unix:@{name}"),
        }
    }
}

/// One socket that is listened on, or connected to.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) address: SockAddr,
    pub(crate) name: String,
    /// File that listening makes.
    pub(crate) path: Option<PathBuf>,
}

impl Place {
    pub(crate) fn inet(address: SocketAddr) -> Self {
        Self {
            address: address.into(),
            name: address.to_string(),
            path: None,
        }
    }
}

/// The places of each port in turn, where any address of the machine will do: IPv6 takes IPv4 along, and machines
/// without IPv6 have the second way.
pub(crate) fn everywhere(port: u16, ports: u32) -> [Vec<Place>; 2] {
    let wild = [
        SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)),
        SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)),
    ];
    wild.map(|first| each_port(first, ports))
}

/// The same address at `ports` consecutive ports; the caller has seen to it that they exist.
fn each_port(first: SocketAddr, ports: u32) -> Vec<Place> {
    let at = |offset: u32| {
        let mut address = first;
        address.set_port(first.port().wrapping_add(offset as u16));
        Place::inet(address)
    };
    (0..ports).map(at).collect()
}

impl Address {
    /// Whether it names a Unix socket.
    pub fn is_unix(&self) -> bool {
        !matches!(self, Self::Host(_))
    }

    /// The ways to reach the address, best first; each has a place for every port.
    ///
    /// Several ports of a Unix socket are told apart by the port at the end of the name.
    ///
    /// # Errors
    /// The name is unknown, or the path too long.
    pub(crate) fn ways(&self, port: u16, ports: u32) -> io::Result<Vec<Vec<Place>>> {
        if let Self::Host(host) = self {
            let found = (host.as_str(), port).to_socket_addrs()?;
            return Ok(found.map(|address| each_port(address, ports)).collect());
        }
        let suffix = |offset: u32| match ports {
            1 => String::new(),
            _ => format!(".{}", u32::from(port) + offset),
        };
        let place = |offset: u32| {
            let name = format!("{self}{}", suffix(offset));
            let path = match self {
                Self::Path(path) => {
                    let mut path = path.clone().into_os_string();
                    path.push(suffix(offset));
                    Some(PathBuf::from(path))
                }
                _ => None,
            };
            let address = match (&path, self) {
                (Some(path), _) => SockAddr::unix(path)?,
                (None, Self::Abstract(name)) => {
                    SockAddr::unix(format!("\0{name}{}", suffix(offset)))?
                }
                (None, _) => return Err(io::ErrorKind::InvalidInput.into()),
            };
            Ok(Place {
                address,
                name,
                path,
            })
        };
        let places: io::Result<Vec<Place>> = (0..ports).map(place).collect();
        Ok(vec![places?])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every form is read, and shown as it was written, save for brackets.
    #[test]
    fn forms() {
        for (text, expected) in [
            ("host", Address::Host("host".into())),
            ("10.0.0.1", Address::Host("10.0.0.1".into())),
            ("::1", Address::Host("::1".into())),
            ("[fe80::1%eth0]", Address::Host("fe80::1%eth0".into())),
            ("unix:/tmp/s", Address::Path("/tmp/s".into())),
            ("unix:@s", Address::Abstract("s".into())),
        ] {
            let address: Address = text.parse().unwrap();
            assert_eq!(address, expected, "{text}");
            assert_eq!(address.to_string(), text.trim_matches(['[', ']']));
        }
        for (text, why) in [
            ("", "name"),
            ("host:10007", "-p"),
            ("[::1]:10007", "-p"),
            ("[host]", "IPv6"),
            ("unix:", "unix:PATH"),
            ("unix:@", "unix:@NAME"),
        ] {
            let error = text.parse::<Address>().unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    /// Ports follow each other; Unix names carry them only when there are several.
    #[test]
    fn ports() {
        let names = |text: &str, ports: u32| -> Vec<String> {
            let address: Address = text.parse().unwrap();
            let ways = address.ways(10007, ports).unwrap();
            ways[0].iter().map(|place| place.name.clone()).collect()
        };
        assert_eq!(
            names("127.0.0.1", 2),
            ["127.0.0.1:10007", "127.0.0.1:10008"]
        );
        assert_eq!(names("::1", 1), ["[::1]:10007"]);
        assert_eq!(names("unix:@s", 1), ["unix:@s"]);
        assert_eq!(
            names("unix:/tmp/s", 2),
            ["unix:/tmp/s.10007", "unix:/tmp/s.10008"]
        );
        let long = format!("unix:/{}", "x".repeat(200));
        let long: Address = long.parse().unwrap();
        assert!(long.ways(1, 1).is_err(), "longer than the system allows");
    }
}
