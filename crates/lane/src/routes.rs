//! Which interface the host's routing sends packets out of, as the kernel reports it (rtnetlink): the answer of
//! `ip route get TO from FROM`.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use rustix::net::{netdevice, recv, send, socket_with};

const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
const NLMSG_ERROR: u16 = 2;
/// The route itself is asked for, and none is made up. Kernels before 4.13 ignore it.
const RTM_F_FIB_MATCH: u32 = 0x2000;
const NLM_F_REQUEST: u16 = 1;
const RTA_DST: u16 = 1;
const RTA_SRC: u16 = 2;
const RTA_OIF: u16 = 4;
/// Bytes of the header of a netlink message, and of what follows where it is about a route.
const HEADER_LEN: usize = 16;
const ROUTE_LEN: usize = 12;

/// The kernel answers at once.
const PATIENCE: Timespec = Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};

/// Name of the interface by which packets from this host's address `from` to `to` leave.
///
/// # Errors
/// What the system says, such as that there is no route.
pub fn interface_toward(from: IpAddr, to: IpAddr) -> io::Result<String> {
    let socket = open()?;
    let index = outgoing(&ask(&socket, &question(from, to, None))?)?;
    name(&socket, index)
}

/// Whether a route leads from this host's address `from` to `to` by this interface, also where routing prefers another.
///
/// # Errors
/// What the system says, such as that there is no such interface.
pub fn leads_by(interface: &str, from: IpAddr, to: IpAddr) -> io::Result<bool> {
    let socket = open()?;
    let index = netdevice::name_to_index(socket.as_fd(), interface)?;
    let answer = ask(&socket, &question(from, to, Some(index)))?;
    match kind(&answer) {
        Some(RTM_NEWROUTE) => Ok(true),
        Some(NLMSG_ERROR) => Ok(false),
        _ => Err(odd()),
    }
}

fn open() -> io::Result<OwnedFd> {
    let made = socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        // Protocol 0 of netlink: routes, links and addresses.
        None,
    );
    Ok(made?)
}

fn ask(socket: &OwnedFd, question: &[u8]) -> io::Result<Vec<u8>> {
    send(socket, question, SendFlags::empty())?;
    let mut wanted = [PollFd::new(socket, PollFlags::IN)];
    if poll(&mut wanted, Some(&PATIENCE))? == 0 {
        return Err(io::ErrorKind::TimedOut.into());
    }
    let mut answer = vec![0; 4096];
    let (count, _) = recv(socket, &mut answer[..], RecvFlags::empty())?;
    answer.truncate(count);
    Ok(answer)
}

fn odd() -> io::Error {
    io::ErrorKind::InvalidData.into()
}

/// Kind of a netlink message.
fn kind(message: &[u8]) -> Option<u16> {
    let two = message.get(4..6)?;
    Some(u16::from_ne_bytes([two[0], two[1]]))
}

fn name(socket: &OwnedFd, index: u32) -> io::Result<String> {
    Ok(netdevice::index_to_name(socket.as_fd(), index)?)
}

/// * `by`: number of the only interface that counts. Without [`RTM_F_FIB_MATCH`] the kernel would take any address for one that is on the
///   network of that interface.
fn question(from: IpAddr, to: IpAddr, by: Option<u32>) -> Vec<u8> {
    let (family, bits) = match to {
        IpAddr::V4(_) => (AddressFamily::INET, 32_u8),
        IpAddr::V6(_) => (AddressFamily::INET6, 128),
    };
    let mut out = vec![0; HEADER_LEN + ROUTE_LEN];
    out[4..6].copy_from_slice(&RTM_GETROUTE.to_ne_bytes());
    out[6..8].copy_from_slice(&NLM_F_REQUEST.to_ne_bytes());
    // Families of sockets are below 256.
    out[HEADER_LEN] = family.as_raw() as u8;
    (out[HEADER_LEN + 1], out[HEADER_LEN + 2]) = (bits, bits);
    for (kind, address) in [(RTA_DST, to), (RTA_SRC, from)] {
        let octets = match address {
            IpAddr::V4(address) => address.octets().to_vec(),
            IpAddr::V6(address) => address.octets().to_vec(),
        };
        out.extend((4 + octets.len() as u16).to_ne_bytes());
        out.extend(kind.to_ne_bytes());
        out.extend(octets);
    }
    if let Some(by) = by {
        out[HEADER_LEN + 8..HEADER_LEN + 12].copy_from_slice(&RTM_F_FIB_MATCH.to_ne_bytes());
        out.extend(8_u16.to_ne_bytes());
        out.extend(RTA_OIF.to_ne_bytes());
        out.extend(by.to_ne_bytes());
    }
    let length = out.len() as u32;
    out[..4].copy_from_slice(&length.to_ne_bytes());
    out
}

/// Number of the interface in the kernel's answer.
fn outgoing(answer: &[u8]) -> io::Result<u32> {
    let short = |at: usize| {
        let two = answer.get(at..at + 2)?;
        Some(u16::from_ne_bytes([two[0], two[1]]))
    };
    let long = |at: usize| {
        let four = answer.get(at..at + 4)?;
        Some([four[0], four[1], four[2], four[3]])
    };
    if short(4) != Some(RTM_NEWROUTE) {
        let code = long(HEADER_LEN).map(i32::from_ne_bytes).ok_or_else(odd)?;
        return Err(io::Error::from_raw_os_error(code.saturating_neg()));
    }
    let mut at = HEADER_LEN + ROUTE_LEN;
    while let (Some(length), Some(kind)) = (short(at), short(at + 2)) {
        if kind == RTA_OIF {
            return long(at + 4).map(u32::from_ne_bytes).ok_or_else(odd);
        }
        // Attributes begin at multiples of 4; one of no length would never end.
        at += usize::from(length.max(4)).next_multiple_of(4);
    }
    Err(odd())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What this host sends to itself takes its loopback interface; what has no route says so.
    #[test]
    fn the_kernel_is_asked() {
        let own: IpAddr = "127.0.0.1".parse().unwrap();
        let other = "127.0.0.2".parse().unwrap();
        assert_eq!(interface_toward(own, other).unwrap(), "lo");
        let none = "0.0.0.0".parse().unwrap();
        assert!(interface_toward("192.0.2.77".parse().unwrap(), none).is_err());
    }

    /// What only other interfaces lead to is not said to be on the network of this one.
    #[test]
    fn loopback_leads_to_this_host_alone() {
        let own: IpAddr = "127.0.0.1".parse().unwrap();
        let other = "127.0.0.2".parse().unwrap();
        assert!(leads_by("lo", own, other).unwrap());
        assert!(!leads_by("lo", own, "192.0.2.1".parse().unwrap()).unwrap());
        assert!(leads_by("none-such", own, other).is_err());
    }

    /// Answers that are cut off, or odd, are refused.
    #[test]
    fn odd_answers_are_refused() {
        let mut answer = vec![0; HEADER_LEN + ROUTE_LEN];
        answer[4..6].copy_from_slice(&RTM_NEWROUTE.to_ne_bytes());
        assert!(outgoing(&answer).is_err(), "no interface");
        answer.extend([0; 4]);
        assert!(outgoing(&answer).is_err(), "an attribute without length");
        answer.extend(8_u16.to_ne_bytes());
        answer.extend(RTA_OIF.to_ne_bytes());
        assert!(outgoing(&answer).is_err(), "cut off");
        answer.extend(7_u32.to_ne_bytes());
        assert_eq!(outgoing(&answer).unwrap(), 7);
        assert!(outgoing(&[]).is_err());
    }
}
