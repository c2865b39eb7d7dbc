//! The message socket: messages over all interfaces between two hosts.

use std::ffi::{c_char, c_int, c_void};
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::task::Poll;
use std::time::Duration;

use ropewalk::{MessageListener, MessageOptions, MessageSocket};

use crate::error::{Failure, c_string, guard, text, texts};
use crate::ropewalk_result::{ROPEWALK_END, ROPEWALK_OK, ROPEWALK_UNDER_WAY};
use crate::sigpipe::Shield;
use crate::{ropewalk_error, ropewalk_result};

/// Waits for peers on one or more addresses.
pub struct ropewalk_listener {
    listener: MessageListener,
}

/// A connection for messages over one or more interfaces. Any number of threads send with one, one at a time receives.
pub struct ropewalk_socket {
    socket: MessageSocket,
}

/// # Safety
/// As [`texts`]; `token_file` is NULL or ends with a zero byte.
pub(crate) unsafe fn arguments(
    addresses: *const *const c_char,
    count: usize,
    token_file: *const c_char,
) -> Result<(Vec<SocketAddr>, MessageOptions), Failure> {
    let mut parsed = Vec::new();
    // SAFETY: as this function demands.
    for address in unsafe { texts(addresses, count)? } {
        parsed.push(address.parse().map_err(|_| {
            Failure::Misuse("an address is none; write a number and a port, as 192.168.1.5:7421")
        })?);
    }
    let mut options = MessageOptions::default();
    if !token_file.is_null() {
        // SAFETY: as this function demands.
        options.token = Some(ropewalk::read_token(unsafe { text(token_file)? })?);
    }
    Ok((parsed, options))
}

/// As a bound on a wait; `None` for no bound.
pub(crate) fn bound(milliseconds: c_int) -> Option<Duration> {
    u64::try_from(milliseconds).ok().map(Duration::from_millis)
}

/// Listens on every address; port 0 lets the system choose one.
///
/// * `token_file`: the file with the secret of both ends, with which messages are sealed; NULL only between addresses of this host.
/// * `listener`: where the listener is put.
///
/// # Safety
/// `addresses` has `count` texts that end with a zero byte, and `token_file` is NULL or ends with one; `listener` is NULL or a place for a pointer;
/// `error` is NULL or a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ropewalk_listener_new(
    addresses: *const *const c_char,
    count: usize,
    token_file: *const c_char,
    listener: *mut *mut ropewalk_listener,
    error: *mut *mut ropewalk_error,
) -> ropewalk_result {
    // SAFETY: as this function demands.
    unsafe {
        guard(error, || {
            if listener.is_null() {
                return Err(Failure::Misuse("the place for the listener is NULL"));
            }
            let (addresses, options) = arguments(addresses, count, token_file)?;
            let made = MessageListener::bind(&addresses, &options)?;
            *listener = Box::into_raw(Box::new(ropewalk_listener { listener: made }));
            Ok(ROPEWALK_OK)
        })
    }
}

/// Releases a listener; sockets that it has accepted stay. NULL is permitted.
///
/// # Safety
/// `listener` is NULL or was returned by [`ropewalk_listener_new`]; it is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ropewalk_listener_free(listener: *mut ropewalk_listener) {
    let _shield = Shield::new();
    if !listener.is_null() {
        // SAFETY: it was made by `ropewalk_listener_new`, and the caller gives it up.
        drop(unsafe { Box::from_raw(listener) });
    }
}

/// The address of this number that is listened on, with its port; NULL where there are fewer. To be released with
/// [`ropewalk_string_free`](crate::ropewalk_string_free).
///
/// # Safety
/// `listener` is NULL or was returned by [`ropewalk_listener_new`] and is not released.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ropewalk_listener_address(
    listener: *const ropewalk_listener,
    number: usize,
) -> *mut c_char {
    // SAFETY: as this function demands.
    let listener = unsafe { listener.as_ref() };
    let address = listener.and_then(|all| all.listener.addresses().get(number).copied());
    address.map_or(std::ptr::null_mut(), |address| {
        c_string(&address.to_string()).into_raw()
    })
}

/// A descriptor for `poll`: readable when a peer can be accepted. It belongs to the listener; -1 for NULL.
///
/// # Safety
/// As [`ropewalk_listener_address`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ropewalk_listener_descriptor(listener: *const ropewalk_listener) -> c_int {
    // SAFETY: as this function demands.
    let listener = unsafe { listener.as_ref() };
    listener.map_or(-1, |listener| listener.listener.as_fd().as_raw_fd())
}

/// Waits for a peer, at most so many milliseconds; a negative number for no bound. `ROPEWALK_UNDER_WAY`: none was there.
///
/// # Safety
/// As [`ropewalk_listener_address`]; `socket` is NULL or a place for a pointer; `error` is NULL or a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ropewalk_listener_accept(
    listener: *const ropewalk_listener,
    milliseconds: c_int,
    socket: *mut *mut ropewalk_socket,
    error: *mut *mut ropewalk_error,
) -> ropewalk_result {
    // SAFETY: as this function demands.
    unsafe {
        guard(error, || {
            let listener = listener.as_ref();
            let listener = listener.ok_or(Failure::Misuse("the listener is NULL"))?;
            if socket.is_null() {
                return Err(Failure::Misuse("the place for the socket is NULL"));
            }
            let most = bound(milliseconds).unwrap_or(Duration::MAX);
            let Some(accepted) = listener.listener.accept_for(most)? else {
                return Ok(ROPEWALK_UNDER_WAY);
            };
            *socket = Box::into_raw(Box::new(ropewalk_socket { socket: accepted }));
            Ok(ROPEWALK_OK)
        })
    }
}

/// Connects to a listener, over one interface for each of its addresses. Waits until a connection works.
///
/// # Safety
/// As [`ropewalk_listener_new`]; `socket` is NULL or a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ropewalk_socket_connect(
    addresses: *const *const c_char,
    count: usize,
    token_file: *const c_char,
    socket: *mut *mut ropewalk_socket,
    error: *mut *mut ropewalk_error,
) -> ropewalk_result {
    // SAFETY: as this function demands.
    unsafe {
        guard(error, || {
            if socket.is_null() {
                return Err(Failure::Misuse("the place for the socket is NULL"));
            }
            let (addresses, options) = arguments(addresses, count, token_file)?;
            let made = MessageSocket::connect(&addresses, &options)?;
            *socket = Box::into_raw(Box::new(ropewalk_socket { socket: made }));
            Ok(ROPEWALK_OK)
        })
    }
}

/// Closes a socket and releases it: what the peer does not have is given up. NULL is permitted.
///
/// # Safety
/// `socket` is NULL or was returned by a call of this library; it is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ropewalk_socket_free(socket: *mut ropewalk_socket) {
    let _shield = Shield::new();
    if !socket.is_null() {
        // SAFETY: it was made by this library, and the caller gives it up.
        drop(unsafe { Box::from_raw(socket) });
    }
}

/// A descriptor for `poll`: readable when [`ropewalk_socket_receive`] with 0 milliseconds has something to do, and until it has returned
/// `ROPEWALK_UNDER_WAY`. It belongs to the socket; -1 for NULL.
///
/// # Safety
/// `socket` is NULL or was returned by a call of this library and is not released.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ropewalk_socket_descriptor(socket: *const ropewalk_socket) -> c_int {
    // SAFETY: as this function demands.
    let socket = unsafe { socket.as_ref() };
    socket.map_or(-1, |socket| socket.socket.as_fd().as_raw_fd())
}

/// # Safety
/// As [`ropewalk_socket_descriptor`].
unsafe fn handle<'a>(socket: *const ropewalk_socket) -> Result<&'a MessageSocket, Failure> {
    // SAFETY: as this function demands.
    let socket = unsafe { socket.as_ref() }.ok_or(Failure::Misuse("the socket is NULL"))?;
    Ok(&socket.socket)
}

/// Bytes of the caller, to be read.
///
/// # Safety
/// `bytes` is NULL or points to `size` bytes, for as long as the result is used.
pub(crate) unsafe fn slice<'a>(bytes: *const c_void, size: usize) -> Result<&'a [u8], Failure> {
    match (bytes.is_null(), size) {
        (true, 0) => Ok(&[]),
        (true, _) => Err(Failure::Misuse("the bytes are NULL")),
        // SAFETY: as this function demands.
        (false, _) => Ok(unsafe { std::slice::from_raw_parts(bytes.cast(), size) }),
    }
}

/// Sends a message from where it lies, and waits until the peer's socket has all of it.
///
/// # Safety
/// As [`ropewalk_socket_descriptor`]; `message` points to `size` bytes; `error` is NULL or a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ropewalk_socket_send(
    socket: *const ropewalk_socket,
    message: *const c_void,
    size: usize,
    error: *mut *mut ropewalk_error,
) -> ropewalk_result {
    // SAFETY: as this function demands.
    unsafe {
        guard(error, || {
            handle(socket)?.send(slice(message, size)?)?;
            Ok(ROPEWALK_OK)
        })
    }
}

/// Copies a message and begins to send it; waits only while 1024 are on their way. Messages arrive in the order in which they were begun.
///
/// * `number`: where its number is put, for [`ropewalk_socket_is_sent`].
///
/// # Safety
/// As [`ropewalk_socket_send`]; `number` is NULL or a place for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ropewalk_socket_send_start(
    socket: *const ropewalk_socket,
    message: *const c_void,
    size: usize,
    number: *mut u64,
    error: *mut *mut ropewalk_error,
) -> ropewalk_result {
    // SAFETY: as this function demands.
    unsafe {
        guard(error, || {
            let begun = handle(socket)?.send_start(slice(message, size)?.to_vec())?;
            if let Some(number) = number.as_mut() {
                *number = begun;
            }
            Ok(ROPEWALK_OK)
        })
    }
}

/// Whether the peer's socket has the whole message of this number. Does not wait.
///
/// # Safety
/// As [`ropewalk_socket_descriptor`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ropewalk_socket_is_sent(
    socket: *const ropewalk_socket,
    number: u64,
) -> bool {
    // SAFETY: as this function demands.
    unsafe { socket.as_ref() }.is_some_and(|socket| socket.socket.is_sent(number))
}

/// Receives the next message into memory of the caller, and waits for it at most so many milliseconds: 0 for event loops, a negative number for no
/// bound. `ROPEWALK_UNDER_WAY`: none is there. `ROPEWALK_END`: the peer sends nothing more. One that is longer than `size` is an error, and stays.
///
/// * `length`: where the length of the message is put.
///
/// # Safety
/// As [`ropewalk_socket_descriptor`]; `space` points to `size` bytes, which may all be overwritten; `length` is NULL or a place for a number; `error` is
/// NULL or a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ropewalk_socket_receive(
    socket: *const ropewalk_socket,
    space: *mut c_void,
    size: usize,
    milliseconds: c_int,
    length: *mut usize,
    error: *mut *mut ropewalk_error,
) -> ropewalk_result {
    // SAFETY: as this function demands.
    unsafe {
        guard(error, || {
            let socket = handle(socket)?;
            if space.is_null() && size > 0 {
                return Err(Failure::Misuse("the space for a message is NULL"));
            }
            let received = match bound(milliseconds) {
                Some(Duration::ZERO) => match socket.poll_receive(size)? {
                    Poll::Ready(Some(message)) => {
                        // The space need not hold values yet.
                        let from = message.as_ptr();
                        std::ptr::copy_nonoverlapping(from, space.cast(), message.len());
                        Poll::Ready(Some(message.len()))
                    }
                    Poll::Ready(None) => Poll::Ready(None),
                    Poll::Pending => Poll::Pending,
                },
                most => {
                    let mut none = [];
                    let space: &mut [u8] = match space.is_null() {
                        true => &mut none,
                        false => std::slice::from_raw_parts_mut(space.cast(), size),
                    };
                    match most {
                        Some(most) => socket.receive_into_for(space, most)?,
                        None => Poll::Ready(socket.receive_into(space)?),
                    }
                }
            };
            match received {
                Poll::Ready(Some(count)) => {
                    if let Some(length) = length.as_mut() {
                        *length = count;
                    }
                    Ok(ROPEWALK_OK)
                }
                Poll::Ready(None) => Ok(ROPEWALK_END),
                Poll::Pending => Ok(ROPEWALK_UNDER_WAY),
            }
        })
    }
}

/// Announces that nothing more is sent, and waits until the peer has all. Receiving goes on.
///
/// # Safety
/// As [`ropewalk_socket_descriptor`]; `error` is NULL or a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ropewalk_socket_finish(
    socket: *const ropewalk_socket,
    error: *mut *mut ropewalk_error,
) -> ropewalk_result {
    // SAFETY: as this function demands.
    unsafe {
        guard(error, || {
            handle(socket)?.finish_sending()?;
            Ok(ROPEWALK_OK)
        })
    }
}
