//! What the two ends of a measurement say to each other.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::num::TryFromIntError;

use ropewalk_message::Mode;

/// Begins the first message of a serving end: what it is, and in which version.
const MAGIC: [u8; 8] = *b"pingpg3\n";

/// Addresses that a serving end may have: as many as a socket has rails.
pub(super) const ADDRESSES_MAX: usize = 64;

/// Plain ports at each address: one for round trips, should it be the first rail's, and one for a part.
pub(super) const PORTS_EACH: usize = 2;

/// Bytes of a plain port: its address, IPv4 mapped to IPv6, and its number.
const PORT_LEN: usize = 18;

/// Bytes of a ticket: whoever has it may use the plain TCP port.
pub(super) const TICKET_LEN: usize = 16;

/// Longest first message that a measuring end takes.
pub(super) const WELCOME_MAX: usize =
    MAGIC.len() + TICKET_LEN + PORT_LEN * PORTS_EACH * ADDRESSES_MAX;

/// Bytes of an order.
pub(super) const ORDER_LEN: usize = 25;

/// Bytes of an order on a plain connection.
pub(super) const PLAIN_LEN: usize = 16;

/// Memory for messages of a size that the peer names. The system gives zeros when they are first written to, so that an
/// order takes as much as its messages bring, and none by itself.
pub(super) fn room(size: u64) -> Result<Vec<u8>, TryFromIntError> {
    Ok(vec![0; usize::try_from(size)?])
}

/// The first message: the ticket for plain TCP, and its ports with the addresses where they are.
pub(super) fn welcome(ports: &[SocketAddr], ticket: [u8; TICKET_LEN]) -> Vec<u8> {
    let mut out = [&MAGIC[..], &ticket].concat();
    for port in ports {
        let address = match port.ip() {
            IpAddr::V4(address) => address.to_ipv6_mapped(),
            IpAddr::V6(address) => address,
        };
        out.extend(address.octets());
        out.extend(port.port().to_le_bytes());
    }
    out
}

/// Reads the first message; `None` when it is something else.
pub(super) fn read_welcome(bytes: &[u8]) -> Option<(Vec<SocketAddr>, [u8; TICKET_LEN])> {
    let rest = bytes.strip_prefix(&MAGIC)?;
    let (ticket, ports) = rest.split_first_chunk::<TICKET_LEN>()?;
    let (ports, odd) = ports.as_chunks::<PORT_LEN>();
    let port = |bytes: &[u8; PORT_LEN]| {
        let address = Ipv6Addr::from(std::array::from_fn::<u8, 16, _>(|at| bytes[at]));
        let number = u16::from_le_bytes([bytes[16], bytes[17]]);
        SocketAddr::new(IpAddr::V6(address).to_canonical(), number)
    };
    let ports: Vec<SocketAddr> = ports.iter().map(port).collect();
    (odd.is_empty() && !ports.is_empty()).then_some((ports, *ticket))
}

/// The place of the first port at an address that a measuring end names, in whatever order it names them; else of one at
/// all addresses of its kind.
pub(super) fn port_at(ports: &[SocketAddr], named: IpAddr) -> Option<usize> {
    let named = named.to_canonical();
    let own = ports.iter().position(|port| port.ip() == named);
    own.or_else(|| {
        ports
            .iter()
            .position(|port| port.ip().is_unspecified() && port.is_ipv4() == named.is_ipv4())
    })
}

/// What comes next on a plain connection: messages of `size` bytes to be sent back until one begins with a 1 where
/// `stream` is 0, else `stream` messages to be taken and answered with one byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PlainOrder {
    pub size: u64,
    pub stream: u64,
}

impl PlainOrder {
    pub(super) fn encode(self) -> [u8; PLAIN_LEN] {
        let mut out = [0; PLAIN_LEN];
        out[..8].copy_from_slice(&self.size.to_le_bytes());
        out[8..].copy_from_slice(&self.stream.to_le_bytes());
        out
    }

    pub(super) fn decode(bytes: &[u8; PLAIN_LEN]) -> Self {
        Self {
            size: long(bytes, 0),
            stream: long(bytes, 8),
        }
    }
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]))
}

/// How what follows is to be answered: rounds, of which the first byte of each says whether it is the last, or a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Order {
    pub mode: Mode,
    pub cut_off: u64,
    pub size: u64,
    /// Messages of a one-way stream; `None` for rounds.
    pub stream: Option<u64>,
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
        out[9..17].copy_from_slice(&self.size.to_le_bytes());
        out[17..].copy_from_slice(&self.stream.unwrap_or(0).to_le_bytes());
        out
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; ORDER_LEN] = bytes.try_into().ok()?;
        Some(Self {
            mode: match bytes[0] {
                1 => Mode::Single,
                2 => Mode::Basic,
                3 => Mode::Enhanced,
                _ => return None,
            },
            cut_off: long(bytes, 1),
            size: long(bytes, 9),
            stream: Some(long(bytes, 17)).filter(|count| *count > 0),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::SIZE_MAX;
    use super::*;

    /// The largest message that may be ordered takes no memory before it comes.
    #[test]
    fn orders_alone_take_no_memory() {
        let resident_pages = || -> u64 {
            let text = std::fs::read_to_string("/proc/self/statm").unwrap();
            text.split(' ').nth(1).unwrap().parse().unwrap()
        };
        let before = resident_pages();
        let room = std::hint::black_box(room(SIZE_MAX).unwrap());
        let more = resident_pages().saturating_sub(before) * 4096;
        assert_eq!(room.len() as u64, SIZE_MAX);
        // Other tests run beside this one.
        assert!(more < SIZE_MAX / 2, "{more} bytes");
    }

    /// What one end says the other reads.
    #[test]
    fn words_round_trip() {
        let text = ["10.0.0.5:7", "[fe80::1]:65535", "0.0.0.0:1", "[::]:2"];
        let ports = text.map(|port| port.parse::<SocketAddr>().unwrap());
        assert_eq!(
            read_welcome(&welcome(&ports, [9; TICKET_LEN])),
            Some((ports.to_vec(), [9; TICKET_LEN]))
        );
        let all = vec![ports[0]; PORTS_EACH * ADDRESSES_MAX];
        assert_eq!(welcome(&all, [9; TICKET_LEN]).len(), WELCOME_MAX);
        let cut = welcome(&ports, [9; TICKET_LEN]);
        assert_eq!(read_welcome(&cut[..cut.len() - 1]), None);
        assert_eq!(read_welcome(&welcome(&[], [9; TICKET_LEN])), None);
        assert_eq!(read_welcome(b"something else"), None);
        for stream in [None, Some(3)] {
            let order = Order {
                mode: Mode::Basic,
                cut_off: u64::MAX,
                size: 1 << 30,
                stream,
            };
            assert_eq!(Order::decode(&order.encode()), Some(order));
        }
        assert_eq!(Order::decode(&[0; ORDER_LEN]), None);
        let plain = PlainOrder { size: 5, stream: 6 };
        assert_eq!(PlainOrder::decode(&plain.encode()), plain);
    }

    /// Ports are found by the address that is named, however it is written, and by none that is not served.
    #[test]
    fn ports_are_found_by_address() {
        let find = |ports: &[&str], named: &str| {
            let ports: Vec<SocketAddr> = ports.iter().map(|port| port.parse().unwrap()).collect();
            port_at(&ports, named.parse().unwrap())
        };
        let two = ["10.0.0.5:1", "10.0.1.5:2", "[fd00::5]:3"];
        assert_eq!(find(&two, "10.0.1.5"), Some(1));
        assert_eq!(find(&two, "::ffff:10.0.1.5"), Some(1));
        assert_eq!(find(&two, "fd00::5"), Some(2));
        assert_eq!(find(&two, "10.0.2.5"), None);
        let all = ["0.0.0.0:1", "10.0.1.5:2", "[::]:3"];
        assert_eq!(find(&all, "10.0.1.5"), Some(1), "its own before all");
        assert_eq!(find(&all, "10.0.2.5"), Some(0));
        assert_eq!(find(&all, "::1"), Some(2));
        assert_eq!(find(&all[1..2], "::1"), None);
    }
}
