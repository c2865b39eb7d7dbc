//! Transfers: of rows, and copies between places.

use std::ffi::{c_char, c_int, c_void};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};
use std::ptr;
use std::time::{Duration, Instant};

use ropewalk::{ByteRate, Error, Event, Place, Report, Row, RowTransfer, Running, Transfer};

use crate::error::{Failure, c_string, guard, text};
use crate::process::Maker;
use crate::ropewalk_result::{ROPEWALK_OK, ROPEWALK_UNDER_WAY};
use crate::sigpipe::Shield;
use crate::{ropewalk_agent, ropewalk_error, ropewalk_result};

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
    /// `file:///path`, an absolute path, `buffer:NAME` of a program, `mem:SIZE` or `null:`.
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

/// A file or folder on a host, or a buffer of a program.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ropewalk_place {
    /// Host; NULL for this one, where the command `ropewalk` is started.
    pub host: *const c_char,
    /// Port of the agent there; 0 for ssh, and for this host.
    pub port: u16,
    /// Path, or `buffer:NAME` of a program whose agent is at the port.
    pub path: *const c_char,
}

/// A transfer: of rows, or a copy between places. It can be continued.
pub struct ropewalk_transfer {
    rows: RowTransfer,
    has_rows: bool,
    has_master: bool,
    copy: OfPlaces,
    token: Option<[u8; 32]>,
    limit: Option<ByteRate>,
    options: Vec<(String, String)>,
    report: Option<Box<Report>>,
    progress: ropewalk_progress,
    user: *mut c_void,
    maker: Maker,
}

/// What a copy is made of, and the copy while it runs.
#[derive(Default)]
struct OfPlaces {
    sources: Vec<Place>,
    destinations: Vec<Place>,
    running: Option<Running>,
    // Of the last one that has ended, and whether no transfer of rows began after it.
    sent: u64,
    is_last: bool,
}

impl ropewalk_transfer {
    pub(crate) fn new() -> Self {
        Self {
            rows: RowTransfer::new(),
            has_rows: false,
            has_master: false,
            copy: OfPlaces::default(),
            token: None,
            limit: None,
            options: Vec::new(),
            report: None,
            progress: None,
            user: ptr::null_mut(),
            maker: Maker::this(),
        }
    }

    pub(crate) fn set_token(&mut self, token: [u8; 32]) {
        self.token = Some(token);
        self.rows.token(token);
    }

    pub(crate) fn set_master(&mut self, at: &str) -> Result<(), Failure> {
        if self.is_copy() {
            return Err(Failure::Misuse("a standing master takes rows, not places"));
        }
        self.rows.master(at)?;
        self.has_master = true;
        Ok(())
    }

    fn is_copy(&self) -> bool {
        !(self.copy.sources.is_empty() && self.copy.destinations.is_empty())
    }

    pub(crate) fn schedule(&mut self, row: Row) -> Result<(), Failure> {
        if self.is_copy() {
            return Err(Failure::Misuse("a transfer has rows, or places, not both"));
        }
        self.has_rows = true;
        self.rows.schedule(row);
        Ok(())
    }

    /// A further place of a copy.
    fn add(&mut self, place: Place, is_source: bool) -> Result<(), Failure> {
        if self.has_rows {
            return Err(Failure::Misuse("a transfer has rows, or places, not both"));
        }
        if self.has_master {
            return Err(Failure::Misuse("a standing master takes rows, not places"));
        }
        if self.copy.running.is_some() {
            return Err(Failure::Misuse("the copy runs; wait for its end"));
        }
        match is_source {
            true => self.copy.sources.push(place),
            false => self.copy.destinations.push(place),
        }
        Ok(())
    }

    pub(crate) fn data_sent(&self) -> u64 {
        match &self.copy.running {
            Some(running) => running.data_sent(),
            None if self.copy.is_last => self.copy.sent,
            None => self.rows.data_sent(),
        }
    }

    pub(crate) fn borrowed_descriptor(&self) -> Option<BorrowedFd<'_>> {
        match &self.copy.running {
            Some(running) => Some(running.as_fd()),
            None => self.rows.descriptor(),
        }
    }

    pub(crate) fn descriptor(&self) -> c_int {
        let descriptor = self.borrowed_descriptor();
        descriptor.map_or(-1, |descriptor| descriptor.as_raw_fd())
    }

    pub(crate) fn cancel(&self) {
        match &self.copy.running {
            Some(running) => running.cancel(),
            None => self.rows.cancel(),
        }
    }

    /// Starts what does not run; its end, if it is there within the time.
    fn look(&mut self, most: Duration) -> Result<Option<Report>, Error> {
        if !self.is_copy() {
            self.copy.is_last = false;
            if self.rows.descriptor().is_none() {
                for (name, value) in &self.options {
                    self.rows.option(name, value)?;
                }
                if self.limit.is_some() {
                    self.rows.limit(self.limit);
                }
            }
            return self.rows.wait_for(most);
        }
        if self.copy.running.is_none() {
            (self.copy.sent, self.copy.is_last) = (0, true);
            self.copy.running = Some(self.begin()?);
        }
        let running = self.copy.running.as_mut();
        running.map_or(Ok(None), |running| running.wait_for(most))
    }

    fn begin(&self) -> Result<Running, Error> {
        let mut transfer = Transfer::new();
        for (name, value) in &self.options {
            transfer = transfer.option(name, value)?;
        }
        if let Some(limit) = self.limit {
            transfer = transfer.limit(limit);
        }
        if let Some(token) = self.token {
            transfer = transfer.token(token);
        }
        for place in &self.copy.sources {
            transfer = transfer.from(place.clone());
        }
        for place in &self.copy.destinations {
            transfer = transfer.to(place.clone());
        }
        transfer.start()
    }

    fn events(&mut self) -> Vec<Event> {
        match &mut self.copy.running {
            Some(running) => running.events(),
            None => self.rows.events(),
        }
    }

    /// Starts it or continues it, and waits for its end at most so long; whether it has ended.
    pub(crate) fn step(&mut self, most: Duration) -> Result<bool, Error> {
        let end = Instant::now().checked_add(most);
        loop {
            let left = end.map_or(Duration::MAX, |end| {
                end.saturating_duration_since(Instant::now())
            });
            let ended = self.look(left.min(LOOK_EVERY));
            for event in self.events() {
                self.take(event);
            }
            if !matches!(ended, Ok(None))
                && let Some(running) = self.copy.running.take()
            {
                self.copy.sent = running.data_sent();
            }
            match ended {
                Ok(None) if left.is_zero() => return Ok(false),
                Ok(None) => {}
                Ok(Some(report)) => {
                    // Rows, and places, are those of one transfer.
                    self.has_rows = false;
                    self.copy.sources.clear();
                    self.copy.destinations.clear();
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
    let transfer = unsafe { transfer.as_mut() }.ok_or(Failure::Misuse("the transfer is NULL"))?;
    transfer.maker.check()?;
    Ok(transfer)
}

/// A transfer without rows and places.
#[unsafe(no_mangle)]
pub extern "C" fn ropewalk_transfer_new() -> *mut ropewalk_transfer {
    Box::into_raw(Box::new(ropewalk_transfer::new()))
}

/// Releases a transfer; one that runs is cancelled first, and awaited. NULL is permitted. In a child of the process that made it nothing is cancelled.
///
/// # Safety
/// `transfer` is NULL or was returned by [`ropewalk_transfer_new`]; it is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ropewalk_transfer_free(transfer: *mut ropewalk_transfer) {
    let _shield = Shield::new();
    if !transfer.is_null() {
        // SAFETY: it was made by `ropewalk_transfer_new`, and the caller gives it up.
        let transfer = unsafe { Box::from_raw(transfer) };
        transfer.maker.release(transfer);
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
            transfer.set_token(ropewalk::read_token(file)?);
            Ok(ROPEWALK_OK)
        })
    }
}

/// A running `ropewalk serve --listen` at `HOST:PORT` carries the rows out, from its queue; the transfer follows. It needs the master's token, which
/// must be the agents'. The job goes on after [`ropewalk_transfer_free`], and after this program; [`ropewalk_transfer_cancel`] ends it.
///
/// # Safety
/// As [`ropewalk_transfer_token_file`]; `at` ends with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ropewalk_transfer_master(
    transfer: *mut ropewalk_transfer,
    at: *const c_char,
    error: *mut *mut ropewalk_error,
) -> ropewalk_result {
    // SAFETY: as this function demands.
    unsafe {
        guard(error, || {
            let (transfer, at) = (handle(transfer)?, text(at)?);
            transfer.set_master(at)?;
            Ok(ROPEWALK_OK)
        })
    }
}

/// Most bytes per second over all readers, or destinations, together; 0 for no limit.
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
            let transfer = handle(transfer)?;
            transfer.limit = rate;
            transfer.rows.limit(rate);
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
            transfer.schedule(row(given)?)?;
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
            transfer.schedule(line.parse()?)?;
            Ok(ROPEWALK_OK)
        })
    }
}

/// The secret of an agent of this process: for transfers of its buffers, and of agents with the same secret.
///
/// # Safety
/// As [`ropewalk_transfer_token_file`]; `agent` is NULL or an agent that is not released.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ropewalk_transfer_token_of(
    transfer: *mut ropewalk_transfer,
    agent: *const ropewalk_agent,
    error: *mut *mut ropewalk_error,
) -> ropewalk_result {
    // SAFETY: as this function demands.
    unsafe {
        guard(error, || {
            let agent = agent.as_ref().ok_or(Failure::Misuse("the agent is NULL"))?;
            handle(transfer)?.set_token(agent.token());
            Ok(ROPEWALK_OK)
        })
    }
}

/// Sets an option by the name that the command has for it: of all transfers `verify`, `limit`, `streams`, `lane`, `plain` and `rails`; of copies also
/// `archive`, `atomic`, `delete`, `delta`, `destinations`, `hard-links` and `sources`. Those without a value there are `true` or `false` here.
///
/// # Safety
/// As [`ropewalk_transfer_token_file`]; `name` and `value` end with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ropewalk_transfer_option(
    transfer: *mut ropewalk_transfer,
    name: *const c_char,
    value: *const c_char,
    error: *mut *mut ropewalk_error,
) -> ropewalk_result {
    // SAFETY: as this function demands.
    unsafe {
        guard(error, || {
            let transfer = handle(transfer)?;
            let (name, value) = (text(name)?, text(value)?);
            match transfer.has_rows {
                true => drop(RowTransfer::new().option(name, value)?),
                // A copy has them all.
                false => drop(Transfer::new().option(name, value)?),
            }
            transfer.options.push((name.into(), value.into()));
            Ok(ROPEWALK_OK)
        })
    }
}

/// The caller's place as the library's.
///
/// # Safety
/// `given` is NULL or points to a place whose texts are NULL or end with a zero byte.
unsafe fn place(given: *const ropewalk_place) -> Result<Place, Failure> {
    // SAFETY: as this function demands.
    let given = unsafe { given.as_ref() }.ok_or(Failure::Misuse("the place is NULL"))?;
    // SAFETY: as this function demands.
    let path = unsafe { text(given.path)? };
    let host = match given.host.is_null() {
        true => None,
        // SAFETY: as this function demands.
        false => Some(unsafe { text(given.host)? }),
    };
    match (host, given.port, path.strip_prefix("buffer:")) {
        (Some(host), port @ 1.., Some(name)) => Ok(Place::buffer(host, port, name)),
        (_, _, Some(_)) => Err(Failure::Misuse(
            "a buffer is at a program's agent; name its host and port",
        )),
        (Some(host), port @ 1.., None) => Ok(Place::at_agent(host, port, path)),
        (Some(host), 0, None) => Ok(Place::over_ssh(host, path)),
        (None, 0, None) => Ok(Place::here(path)),
        (None, _, None) => Err(Failure::Misuse("a place with a port has no host")),
    }
}

/// One more source of a copy: a replica, or a part. Nothing moves before [`ropewalk_transfer_wait`].
///
/// # Safety
/// As [`ropewalk_transfer_token_file`]; `given` is NULL or points to a place whose texts are NULL or end with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ropewalk_transfer_from(
    transfer: *mut ropewalk_transfer,
    given: *const ropewalk_place,
    error: *mut *mut ropewalk_error,
) -> ropewalk_result {
    // SAFETY: as this function demands.
    unsafe {
        guard(error, || {
            handle(transfer)?.add(place(given)?, true)?;
            Ok(ROPEWALK_OK)
        })
    }
}

/// One more destination of a copy, the copy's own path. What is there is replaced.
///
/// # Safety
/// As [`ropewalk_transfer_from`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ropewalk_transfer_to(
    transfer: *mut ropewalk_transfer,
    given: *const ropewalk_place,
    error: *mut *mut ropewalk_error,
) -> ropewalk_result {
    // SAFETY: as this function demands.
    unsafe {
        guard(error, || {
            handle(transfer)?.add(place(given)?, false)?;
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
    if let Some(transfer) = unsafe { transfer.as_ref() }
        && transfer.maker.check().is_ok()
    {
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
