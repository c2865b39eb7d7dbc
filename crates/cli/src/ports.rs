//! A range of TCP ports, as a firewall lets them through.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use anyhow::{Error, Result, bail};

/// `A-B` or `A`: ports that agents started for a transfer may listen on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ports {
    first: u16,
    last: u16,
}

impl Ports {
    pub fn range(self) -> RangeInclusive<u16> {
        self.first..=self.last
    }
}

impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

impl FromStr for Ports {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let (Ok(first), Ok(last)) = (first.trim().parse(), last.trim().parse()) else {
            bail!("write two TCP ports, for instance 50000-50100");
        };
        if first == 0 || first > last {
            bail!("write the lower port first, from 1 on, for instance 50000-50100");
        }
        Ok(Self { first, last })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two ports in order, or one.
    #[test]
    fn ports_are_read() {
        let read = |text: &str| text.parse::<Ports>().map(|ports| ports.to_string()).ok();
        assert_eq!(read("50000-50100").as_deref(), Some("50000-50100"));
        assert_eq!(read("50000").as_deref(), Some("50000-50000"));
        for wrong in ["", "a-b", "0-5", "9-8", "1-65536", "1-2-3", "-5"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }
}
