//! What agents that one launcher starts on many nodes (`srun`, `mpirun`) are given, and what each says of itself. Lines of text:
//! a launcher passes the same standard input to all of them, and joins what they print line by line.
//!
//! ```text
//!  input     secret                                  the same for all
//!            number of lines
//!            at node1                                for the agents of these seats ...
//!            at node2
//!            ro 2f64617461                           ... what they may touch
//!            at node3
//!            ...
//!  output    ROPEWALK-LAUNCHED node1 0.1.0 ready 40123 10.0.0.1,fd00::1
//!            ROPEWALK-LAUNCHED node3 0.1.0 refused final 6e6f2073756368
//! ```
//!
//! A **seat** names one agent of a launch: the name of its node as Slurm has it, or its number.

use std::fmt::Write as _;
use std::net::IpAddr;

use crate::version::version;

/// First word of the line an agent prints.
const WORD: &str = "ROPEWALK-LAUNCHED";

/// What begins a line that names a seat.
const AT: &str = "at ";

/// Addresses that an agent names at most: more interfaces lead to no other network.
pub const ADDRESSES_MAX: usize = 16;

/// Longest reason of an agent, in bytes.
const REASON_MAX: usize = 2048;

/// What an agent says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announcement {
    /// Which one it is.
    pub seat: String,
    /// What it says.
    pub said: Said,
}

/// What a launched agent says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    /// It listens.
    Ready {
        /// Its TCP port.
        port: u16,
        /// Addresses of its host, for a master that cannot resolve the name of the node; at most [`ADDRESSES_MAX`].
        addresses: Vec<IpAddr>,
    },
    /// It serves nothing, and has ended.
    Refused {
        /// What it is to serve is not there, or is nothing that it may serve.
        is_final: bool,
        /// Why, in words.
        reason: String,
    },
    /// It is an agent of another version, which this one names.
    OtherVersion(String),
}

impl Announcement {
    /// The line, without its end.
    #[must_use]
    pub fn format(&self) -> String {
        let mut line = format!("{WORD} {} ", self.seat);
        match &self.said {
            Said::Ready { port, addresses } => {
                let _ = write!(line, "{} ready {port} ", version());
                for (at, address) in addresses.iter().take(ADDRESSES_MAX).enumerate() {
                    let comma = if at > 0 { "," } else { "" };
                    let _ = write!(line, "{comma}{address}");
                }
            }
            Said::Refused { is_final, reason } => {
                let kind = if *is_final { "final" } else { "passing" };
                let _ = write!(line, "{} refused {kind} ", version());
                for byte in reason.bytes().take(REASON_MAX) {
                    let _ = write!(line, "{byte:02x}");
                }
            }
            Said::OtherVersion(theirs) => line.push_str(theirs),
        }
        line
    }

    /// From a line that a launcher prints, which may have put the number of the task before it. `None` for other lines.
    #[must_use]
    pub fn parse(line: &str) -> Option<Self> {
        let (_, rest) = line.split_once(WORD)?;
        let mut words = rest.split_whitespace();
        let seat = words.next()?.to_owned();
        let theirs = words.next()?;
        if theirs != version() {
            let said = Said::OtherVersion(theirs.to_owned());
            return Some(Self { seat, said });
        }
        let said = match (words.next()?, words.next()?, words.next().unwrap_or("")) {
            ("ready", port, addresses) => Said::Ready {
                port: port.parse().ok().filter(|port| *port > 0)?,
                addresses: addresses
                    .split(',')
                    .filter_map(|address| address.parse().ok())
                    .take(ADDRESSES_MAX)
                    .collect(),
            },
            ("refused", kind, reason) => Said::Refused {
                is_final: kind == "final",
                reason: text_of(reason)?,
            },
            _ => return None,
        };
        Some(Self { seat, said })
    }
}

/// Text from hexadecimal digits, as far as it may be long.
fn text_of(digits: &str) -> Option<String> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let mut bytes = Vec::new();
    for pair in digits.as_bytes().chunks(2).take(REASON_MAX) {
        let [high, low] = pair else { return None };
        bytes.push((digit(*high)? * 16 + digit(*low)?) as u8);
    }
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// The lines for all seats; seats with the same lines share them.
#[must_use]
pub fn format_lines(seats: &[(String, Vec<String>)]) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let mut groups: Vec<(&Vec<String>, Vec<&str>)> = Vec::new();
    let mut known = std::collections::BTreeMap::new();
    for (seat, own) in seats {
        let at = *known.entry(own).or_insert(groups.len());
        if at == groups.len() {
            groups.push((own, Vec::new()));
        }
        groups[at].1.push(seat);
    }
    // Seats without lines come last: those of the next group would be theirs.
    groups.sort_by_key(|(own, _)| own.is_empty());
    for (own, seats) in groups {
        lines.extend(seats.iter().map(|seat| format!("{AT}{seat}")));
        lines.extend(own.iter().cloned());
    }
    lines
}

/// The lines of one seat; `None` where it is not named.
#[must_use]
pub fn own_lines(lines: &[String], seat: &str) -> Option<Vec<String>> {
    let (mut is_named, mut is_meant, mut names_seats) = (false, false, false);
    let mut own = Vec::new();
    for line in lines {
        match line.strip_prefix(AT) {
            Some(named) => {
                // A new group begins.
                is_meant = names_seats && is_meant || named == seat;
                is_named |= is_meant;
                names_seats = true;
            }
            None => {
                names_seats = false;
                if is_meant {
                    own.push(line.clone());
                }
            }
        }
    }
    is_named.then_some(own)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    /// What an agent prints is read, also with the number of its task before it; other lines are none of it.
    #[test]
    fn announcements_are_read() {
        let ready = Announcement {
            seat: "node1".into(),
            said: Said::Ready {
                port: 40_123,
                addresses: vec!["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()],
            },
        };
        let line = ready.format();
        let golden = format!(
            "ROPEWALK-LAUNCHED node1 {} ready 40123 10.0.0.1,fd00::1",
            version()
        );
        assert_eq!(line, golden);
        assert_eq!(Announcement::parse(&line), Some(ready.clone()));
        assert_eq!(Announcement::parse(&format!("17: {line}\n")), Some(ready));
        let refused = Announcement {
            seat: "3".into(),
            said: Said::Refused {
                is_final: true,
                reason: "no such file: a\nb".into(),
            },
        };
        assert!(!refused.format().contains('\n'));
        assert_eq!(Announcement::parse(&refused.format()), Some(refused));
        let silent = Announcement {
            seat: "0".into(),
            said: Said::Ready {
                port: 1,
                addresses: Vec::new(),
            },
        };
        assert_eq!(Announcement::parse(&silent.format()), Some(silent));
        let old = Announcement::parse("ROPEWALK-LAUNCHED n 0.0.9 whatever").unwrap();
        assert_eq!(old.said, Said::OtherVersion("0.0.9".into()));
        let own = version();
        for other in [
            "motd".to_owned(),
            "ROPEWALK-LAUNCHED".into(),
            format!("ROPEWALK-LAUNCHED n {own} ready"),
            format!("ROPEWALK-LAUNCHED n {own} ready 0 "),
            format!("ROPEWALK-LAUNCHED n {own} ready 65536 "),
            format!("ROPEWALK-LAUNCHED n {own} refused final abc"),
        ] {
            assert_eq!(Announcement::parse(&other), None, "{other}");
        }
    }

    /// Each seat gets its own lines, and equal ones are sent once.
    #[test]
    fn seats_share_lines() {
        let (read, written) = (lines(&["ro 2f61"]), lines(&["in 2f62", "rw 2f"]));
        let seats = [
            ("node1".to_owned(), written.clone()),
            ("node2".to_owned(), read.clone()),
            ("node3".to_owned(), written.clone()),
            ("node4".to_owned(), Vec::new()),
        ];
        let all = format_lines(&seats);
        let golden = [
            "at node1", "at node3", "in 2f62", "rw 2f", "at node2", "ro 2f61", "at node4",
        ];
        assert_eq!(all, golden);
        for (seat, own) in &seats {
            assert_eq!(own_lines(&all, seat).as_ref(), Some(own), "{seat}");
        }
        assert_eq!(own_lines(&all, "node"), None);
        assert_eq!(own_lines(&[], "node1"), None);
    }

    /// Groups without lines of their own do not take those of the next one.
    #[test]
    fn seats_without_lines_have_none() {
        let seats = [
            ("a".to_owned(), lines(&["ro 61"])),
            ("b".to_owned(), Vec::new()),
            ("c".to_owned(), lines(&["ro 63"])),
        ];
        let all = format_lines(&seats);
        for (seat, own) in &seats {
            assert_eq!(own_lines(&all, seat).as_ref(), Some(own), "{seat}: {all:?}");
        }
    }
}
