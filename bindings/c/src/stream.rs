//! Byte streams: what a TCP connection is to a program, over all interfaces between two hosts.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::ptr;
use std::time::{Duration, Instant};

use ropewalk::{ByteStream, ByteStreamListener, ByteStreams};

use crate::error::{Failure, c_string, guard};
use crate::message::{arguments, bound, slice};
use crate::ropewalk_result::{ROPEWALK_END, ROPEWALK_OK, ROPEWALK_UNDER_WAY};
use crate::sigpipe::Shield;
use crate::{ropewalk_error, ropewalk_result};

/// Waits for byte streams on one or more addresses, from any number of peers.
pub struct ropewalk_stream_listener {
    listener: ByteStreamListener,
}

/// One connection to a listener over one or more interfaces, for any number of byte streams.
pub struct ropewalk_streams {
    streams: ByteStreams,
}

/// Bytes in order, both ways, over one or more interfaces; each way ends by itself. Any number of threads use one; bytes of two calls do not mix
/// within 256 KiB.
pub struct ropewalk_stream {
    stream: ByteStream,
}

/// Puts a stream where the caller wants it.
///
/// # Safety
/// `to` is NULL or a place for a pointer.
unsafe fn put(to: *mut *mut ropewalk_stream, made: ByteStream) {
    // SAFETY: as this function demands; callers have refused NULL.
    unsafe { *to = Box::into_raw(Box::new(ropewalk_stream { stream: made })) };
}

fn place<T>(to: *mut *mut T) -> Result<(), Failure> {
    match to.is_null() {
        true => Err(Failure::Misuse("the place for the stream is NULL")),
        false => Ok(()),
    }
}

/// Listens on every address; port 0 lets the system choose one.
///
/// * `token_file`: the file with the secret of both ends, with which bytes are sealed; NULL only between addresses of this host.
/// * `listener`: where the listener is put.
///
/// # Safety
/// As [`ropewalk_listener_new`](crate::ropewalk_listener_new).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ropewalk_stream_listener_new(
    addresses: *const *const c_char,
    count: usize,
    token_file: *const c_char,
    listener: *mut *mut ropewalk_stream_listener,
    error: *mut *mut ropewalk_error,
) -> ropewalk_result {
    // SAFETY: as this function demands.
    unsafe {
        guard(error, || {
            if listener.is_null() {
                return Err(Failure::Misuse("the place for the listener is NULL"));
            }
            let (addresses, options) = arguments(addresses, count, token_file)?;
            let made = ByteStreamListener::bind(&addresses, &options)?;
            *listener = Box::into_raw(Box::new(ropewalk_stream_listener { listener: made }));
            Ok(ROPEWALK_OK)
        })
    }
}

/// Releases a listener; streams that it has accepted stay. NULL is permitted.
///
/// # Safety
/// `listener` is NULL or was returned by [`ropewalk_stream_listener_new`]; it is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ropewalk_stream_listener_free(listener: *mut ropewalk_stream_listener) {
    let _shield = Shield::new();
    if !listener.is_null() {
        // SAFETY: it was made by `ropewalk_stream_listener_new`, and the caller gives it up.
        drop(unsafe { Box::from_raw(listener) });
    }
}

/// The address of this number that is listened on, with its port; NULL where there are fewer. To be released with
/// [`ropewalk_string_free`](crate::ropewalk_string_free).
///
/// # Safety
/// `listener` is NULL or was returned by [`ropewalk_stream_listener_new`] and is not released.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ropewalk_stream_listener_address(
    listener: *const ropewalk_stream_listener,
    number: usize,
) -> *mut c_char {
    // SAFETY: as this function demands.
    let listener = unsafe { listener.as_ref() };
    let address = listener.and_then(|all| all.listener.addresses().get(number).copied());
    address.map_or(ptr::null_mut(), |address| {
        c_string(&address.to_string()).into_raw()
    })
}

/// A descriptor for `poll`: readable when a stream can be accepted, and until accepting has returned `ROPEWALK_UNDER_WAY`. It belongs to the listener;
/// -1 for NULL.
///
/// # Safety
/// As [`ropewalk_stream_listener_address`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ropewalk_stream_listener_descriptor(
    listener: *const ropewalk_stream_listener,
) -> c_int {
    // SAFETY: as this function demands.
    let listener = unsafe { listener.as_ref() };
    listener.map_or(-1, |listener| listener.listener.as_fd().as_raw_fd())
}

/// Waits for a stream, at most so many milliseconds; a negative number for no bound. `ROPEWALK_UNDER_WAY`: none was there.
///
/// # Safety
/// As [`ropewalk_stream_listener_address`]; `stream` is NULL or a place for a pointer; `error` is NULL or a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ropewalk_stream_listener_accept(
    listener: *const ropewalk_stream_listener,
    milliseconds: c_int,
    stream: *mut *mut ropewalk_stream,
    error: *mut *mut ropewalk_error,
) -> ropewalk_result {
    // SAFETY: as this function demands.
    unsafe {
        guard(error, || {
            let listener = listener.as_ref();
            let listener = listener.ok_or(Failure::Misuse("the listener is NULL"))?;
            place(stream)?;
            let most = bound(milliseconds).unwrap_or(Duration::MAX);
            let Some(accepted) = listener.listener.accept_for(most)? else {
                return Ok(ROPEWALK_UNDER_WAY);
            };
            put(stream, accepted);
            Ok(ROPEWALK_OK)
        })
    }
}

/// Connects to a listener with one stream, over one interface for each of its addresses. Waits until a connection works.
///
/// # Safety
/// As [`ropewalk_stream_listener_new`]; `stream` is NULL or a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ropewalk_stream_connect(
    addresses: *const *const c_char,
    count: usize,
    token_file: *const c_char,
    stream: *mut *mut ropewalk_stream,
    error: *mut *mut ropewalk_error,
) -> ropewalk_result {
    // SAFETY: as this function demands.
    unsafe {
        guard(error, || {
            place(stream)?;
            let (addresses, options) = arguments(addresses, count, token_file)?;
            put(stream, ByteStream::connect(&addresses, &options)?);
            Ok(ROPEWALK_OK)
        })
    }
}

/// Connects to a listener for any number of streams, which share the connection. Waits until one works.
///
/// # Safety
/// As [`ropewalk_stream_listener_new`]; `streams` is NULL or a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ropewalk_streams_connect(
    addresses: *const *const c_char,
    count: usize,
    token_file: *const c_char,
    streams: *mut *mut ropewalk_streams,
    error: *mut *mut ropewalk_error,
) -> ropewalk_result {
    // SAFETY: as this function demands.
    unsafe {
        guard(error, || {
            place(streams)?;
            let (addresses, options) = arguments(addresses, count, token_file)?;
            let made = ByteStreams::connect(&addresses, &options)?;
            *streams = Box::into_raw(Box::new(ropewalk_streams { streams: made }));
            Ok(ROPEWALK_OK)
        })
    }
}

/// Opens a stream, one of at most 1024. Does not wait for the acceptor, which has the greeting before anything else.
///
/// * `greeting`: what the stream is for, `size` bytes, at most 1024.
///
/// # Safety
/// `streams` is NULL or was returned by [`ropewalk_streams_connect`] and is not released; `greeting` points to `size` bytes; `stream` is NULL or a place
/// for a pointer; `error` is NULL or a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ropewalk_streams_open(
    streams: *const ropewalk_streams,
    greeting: *const c_void,
    size: usize,
    stream: *mut *mut ropewalk_stream,
    error: *mut *mut ropewalk_error,
) -> ropewalk_result {
    // SAFETY: as this function demands.
    unsafe {
        guard(error, || {
            let streams = streams.as_ref();
            let streams = streams.ok_or(Failure::Misuse("the connection is NULL"))?;
            place(stream)?;
            put(stream, streams.streams.open(slice(greeting, size)?)?);
            Ok(ROPEWALK_OK)
        })
    }
}

/// Opens another stream over the connection of this one, to the same peer: the way in which the end that listens opens streams. The peer has it from
/// [`ropewalk_streams_accept`], or from its listener; a peer that accepts none resets it. Does not wait.
///
/// * `greeting`: as of [`ropewalk_streams_open`].
/// * `opened`: where the new stream is put.
///
/// # Safety
/// As [`ropewalk_stream_descriptor`]; `greeting` points to `size` bytes; `opened` is NULL or a place for a pointer; `error` is NULL or a place for
/// a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ropewalk_stream_open_beside(
    stream: *const ropewalk_stream,
    greeting: *const c_void,
    size: usize,
    opened: *mut *mut ropewalk_stream,
    error: *mut *mut ropewalk_error,
) -> ropewalk_result {
    // SAFETY: as this function demands.
    unsafe {
        guard(error, || {
            let stream = handle(stream)?;
            place(opened)?;
            put(opened, stream.open_beside(slice(greeting, size)?)?);
            Ok(ROPEWALK_OK)
        })
    }
}

/// Waits for a stream that the listening end opens, at most so many milliseconds; a negative number for no bound. `ROPEWALK_UNDER_WAY`: none was there.
///
/// # Safety
/// `streams` is NULL or was returned by [`ropewalk_streams_connect`] and is not released; `stream` is NULL or a place for a pointer; `error` is NULL or
/// a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ropewalk_streams_accept(
    streams: *const ropewalk_streams,
    milliseconds: c_int,
    stream: *mut *mut ropewalk_stream,
    error: *mut *mut ropewalk_error,
) -> ropewalk_result {
    // SAFETY: as this function demands.
    unsafe {
        guard(error, || {
            let streams = streams.as_ref();
            let streams = streams.ok_or(Failure::Misuse("the connection is NULL"))?;
            place(stream)?;
            let most = bound(milliseconds).unwrap_or(Duration::MAX);
            let Some(accepted) = streams.streams.accept_for(most)? else {
                return Ok(ROPEWALK_UNDER_WAY);
            };
            put(stream, accepted);
            Ok(ROPEWALK_OK)
        })
    }
}

/// A descriptor for `poll`: readable when a stream of the listening end can be accepted, and until accepting has returned `ROPEWALK_UNDER_WAY`. It belongs
/// to the connection; -1 for NULL.
///
/// # Safety
/// `streams` is NULL or was returned by [`ropewalk_streams_connect`] and is not released.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ropewalk_streams_descriptor(streams: *const ropewalk_streams) -> c_int {
    // SAFETY: as this function demands.
    let streams = unsafe { streams.as_ref() };
    streams.map_or(-1, |streams| streams.streams.as_fd().as_raw_fd())
}

/// Releases a connection: no more streams are opened, those that are open stay. NULL is permitted.
///
/// # Safety
/// `streams` is NULL or was returned by [`ropewalk_streams_connect`]; it is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ropewalk_streams_free(streams: *mut ropewalk_streams) {
    let _shield = Shield::new();
    if !streams.is_null() {
        // SAFETY: it was made by `ropewalk_streams_connect`, and the caller gives it up.
        drop(unsafe { Box::from_raw(streams) });
    }
}

/// Closes a stream and releases it, as `close` does: what was written is still delivered while the process lives
/// (else [`ropewalk_stream_finish`] first), and the peer reads to the end; what it writes fails. NULL is permitted.
///
/// # Safety
/// `stream` is NULL or was returned by a call of this library; it is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ropewalk_stream_free(stream: *mut ropewalk_stream) {
    let _shield = Shield::new();
    if !stream.is_null() {
        // SAFETY: it was made by this library, and the caller gives it up.
        drop(unsafe { Box::from_raw(stream) });
    }
}

/// # Safety
/// As [`ropewalk_stream_descriptor`].
unsafe fn handle<'a>(stream: *const ropewalk_stream) -> Result<&'a ByteStream, Failure> {
    // SAFETY: as this function demands.
    let stream = unsafe { stream.as_ref() }.ok_or(Failure::Misuse("the stream is NULL"))?;
    Ok(&stream.stream)
}

/// A descriptor for `poll`, readable and writable as that of a socket. Calls with 0 milliseconds that return `ROPEWALK_UNDER_WAY` make it quiet until there
/// is news. Nothing can be read from it or written to it. It belongs to the stream; -1 for NULL.
///
/// # Safety
/// `stream` is NULL or was returned by a call of this library and is not released.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ropewalk_stream_descriptor(stream: *const ropewalk_stream) -> c_int {
    // SAFETY: as this function demands.
    let stream = unsafe { stream.as_ref() };
    stream.map_or(-1, |stream| stream.stream.as_fd().as_raw_fd())
}

/// What the end that opened the stream says it is for. It lasts as long as the stream; NULL for NULL.
///
/// * `size`: where the number of its bytes is put.
///
/// # Safety
/// As [`ropewalk_stream_descriptor`]; `size` is NULL or a place for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ropewalk_stream_greeting(
    stream: *const ropewalk_stream,
    size: *mut usize,
) -> *const c_void {
    // SAFETY: as this function demands.
    let (stream, size) = unsafe { (stream.as_ref(), size.as_mut()) };
    let greeting = stream.map(|stream| stream.stream.greeting());
    if let Some(size) = size {
        *size = greeting.map_or(0, <[u8]>::len);
    }
    greeting.map_or(ptr::null(), |greeting| greeting.as_ptr().cast())
}

/// Reads what is there, at least one byte, and waits for it at most so many milliseconds: 0 for event loops, a negative number for no bound.
/// `ROPEWALK_UNDER_WAY`: nothing is there. `ROPEWALK_END`: the peer has ended its way, and all of it was read.
///
/// * `count`: where the number of bytes is put that were read; 0 unless the result is `ROPEWALK_OK`.
///
/// # Safety
/// As [`ropewalk_stream_descriptor`]; `space` points to `size` bytes; `count` is NULL or a place for a number; `error` is NULL or a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ropewalk_stream_read(
    stream: *const ropewalk_stream,
    space: *mut c_void,
    size: usize,
    milliseconds: c_int,
    count: *mut usize,
    error: *mut *mut ropewalk_error,
) -> ropewalk_result {
    // SAFETY: as this function demands.
    unsafe {
        guard(error, || {
            let mut none = 0;
            let count = count.as_mut().unwrap_or(&mut none);
            *count = 0;
            let stream = handle(stream)?;
            if size == 0 {
                return Ok(ROPEWALK_OK);
            }
            if space.is_null() {
                return Err(Failure::Misuse("the space for bytes is NULL"));
            }
            let space = std::slice::from_raw_parts_mut(space.cast(), size);
            let most = bound(milliseconds).unwrap_or(Duration::MAX);
            match stream.read_for(space, most)? {
                Some(0) => Ok(ROPEWALK_END),
                Some(read) => {
                    *count = read;
                    Ok(ROPEWALK_OK)
                }
                None => Ok(ROPEWALK_UNDER_WAY),
            }
        })
    }
}

/// Writes all bytes, and waits at most so many milliseconds while the peer has too much to read: 0 for event loops, a negative number for no bound.
/// `ROPEWALK_OK`: all are on their way. `ROPEWALK_UNDER_WAY`: only the first `count` are. The memory is the caller's again.
///
/// * `count`: where the number of bytes is put that were written, also when the call failed.
///
/// # Safety
/// As [`ropewalk_stream_descriptor`]; `bytes` points to `size` bytes; `count` is NULL or a place for a number; `error` is NULL or a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ropewalk_stream_write(
    stream: *const ropewalk_stream,
    bytes: *const c_void,
    size: usize,
    milliseconds: c_int,
    count: *mut usize,
    error: *mut *mut ropewalk_error,
) -> ropewalk_result {
    // SAFETY: as this function demands.
    unsafe {
        guard(error, || {
            let mut none = 0;
            let count = count.as_mut().unwrap_or(&mut none);
            *count = 0;
            let (stream, bytes) = (handle(stream)?, slice(bytes, size)?);
            let until = bound(milliseconds).and_then(|most| Instant::now().checked_add(most));
            while *count < size {
                let left = until.map_or(Duration::MAX, |until| {
                    until.saturating_duration_since(Instant::now())
                });
                match stream.write_for(&bytes[*count..], left)? {
                    Some(written) => *count += written,
                    None => return Ok(ROPEWALK_UNDER_WAY),
                }
            }
            Ok(ROPEWALK_OK)
        })
    }
}

/// Ends writing, as `shutdown` with `SHUT_WR` does: the peer reads to the end. Reading goes on. Further calls do nothing.
///
/// # Safety
/// As [`ropewalk_stream_descriptor`]; `error` is NULL or a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ropewalk_stream_shutdown(
    stream: *const ropewalk_stream,
    error: *mut *mut ropewalk_error,
) -> ropewalk_result {
    // SAFETY: as this function demands.
    unsafe {
        guard(error, || {
            handle(stream)?.shutdown_for(Duration::MAX)?;
            Ok(ROPEWALK_OK)
        })
    }
}

/// Ends writing, and waits at most so many milliseconds until the peer's host has all that was written; a negative number for no bound.
/// `ROPEWALK_UNDER_WAY`: it does not have it yet. Reading goes on. For programs that are about to exit: what is on its way is lost with them.
///
/// # Safety
/// As [`ropewalk_stream_descriptor`]; `error` is NULL or a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ropewalk_stream_finish(
    stream: *const ropewalk_stream,
    milliseconds: c_int,
    error: *mut *mut ropewalk_error,
) -> ropewalk_result {
    // SAFETY: as this function demands.
    unsafe {
        guard(error, || {
            let most = bound(milliseconds).unwrap_or(Duration::MAX);
            match handle(stream)?.finish_for(most)? {
                true => Ok(ROPEWALK_OK),
                false => Ok(ROPEWALK_UNDER_WAY),
            }
        })
    }
}

/// Gives a stream up, both ways: what is on its way is thrown away, and the peer's calls fail with this text. The stream is still to be released.
///
/// * `text`: why, in UTF-8, cut after 512 bytes; NULL for none.
///
/// # Safety
/// As [`ropewalk_stream_descriptor`]; `text` is NULL or ends with a zero byte; `error` is NULL or a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ropewalk_stream_reset(
    stream: *const ropewalk_stream,
    text: *const c_char,
    error: *mut *mut ropewalk_error,
) -> ropewalk_result {
    // SAFETY: as this function demands.
    unsafe {
        guard(error, || {
            let text = match text.is_null() {
                true => c"",
                false => CStr::from_ptr(text),
            };
            handle(stream)?.reset(0, &text.to_string_lossy());
            Ok(ROPEWALK_OK)
        })
    }
}
