//! What calls return, and what is known of a failure.

use std::any::Any;
use std::ffi::{CStr, CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use ropewalk::Error;

/// How a call ended; failures are sorted by the party that must act.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ropewalk_result {
    /// It did what it was asked for; of a transfer: all is delivered.
    ROPEWALK_OK = 0,
    /// The transfer has not ended; of message sockets: nothing is there yet.
    ROPEWALK_UNDER_WAY = 1,
    /// The peer sends nothing more.
    ROPEWALK_END = 2,
    /// The caller: what was asked for is wrong, is refused, or was cancelled.
    ROPEWALK_INPUT = 10,
    /// The operator of this host.
    ROPEWALK_HOST = 20,
    /// The operator of another host.
    ROPEWALK_PEER = 30,
    /// The operator of the network: the same call may succeed later.
    ROPEWALK_NETWORK = 40,
    /// The authors of Ropewalk.
    ROPEWALK_BUG = 50,
}

use crate::sigpipe::Shield;
use ropewalk_result::{
    ROPEWALK_BUG, ROPEWALK_HOST, ROPEWALK_INPUT, ROPEWALK_NETWORK, ROPEWALK_PEER,
};

/// A failure.
pub struct ropewalk_error {
    message: CString,
    kind: CString,
}

/// As C strings end at a zero byte, none is in one.
pub(crate) fn c_string(text: &str) -> CString {
    let bytes: Vec<u8> = text.bytes().filter(|byte| *byte != 0).collect();
    CString::new(bytes).unwrap_or_default()
}

impl From<&Error> for ropewalk_error {
    fn from(error: &Error) -> Self {
        let kind = serde_json::to_value(error.fault().kind);
        let kind = kind.ok().and_then(|kind| Some(kind.as_str()?.to_owned()));
        Self {
            message: c_string(&error.to_string()),
            kind: c_string(&kind.unwrap_or_default()),
        }
    }
}

/// A list of texts of the caller.
///
/// # Safety
/// `texts` is NULL or points to `count` texts as for [`text`].
pub(crate) unsafe fn texts<'a>(
    texts: *const *const c_char,
    count: usize,
) -> Result<Vec<&'a str>, Failure> {
    if texts.is_null() && count > 0 {
        return Err(Failure::Misuse("a list of texts is NULL"));
    }
    // SAFETY: as this function demands.
    (0..count)
        .map(|at| unsafe { text(*texts.add(at)) })
        .collect()
}

/// The sort of an error as a result.
pub(crate) fn result_of(error: &Error) -> ropewalk_result {
    match error {
        Error::Input(_) => ROPEWALK_INPUT,
        Error::Host(_) => ROPEWALK_HOST,
        Error::Peer(_) => ROPEWALK_PEER,
        Error::Network(_) => ROPEWALK_NETWORK,
        _ => ROPEWALK_BUG,
    }
}

/// A failure within these bindings, before the library is called.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The caller's.
    Misuse(&'static str),
    Library(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Library(error)
    }
}

impl Failure {
    fn into_parts(self) -> (ropewalk_result, ropewalk_error) {
        match self {
            Self::Misuse(what) => (
                ROPEWALK_INPUT,
                ropewalk_error {
                    message: c_string(what),
                    kind: c_string("usage"),
                },
            ),
            Self::Library(error) => (result_of(&error), ropewalk_error::from(&error)),
        }
    }
}

fn of_panic(panic: &(dyn Any + Send)) -> ropewalk_error {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    ropewalk_error {
        message: c_string(&format!(
            "ropewalk failed in itself: {}; please report it",
            text.unwrap_or_default()
        )),
        kind: c_string("bug"),
    }
}

/// Does `work`; a failure, or a panic, goes to the caller's place for it.
///
/// # Safety
/// `error` is NULL or points to a place for a pointer.
pub(crate) unsafe fn guard(
    error: *mut *mut ropewalk_error,
    work: impl FnOnce() -> Result<ropewalk_result, Failure>,
) -> ropewalk_result {
    let _shield = Shield::new();
    let (result, failed) = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(result)) => return result,
        Ok(Err(failure)) => failure.into_parts(),
        Err(panic) => (ROPEWALK_BUG, of_panic(panic.as_ref())),
    };
    if !error.is_null() {
        // SAFETY: the caller gives a place for a pointer.
        unsafe { *error = Box::into_raw(Box::new(failed)) };
    }
    result
}

/// A text of the caller.
///
/// # Safety
/// `text` is NULL or points to bytes that end with a zero, for as long as the result is used.
pub(crate) unsafe fn text<'a>(text: *const c_char) -> Result<&'a str, Failure> {
    if text.is_null() {
        return Err(Failure::Misuse("a text is NULL"));
    }
    // SAFETY: the caller gives bytes that end with a zero.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str()
        .map_err(|_| Failure::Misuse("a text is not UTF-8"))
}

/// What failed, where, and what to do: a sentence. It lasts as long as the error.
///
/// # Safety
/// `error` is NULL or was returned by a call of this library and is not released.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ropewalk_error_message(error: *const ropewalk_error) -> *const c_char {
    // SAFETY: as this function demands.
    match unsafe { error.as_ref() } {
        Some(error) => error.message.as_ptr(),
        None => ptr::null(),
    }
}

/// Kind of error of a transfer, as in `error_kind` of `--json`; empty for other calls.
///
/// # Safety
/// As [`ropewalk_error_message`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ropewalk_error_kind(error: *const ropewalk_error) -> *const c_char {
    // SAFETY: as this function demands.
    match unsafe { error.as_ref() } {
        Some(error) => error.kind.as_ptr(),
        None => ptr::null(),
    }
}

/// Releases an error; NULL is permitted.
///
/// # Safety
/// As [`ropewalk_error_message`]; it is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ropewalk_error_free(error: *mut ropewalk_error) {
    if !error.is_null() {
        // SAFETY: it was made by `guard`, and the caller gives it up.
        drop(unsafe { Box::from_raw(error) });
    }
}

/// Releases a text that a call returned; NULL is permitted.
///
/// # Safety
/// `text` is NULL or was returned by a call of this library that says so; it is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ropewalk_string_free(text: *mut c_char) {
    if !text.is_null() {
        // SAFETY: it was made by `CString::into_raw`, and the caller gives it up.
        drop(unsafe { CString::from_raw(text) });
    }
}
