//! System calls that no safe crate offers.

use std::os::fd::{AsFd, AsRawFd as _};

use ropewalk_proto::message::Seen;

/// Where the kernel's `tcp_info` has what is read here: retransmissions of the oldest unacknowledged segment, the
/// number of such segments, and bytes acknowledged and received (since Linux 4.1).
const RETRANSMITS_AT: usize = 2;
const UNACKED_AT: usize = 24;
const BYTES_ACKED_AT: usize = 120;
const BYTES_RECEIVED_AT: usize = 128;

/// What the kernel knows of a TCP connection; `None` for other sockets and older kernels.
pub(crate) fn seen(socket: impl AsFd) -> Option<Seen> {
    let mut info = [0_u8; BYTES_RECEIVED_AT + 8];
    let mut length = info.len() as libc::socklen_t;
    // SAFETY: the pointer is to `length` writable bytes, and the kernel writes no more and says how many it did.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if result != 0 || (length as usize) < info.len() {
        return None;
    }
    let long = |at: usize| u64::from_ne_bytes(std::array::from_fn(|i| info[at + i]));
    let unacked = u32::from_ne_bytes(std::array::from_fn(|i| info[UNACKED_AT + i]));
    Some(Seen {
        moved: long(BYTES_ACKED_AT).wrapping_add(long(BYTES_RECEIVED_AT)),
        unacknowledged: unacked > 0,
        retransmits: info[RETRANSMITS_AT],
    })
}
