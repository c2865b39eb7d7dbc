//! Options of sockets that no safe crate offers: the two system calls, and an option that several crates set.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _};

/// Sets an option that is a number.
///
/// # Errors
/// What the system says.
pub fn set(socket: impl AsFd, level: i32, name: i32, value: i32) -> io::Result<()> {
    // SAFETY: the pointer is to a live i32 and the length is its size; the kernel only reads it.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            level,
            name,
            (&raw const value).cast(),
            size_of::<i32>() as libc::socklen_t,
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Reads an option that is a number.
///
/// # Errors
/// What the system says.
pub fn get(socket: impl AsFd, level: i32, name: i32) -> io::Result<i32> {
    let mut value = [0; size_of::<i32>()];
    get_bytes(socket, level, name, &mut value)?;
    Ok(i32::from_ne_bytes(value))
}

/// Reads an option into `value`; gives the number of bytes that the kernel has written.
///
/// # Errors
/// What the system says.
pub fn get_bytes(socket: impl AsFd, level: i32, name: i32, value: &mut [u8]) -> io::Result<usize> {
    let mut length = libc::socklen_t::try_from(value.len()).unwrap_or(libc::socklen_t::MAX);
    // SAFETY: the pointer is to at least `length` writable bytes; the kernel writes no more and says how many it did.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            level,
            name,
            value.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    match result {
        0 => Ok(length as usize),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Sets how many bytes must have arrived before a socket counts as readable (SO_RCVLOWAT).
///
/// # Errors
/// What the system says.
pub fn set_receive_low_water(socket: impl AsFd, bytes: i32) -> io::Result<()> {
    set(socket, libc::SOL_SOCKET, libc::SO_RCVLOWAT, bytes)
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, UdpSocket};

    use super::*;

    /// What was set reads back, shorter values tell their length, and what a socket does not have is refused.
    #[test]
    fn options_read_back() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        set_receive_low_water(&socket, 77).unwrap();
        assert_eq!(
            get(&socket, libc::SOL_SOCKET, libc::SO_RCVLOWAT).unwrap(),
            77
        );
        let mut bytes = [0; 64];
        let length = get_bytes(&socket, libc::SOL_SOCKET, libc::SO_RCVLOWAT, &mut bytes).unwrap();
        assert_eq!(bytes[..length], 77_i32.to_ne_bytes());
        assert!(get(&socket, libc::IPPROTO_TCP, libc::TCP_NODELAY).is_err());
        let stream = TcpListener::bind("127.0.0.1:0").unwrap();
        assert_eq!(
            get(&stream, libc::IPPROTO_TCP, libc::TCP_NODELAY).unwrap(),
            0
        );
    }
}
