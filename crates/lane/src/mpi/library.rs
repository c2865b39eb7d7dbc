//! The MPI of this process: a small library that was compiled for it, opened while the program runs.
//!
//! The program is linked with no MPI. The implementations have different binary interfaces, so what it opens is `shim.c`,
//! compiled with the `mpicc` of the MPI that is there (`installation.rs`), which offers the six calls below under one interface.
//! A process opens one, and is a rank of one `mpirun`, until it ends.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::io;
use std::os::fd::IntoRawFd as _;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use super::MpiError;
use super::join::{Place, SOCKET};

type InitCall = unsafe extern "C" fn(*mut *mut c_char, *mut c_int, *mut c_int, *mut c_int) -> c_int;
type SendCall = unsafe extern "C" fn(*const u8, c_int, c_int, c_int, *mut u64) -> c_int;
type ReceiveCall = unsafe extern "C" fn(*mut u8, c_int, c_int, c_int, *mut u64) -> c_int;
type TestCall = unsafe extern "C" fn(*mut u64, *mut c_int, *mut c_int) -> c_int;
type CancelCall = unsafe extern "C" fn(*mut u64) -> c_int;
type TextCall = unsafe extern "C" fn(c_int, *mut c_char, c_int);

/// Bytes of an error in words; MPI's are shorter.
const TEXT_LEN: usize = 1024;

/// MPI_SUCCESS is 0 in the standard.
const SUCCESS: c_int = 0;

static LIBRARY: OnceLock<Result<Library, MpiError>> = OnceLock::new();

/// The opened library, initialised.
#[derive(Debug)]
pub(super) struct Library {
    send: SendCall,
    receive: ReceiveCall,
    test: TestCall,
    cancel: CancelCall,
    text: TextCall,
    /// One thread calls MPI at a time, which is what it is asked for. No call waits. Has what abandoned requests read or write.
    abandoned: Mutex<Vec<(Request, Box<[u8]>)>>,
    next_tag: AtomicI32,
    tag_max: i32,
    /// Of this process.
    pub rank: i32,
    /// Ranks that there are.
    pub size: i32,
}

/// A message that is being sent or received.
#[derive(Debug)]
pub(super) struct Request(u64);

/// Makes this process the rank of a place: opens the library and initialises MPI, which waits for the other ranks of its
/// `mpirun`. Once for a process; further calls give what the first one gave. No other thread may use the environment meanwhile.
///
/// # Errors
/// [`MpiError::Library`] when the library cannot be opened, [`MpiError::Failed`] when MPI does not start.
pub fn start(place: Place) -> Result<(), MpiError> {
    let opened = LIBRARY.get_or_init(|| Library::open(place));
    opened.as_ref().map(drop).map_err(Clone::clone)
}

/// The library of this process.
pub(super) fn library() -> io::Result<&'static Library> {
    match LIBRARY.get() {
        Some(Ok(library)) => Ok(library),
        Some(Err(error)) => Err(io::Error::other(error.clone())),
        None => Err(io::Error::other("this process is no rank of mpirun")),
    }
}

/// What the dynamic linker said last.
fn dlerror() -> String {
    // SAFETY: gives a text that ends with 0 or nothing; it is copied before another call can change it.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "no reason was given".into();
    }
    // SAFETY: as above.
    unsafe { CStr::from_ptr(text) }
        .to_string_lossy()
        .into_owned()
}

impl Library {
    fn open(place: Place) -> Result<Self, MpiError> {
        let shim = &place.library;
        if cfg!(not(feature = "mpi")) {
            return Err(MpiError::NotBuilt);
        }
        let failed = |reason: String| MpiError::Library {
            path: shim.to_owned(),
            reason,
        };
        let path = CString::new(shim.as_os_str().as_bytes())
            .map_err(|_| failed("its path has a byte 0".into()))?;
        // Plugins of MPI look for its symbols among those of the process.
        let flags = libc::RTLD_NOW | libc::RTLD_GLOBAL;
        // SAFETY: the path ends with 0. The library runs code of the MPI that this host's user has, as any program with MPI.
        let handle = unsafe { libc::dlopen(path.as_ptr(), flags) };
        if handle.is_null() {
            return Err(failed(dlerror()));
        }
        let symbol = |name: &CStr| {
            // SAFETY: an open handle, which is never closed, and a name that ends with 0.
            let found = unsafe { libc::dlsym(handle, name.as_ptr()) };
            match found.is_null() {
                true => Err(failed(dlerror())),
                false => Ok(found),
            }
        };
        // SAFETY: the symbols are the functions of `shim.c`, with these arguments and results.
        let (init, send, receive, test, cancel, text) = unsafe {
            (
                std::mem::transmute::<*mut c_void, InitCall>(symbol(c"ropewalk_mpi_init")?),
                std::mem::transmute::<*mut c_void, SendCall>(symbol(c"ropewalk_mpi_send")?),
                std::mem::transmute::<*mut c_void, ReceiveCall>(symbol(c"ropewalk_mpi_receive")?),
                std::mem::transmute::<*mut c_void, TestCall>(symbol(c"ropewalk_mpi_test")?),
                std::mem::transmute::<*mut c_void, CancelCall>(symbol(c"ropewalk_mpi_cancel")?),
                std::mem::transmute::<*mut c_void, TextCall>(symbol(c"ropewalk_mpi_text")?),
            )
        };
        let mut library = Self {
            send,
            receive,
            test,
            cancel,
            text,
            abandoned: Mutex::default(),
            next_tag: AtomicI32::new(1),
            tag_max: 0,
            rank: 0,
            size: 0,
        };
        let mut variables = place.variables;
        if let Some(socket) = place.socket {
            // It is MPI's from here on.
            variables.push(format!("{SOCKET}={}", socket.into_raw_fd()).into());
        }
        let variables = variables.into_iter();
        let variables = variables.filter_map(|text| CString::new(text.into_vec()).ok());
        let mut variables: Vec<*mut c_char> = variables.map(CString::into_raw).collect();
        variables.push(std::ptr::null_mut());
        // SAFETY: texts that end with 0 and are never freed, NULL behind them, and three places to write to; called once, by
        // `OnceLock`, by the thread that the caller of `start` guarantees to be the only one with the environment.
        let error = unsafe {
            init(
                variables.as_mut_ptr(),
                &mut library.rank,
                &mut library.size,
                &mut library.tag_max,
            )
        };
        match error {
            SUCCESS => Ok(library),
            error => Err(MpiError::Failed(library.describe(error))),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(Request, Box<[u8]>)>> {
        self.abandoned
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Needs the lock, or that no other thread has the library.
    fn describe(&self, error: c_int) -> String {
        let mut text = [0; TEXT_LEN];
        // SAFETY: writes at most `TEXT_LEN` bytes with a 0 at the end.
        unsafe { (self.text)(error, text.as_mut_ptr().cast(), TEXT_LEN as c_int) };
        let text = CStr::from_bytes_until_nul(&text).unwrap_or_default();
        match text.to_string_lossy() {
            text if text.is_empty() => format!("MPI error {error}"),
            text => text.into_owned(),
        }
    }

    fn check(&self, error: c_int) -> io::Result<()> {
        match error {
            SUCCESS => Ok(()),
            error => Err(io::Error::other(MpiError::Failed(self.describe(error)))),
        }
    }

    /// A tag for messages to this process that no other stream of it has.
    pub fn new_tag(&self) -> io::Result<i32> {
        let tag = self.next_tag.fetch_add(1, Ordering::Relaxed);
        match (1..=self.tag_max).contains(&tag) {
            true => Ok(tag),
            false => Err(io::Error::other(
                "this process has opened as many streams as MPI has tags",
            )),
        }
    }

    /// Whether a peer may name this rank and tag.
    pub fn has(&self, rank: i32, tag: i32) -> bool {
        (0..self.size).contains(&rank) && (1..=self.tag_max).contains(&tag)
    }

    /// Begins to send the first bytes of a buffer.
    ///
    /// # Safety
    /// The buffer keeps its place and contents until the request is done, or is given to [`Library::abandon`].
    pub unsafe fn send(
        &self,
        bytes: &[u8],
        len: usize,
        rank: i32,
        tag: i32,
    ) -> io::Result<Request> {
        let _lock = self.lock();
        let mut request = 0;
        debug_assert!(len <= bytes.len());
        // SAFETY: `len` is within the bytes, which stay as the caller guarantees; buffers are far below 2 GiB.
        let error = unsafe { (self.send)(bytes.as_ptr(), len as c_int, rank, tag, &mut request) };
        self.check(error).map(|()| Request(request))
    }

    /// Begins to receive a message of at most so many bytes.
    ///
    /// # Safety
    /// As with [`Library::send`], and no contents of the buffer are used meanwhile.
    pub unsafe fn receive(&self, bytes: &mut [u8], rank: i32, tag: i32) -> io::Result<Request> {
        let _lock = self.lock();
        let (mut request, len) = (0, bytes.len() as c_int);
        // SAFETY: as in `send`.
        let error = unsafe { (self.receive)(bytes.as_mut_ptr(), len, rank, tag, &mut request) };
        self.check(error).map(|()| Request(request))
    }

    /// The length of the message where the request is done, which it must not be tested for again.
    pub fn test(&self, request: &mut Request) -> io::Result<Option<usize>> {
        let _lock = self.lock();
        self.test_locked(request)
    }

    fn test_locked(&self, request: &mut Request) -> io::Result<Option<usize>> {
        let (mut done, mut len) = (0, 0);
        // SAFETY: the request is not done, and three places to write to; the lock is held.
        let error = unsafe { (self.test)(&mut request.0, &mut done, &mut len) };
        self.check(error)?;
        Ok((done != 0).then(|| usize::try_from(len).unwrap_or(0)))
    }

    /// Gives up a message that is not done, and keeps its buffer as long as MPI may use it.
    pub fn abandon(&self, mut request: Request, buffer: Box<[u8]>, is_received: bool) {
        let mut abandoned = self.lock();
        if is_received {
            // SAFETY: the request is not done. That it cannot be cancelled is no harm: the buffer is kept.
            let _ = unsafe { (self.cancel)(&mut request.0) };
        }
        abandoned.push((request, buffer));
        abandoned.retain_mut(|(request, _)| matches!(self.test_locked(request), Ok(None)));
    }
}
