//! System calls that no safe crate offers.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _};

/// Sets how many bytes must have come before a wait for reading ends (SO_RCVLOWAT).
pub(crate) fn set_receive_low_water(socket: impl AsFd, bytes: i32) -> io::Result<()> {
    // SAFETY: the pointer is to a live i32 and the length is its size; the kernel only reads it.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVLOWAT,
            (&raw const bytes).cast(),
            size_of::<i32>() as libc::socklen_t,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Where the kernel's `tcp_info` has `tcpi_bytes_received`, since Linux 4.1; the C library's own structure ends
/// before it.
const BYTES_RECEIVED_AT: usize = 128;

/// Bytes that have come on a TCP connection, read or not; `None` for other sockets and older kernels.
pub(crate) fn bytes_received(socket: impl AsFd) -> Option<u64> {
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
    let bytes = info[BYTES_RECEIVED_AT..].try_into().ok()?;
    Some(u64::from_ne_bytes(bytes))
}
