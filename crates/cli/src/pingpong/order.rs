//! What the two ends of a measurement say to each other.

use super::Mode;

/// Begins the first message of a serving end: what it is, and in which version.
const MAGIC: [u8; 8] = *b"pingpg1\n";

/// Bytes of a ticket: whoever has it may use the plain TCP port.
pub(super) const TICKET_LEN: usize = 16;

/// Longest first message that a measuring end takes.
pub(super) const WELCOME_MAX: usize = MAGIC.len() + 2 + TICKET_LEN;

/// Bytes of an order.
pub(super) const ORDER_LEN: usize = 17;

/// The first message: port of plain TCP, and the ticket for it.
pub(super) fn welcome(port: u16, ticket: [u8; TICKET_LEN]) -> Vec<u8> {
    [&MAGIC[..], &port.to_le_bytes(), &ticket].concat()
}

/// Reads the first message; `None` when it is something else.
pub(super) fn read_welcome(bytes: &[u8]) -> Option<(u16, [u8; TICKET_LEN])> {
    let rest = bytes.strip_prefix(&MAGIC)?;
    let (port, ticket) = rest.split_first_chunk::<2>()?;
    Some((u16::from_le_bytes(*port), ticket.try_into().ok()?))
}

/// How the rounds that follow are to be answered. The first byte of each says whether it is the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Order {
    pub mode: Mode,
    pub cut_off: u64,
    pub size: u64,
}

impl Order {
    pub(super) fn encode(&self) -> [u8; ORDER_LEN] {
        let mut out = [0; ORDER_LEN];
        out[0] = match self.mode {
            Mode::Single => 1,
            Mode::Basic => 2,
            Mode::Enhanced => 3,
        };
        out[1..9].copy_from_slice(&self.cut_off.to_le_bytes());
        out[9..].copy_from_slice(&self.size.to_le_bytes());
        out
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; ORDER_LEN] = bytes.try_into().ok()?;
        let long = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]));
        Some(Self {
            mode: match bytes[0] {
                1 => Mode::Single,
                2 => Mode::Basic,
                3 => Mode::Enhanced,
                _ => return None,
            },
            cut_off: long(1),
            size: long(9),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What one end says the other reads.
    #[test]
    fn words_round_trip() {
        assert_eq!(
            read_welcome(&welcome(7, [9; TICKET_LEN])),
            Some((7, [9; TICKET_LEN]))
        );
        assert_eq!(read_welcome(b"something else"), None);
        let order = Order {
            mode: Mode::Basic,
            cut_off: u64::MAX,
            size: 1 << 30,
        };
        assert_eq!(Order::decode(&order.encode()), Some(order));
        assert_eq!(Order::decode(&[0; ORDER_LEN]), None);
    }
}
