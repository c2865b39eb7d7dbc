//! A system call that no safe crate offers.

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
