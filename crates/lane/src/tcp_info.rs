//! What the kernel knows of a TCP connection.

use std::os::fd::AsFd;

use ropewalk_sockopt::get_bytes;

/// Where the kernel's `tcp_info` has what is read here: retransmissions of the oldest unacknowledged segment, size of
/// segments sent, number of unacknowledged ones, smoothed round trip, window, segments sent again, and bytes acknowledged
/// and received. The last two are there since Linux 4.1; the C library's own structure ends before them. All segments
/// sent and received came with 4.2. Bytes not yet sent, least round trip
/// and data segments sent came with 4.6, times spent sending and waiting for a window with 4.10, the peer's window with 5.4.
const RETRANSMITS_AT: usize = 2;
const SEGMENT_AT: usize = 16;
const UNACKED_AT: usize = 24;
const RTT_AT: usize = 68;
const WINDOW_AT: usize = 80;
const REPEATED_AT: usize = 100;
const BYTES_ACKED_AT: usize = 120;
const BYTES_RECEIVED_AT: usize = 128;
const SEGMENTS_OUT_AT: usize = 136;
const SEGMENTS_IN_AT: usize = 140;
const UNSENT_AT: usize = 144;
const RTT_MIN_AT: usize = 148;
const DATA_SEGMENTS_AT: usize = 156;
const BUSY_AT: usize = 168;
const WINDOW_LIMITED_AT: usize = 176;
const BUFFER_LIMITED_AT: usize = 184;
const PEER_WINDOW_AT: usize = 228;

/// Counters of one connection, exact to the segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpInfo {
    /// Bytes that the peer has acknowledged.
    pub bytes_acknowledged: u64,
    /// Bytes received, read or not.
    pub bytes_received: u64,
    /// Segments sent and not acknowledged.
    pub unacknowledged: u32,
    /// How often the oldest of them has been sent again.
    pub retransmits: u8,
    /// Payload of a full segment sent.
    pub segment_bytes: u32,
    /// Smoothed round trip in microseconds.
    pub rtt_microseconds: u32,
    /// Least round trip in microseconds; 0 where the kernel does not say.
    pub rtt_microseconds_min: u32,
    /// Congestion window in segments.
    pub window: u32,
    /// Data segments sent, repeated ones included; 0 where the kernel does not say.
    pub segments: u32,
    /// Segments sent again.
    pub repeated: u32,
    /// All segments sent, those without data included; 0 where the kernel does not say.
    pub packets_out: u32,
    /// All segments received, likewise.
    pub packets_in: u32,
    /// Bytes that may be on their way at once, where a window or buffer of the hosts was the limit for more than half of the
    /// time with something to send; 0 where it was not, or the kernel does not say.
    pub limited_to: u64,
    /// Bytes that wait in the socket's buffer and were not sent yet; 0 where the kernel does not say.
    pub unsent_bytes: u32,
}

impl TcpInfo {
    /// As of now; `None` for sockets that are not TCP, and for kernels before 4.1. Costs a system call.
    #[must_use]
    pub fn of(socket: impl AsFd) -> Option<Self> {
        let mut info = [0_u8; PEER_WINDOW_AT + 4];
        let length = get_bytes(socket, libc::IPPROTO_TCP, libc::TCP_INFO, &mut info).ok()?;
        if length < BYTES_RECEIVED_AT + 8 {
            return None;
        }
        let long = |at: usize| u64::from_ne_bytes(std::array::from_fn(|i| info[at + i]));
        let short = |at: usize| u32::from_ne_bytes(std::array::from_fn(|i| info[at + i]));
        let on_the_way = u64::from(short(UNACKED_AT)) * u64::from(short(SEGMENT_AT));
        let (by_window, by_buffer) = (long(WINDOW_LIMITED_AT), long(BUFFER_LIMITED_AT));
        let limited_to = match (by_window + by_buffer) * 2 > long(BUSY_AT) {
            true if by_window > by_buffer => on_the_way.max(short(PEER_WINDOW_AT).into()),
            true => on_the_way,
            false => 0,
        };
        Some(Self {
            bytes_acknowledged: long(BYTES_ACKED_AT),
            bytes_received: long(BYTES_RECEIVED_AT),
            unacknowledged: short(UNACKED_AT),
            retransmits: info[RETRANSMITS_AT],
            segment_bytes: short(SEGMENT_AT),
            rtt_microseconds: short(RTT_AT),
            rtt_microseconds_min: short(RTT_MIN_AT),
            window: short(WINDOW_AT),
            segments: short(DATA_SEGMENTS_AT),
            repeated: short(REPEATED_AT),
            packets_out: short(SEGMENTS_OUT_AT),
            packets_in: short(SEGMENTS_IN_AT),
            limited_to,
            unsent_bytes: short(UNSENT_AT),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Write as _};
    use std::net::{Ipv4Addr, TcpListener, TcpStream};
    use std::time::{Duration, Instant};

    use super::*;

    /// A peer that reads nothing limits the stream to its buffer, and the kernel says so.
    #[test]
    fn windows_that_limit_are_told() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (peer, _) = listener.accept().unwrap();
        assert_eq!(TcpInfo::of(&stream).unwrap().limited_to, 0);
        stream.set_nonblocking(true).unwrap();
        let mut sent = 0;
        let deadline = Instant::now() + Duration::from_secs(30);
        let told = loop {
            match stream.write(&[0; 4096]) {
                Ok(count) => sent += count as u64,
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
            let info = TcpInfo::of(&stream).unwrap();
            // What is on its way is none while all has been acknowledged.
            if info.limited_to > 0 {
                break info.limited_to;
            }
            assert!(Instant::now() < deadline, "{info:?} after {sent} bytes");
        };
        assert!(told <= 2 * sent.max(1 << 20), "{told} of {sent}");
        // More was written than the peer's window lets through.
        while stream.write(&[0; 4096]).is_ok() {}
        let unsent = TcpInfo::of(&stream).unwrap().unsent_bytes;
        assert!(unsent > 0, "{unsent} of {sent}");
        drop(peer);
    }
}
