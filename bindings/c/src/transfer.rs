//! Transfers that are described row by row.

use std::ffi::{c_char, c_int, c_void};
use std::os::fd::AsRawFd as _;
use std::ptr;
use std::time::{Duration, Instant};

use ropewalk::{ByteRate, Error, Event, Report, Row, RowTransfer};

use crate::error::{Failure, c_string, guard, text};
use crate::ropewalk_result::{ROPEWALK_OK, ROPEWALK_UNDER_WAY};
use crate::{ropewalk_error, ropewalk_result};

/// Which side a row is on.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ropewalk_role {
    /// The node has the bytes.
    ROPEWALK_WRITER = 0,
    /// The node wants the bytes.
    ROPEWALK_READER = 1,
}

/// One row: which bytes of the data space a node has, or wants, and where they are on it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ropewalk_row {
    /// Side: a value of `ropewalk_role`.
    pub role: c_int,
    /// Host of the agent.
    pub host: *const c_char,
    /// Port of the agent.
    pub port: u16,
    /// `file:///path`, an absolute path, `mem:SIZE` or `null:`.
    pub uri: *const c_char,
    /// Position in the object of the first byte.
    pub file_offset: u64,
    /// First byte of the data space.
    pub start: u64,
    /// The byte behind the last one.
    pub end: u64,
    /// Speed of the node, bytes per second; 0 where it is not known.
    pub bytes_per_second: u64,
    /// Readers with one name write different ranges of one file that they share; NULL for none.
    pub destination: *const c_char,
}

/// Called with the bytes that are safe at the destinations, and with all that are wanted.
pub type ropewalk_progress =
    Option<unsafe extern "C" fn(user: *mut c_void, delivered_bytes: u64, total_bytes: u64)>;

/// A transfer that is described row by row and can be continued.
pub struct ropewalk_transfer {
    pub(crate) transfer: RowTransfer,
    report: Option<Box<Report>>,
    progress: ropewalk_progress,
    user: *mut c_void,
}

impl ropewalk_transfer {
    pub(crate) fn new() -> Self {
        Self {
            transfer: RowTransfer::new(),
            report: None,
            progress: None,
            user: ptr::null_mut(),
        }
    }

    pub(crate) fn schedule(&mut self, row: Row) {
        self.transfer.schedule(row);
    }

    pub(crate) fn data_sent(&self) -> u64 {
        self.transfer.data_sent()
    }

    pub(crate) fn descriptor(&self) -> c_int {
        let descriptor = self.transfer.descriptor();
        descriptor.map_or(-1, |descriptor| descriptor.as_raw_fd())
    }

    pub(crate) fn cancel(&self) {
        self.transfer.cancel();
    }

    /// Starts it or continues it, and waits for its end at most so long; whether it has ended.
    pub(crate) fn step(&mut self, most: Duration) -> Result<bool, Error> {
        let end = Instant::now().checked_add(most);
        loop {
            let left = end.map_or(Duration::MAX, |end| {
                end.saturating_duration_since(Instant::now())
            });
            let ended = self.transfer.wait_for(left.min(LOOK_EVERY));
            for event in self.transfer.events() {
                self.take(event);
            }
            match ended {
                Ok(None) if left.is_zero() => return Ok(false),
                Ok(None) => {}
                Ok(Some(report)) => {
                    self.report = Some(Box::new(report));
                    return Ok(true);
                }
                Err(error) => {
                    self.report.clone_from(&error.fault().report);
                    return Err(error);
                }
            }
        }
    }

    fn take(&self, event: Event) {
        if let (
            Event::Progress {
                delivered_bytes,
                total_bytes,
                ..
            },
            Some(progress),
        ) = (event, self.progress)
        {
            // SAFETY: the caller gave the function together with its argument.
            unsafe { progress(self.user, delivered_bytes, total_bytes) };
        }
    }
}

/// Between two calls of the progress function, while a call waits.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The caller's row as the library's.
///
/// # Safety
/// Its texts are NULL or end with a zero byte.
pub(crate) unsafe fn row(given: &ropewalk_row) -> Result<Row, Failure> {
    // SAFETY: as this function demands.
    let (host, uri) = unsafe { (text(given.host)?, text(given.uri)?) };
    let kind = match given.role {
        role if role == ropewalk_role::ROPEWALK_WRITER as c_int => "writer",
        role if role == ropewalk_role::ROPEWALK_READER as c_int => "reader",
        _ => {
            return Err(Failure::Misuse(
                "the role of a row is neither writer nor reader",
            ));
        }
    };
    if given.start >= given.end {
        return Err(Failure::Misuse("the range of a row has no byte"));
    }
    if uri.contains(['"', '\n', '\r']) || host.contains(char::is_whitespace) {
        return Err(Failure::Misuse(
            "a row has a quote, a line end, or white space in its host; write %22 and its like in a file:// URI",
        ));
    }
    let host = match host.contains(':') && !host.starts_with('[') {
        true => format!("[{host}]"),
        false => host.to_owned(),
    };
    let line = format!(
        "{kind} {host}:{} \"{uri}\" {} {}-{}",
        given.port,
        given.file_offset,
        given.start,
        given.end - 1
    );
    let mut row: Row = line.parse()?;
    if given.bytes_per_second > 0 {
        row = row.rate(ByteRate(given.bytes_per_second));
    }
    if !given.destination.is_null() {
        // SAFETY: as this function demands.
        row = row.destination(unsafe { text(given.destination)? });
    }
    Ok(row)
}

/// # Safety
/// `transfer` is NULL or was returned by [`ropewalk_transfer_new`] and is not released.
unsafe fn handle<'a>(
    transfer: *mut ropewalk_transfer,
) -> Result<&'a mut ropewalk_transfer, Failure> {
    // SAFETY: as this function demands.
    unsafe { transfer.as_mut() }.ok_or(Failure::Misuse("the transfer is NULL"))
}

/// A transfer without rows.
#[unsafe(no_mangle)]
pub extern "C" fn ropewalk_transfer_new() -> *mut ropewalk_transfer {
    Box::into_raw(Box::new(ropewalk_transfer::new()))
}

/// Releases a transfer; one that runs is cancelled first, and awaited. NULL is permitted.
///
/// # Safety
/// `transfer` is NULL or was returned by [`ropewalk_transfer_new`]; it is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ropewalk_transfer_free(transfer: *mut ropewalk_transfer) {
    if !transfer.is_null() {
        // SAFETY: it was made by `ropewalk_transfer_new`, and the caller gives it up.
        drop(unsafe { Box::from_raw(transfer) });
    }
}

/// The file with the secret of the agents, as `ropewalk agent --new-token FILE` makes it.
///
/// # Safety
/// `transfer` as for [`ropewalk_transfer_free`]; `file` ends with a zero byte; `error` is NULL or a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ropewalk_transfer_token_file(
    transfer: *mut ropewalk_transfer,
    file: *const c_char,
    error: *mut *mut ropewalk_error,
) -> ropewalk_result {
    // SAFETY: as this function demands.
    unsafe {
        guard(error, || {
            let (transfer, file) = (handle(transfer)?, text(file)?);
            transfer.transfer.token_file(file)?;
            Ok(ROPEWALK_OK)
        })
    }
}

/// Most bytes per second over all readers together; 0 for no limit.
///
/// # Safety
/// As [`ropewalk_transfer_token_file`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ropewalk_transfer_limit(
    transfer: *mut ropewalk_transfer,
    bytes_per_second: u64,
    error: *mut *mut ropewalk_error,
) -> ropewalk_result {
    // SAFETY: as this function demands.
    unsafe {
        guard(error, || {
            let rate = (bytes_per_second > 0).then_some(ByteRate(bytes_per_second));
            handle(transfer)?.transfer.limit(rate);
            Ok(ROPEWALK_OK)
        })
    }
}

/// Adds a row; nothing moves before [`ropewalk_transfer_wait`]. A row that is added while the transfer runs joins it.
///
/// # Safety
/// As [`ropewalk_transfer_token_file`]; `row` is NULL or points to a row whose texts end with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ropewalk_transfer_schedule(
    transfer: *mut ropewalk_transfer,
    given: *const ropewalk_row,
    error: *mut *mut ropewalk_error,
) -> ropewalk_result {
    // SAFETY: as this function demands.
    unsafe {
        guard(error, || {
            let transfer = handle(transfer)?;
            let given = given.as_ref().ok_or(Failure::Misuse("the row is NULL"))?;
            transfer.schedule(row(given)?);
            Ok(ROPEWALK_OK)
        })
    }
}

/// Adds a row that is written as in a specification file: `writer node1:7420 file:///data/half1 0 0-1023`.
///
/// # Safety
/// As [`ropewalk_transfer_token_file`]; `line` ends with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ropewalk_transfer_schedule_line(
    transfer: *mut ropewalk_transfer,
    line: *const c_char,
    error: *mut *mut ropewalk_error,
) -> ropewalk_result {
    // SAFETY: as this function demands.
    unsafe {
        guard(error, || {
            let (transfer, line) = (handle(transfer)?, text(line)?);
            transfer.schedule(line.parse()?);
            Ok(ROPEWALK_OK)
        })
    }
}

/// Called by [`ropewalk_transfer_wait`], in its thread, when progress was made; NULL for none.
///
/// # Safety
/// As [`ropewalk_transfer_token_file`]; `progress` may be called with `user` until it is replaced or the transfer is released.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ropewalk_transfer_on_progress(
    transfer: *mut ropewalk_transfer,
    progress: ropewalk_progress,
    user: *mut c_void,
) {
    // SAFETY: as this function demands.
    if let Some(transfer) = unsafe { transfer.as_mut() } {
        (transfer.progress, transfer.user) = (progress, user);
    }
}

/// Starts the transfer, or continues it, and waits for its end, at most so many milliseconds: 0 for event loops, a negative number
/// for no bound. `ROPEWALK_OK`: all is delivered. `ROPEWALK_UNDER_WAY`: it runs; call again. After an error that may pass
/// (`ROPEWALK_NETWORK`, `ROPEWALK_PEER`) the same call continues with the same rows.
///
/// # Safety
/// As [`ropewalk_transfer_token_file`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ropewalk_transfer_wait(
    transfer: *mut ropewalk_transfer,
    milliseconds: c_int,
    error: *mut *mut ropewalk_error,
) -> ropewalk_result {
    // SAFETY: as this function demands.
    unsafe {
        guard(error, || {
            let most = u64::try_from(milliseconds).map_or(Duration::MAX, Duration::from_millis);
            match handle(transfer)?.step(most)? {
                true => Ok(ROPEWALK_OK),
                false => Ok(ROPEWALK_UNDER_WAY),
            }
        })
    }
}

/// Bytes of the running or last transfer that are in the destinations, checked and on stable storage; all readers together.
///
/// # Safety
/// `transfer` as for [`ropewalk_transfer_free`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ropewalk_transfer_data_sent(transfer: *const ropewalk_transfer) -> u64 {
    // SAFETY: as this function demands.
    unsafe { transfer.as_ref() }.map_or(0, ropewalk_transfer::data_sent)
}

/// A descriptor for `poll` while the transfer runs, else -1: readable when [`ropewalk_transfer_wait`] has something to do. It belongs to
/// the transfer, and is another one after each end.
///
/// # Safety
/// As [`ropewalk_transfer_data_sent`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ropewalk_transfer_descriptor(transfer: *const ropewalk_transfer) -> c_int {
    // SAFETY: as this function demands.
    unsafe { transfer.as_ref() }.map_or(-1, ropewalk_transfer::descriptor)
}

/// Ends the running transfer within a second; [`ropewalk_transfer_wait`] returns its end.
///
/// # Safety
/// As [`ropewalk_transfer_data_sent`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ropewalk_transfer_cancel(transfer: *const ropewalk_transfer) {
    // SAFETY: as this function demands.
    if let Some(transfer) = unsafe { transfer.as_ref() } {
        transfer.cancel();
    }
}

/// The report of the last transfer that has ended, as JSON (docs/json.md); NULL before. To be released with
/// [`ropewalk_string_free`](crate::ropewalk_string_free).
///
/// # Safety
/// As [`ropewalk_transfer_data_sent`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ropewalk_transfer_report(
    transfer: *const ropewalk_transfer,
) -> *mut c_char {
    // SAFETY: as this function demands.
    let report = unsafe { transfer.as_ref() }.and_then(|transfer| transfer.report.as_ref());
    let json = report.and_then(|report| serde_json::to_string(report).ok());
    json.map_or(ptr::null_mut(), |json| c_string(&json).into_raw())
}
