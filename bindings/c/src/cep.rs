//! CEP Table 1: one transfer of the process, described row by row.
//!
//! `include/cep.h` gives these calls the names of the paper, so that no symbol of the library is called `transfer`.

use std::ffi::{c_char, c_int};
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::error::{Failure, guard, text};
use crate::ropewalk_result::{ROPEWALK_OK, ROPEWALK_UNDER_WAY};
use crate::{ropewalk_error, ropewalk_result, ropewalk_row, ropewalk_transfer};

/// Longest sleep of a call that waits: what wakes it is the transfer's descriptor.
const LOOK_EVERY: Timespec = Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};

/// Sleep of a call that waits where there is no descriptor.
const PAUSE: Duration = Duration::from_millis(20);

struct Process {
    transfer: Option<ropewalk_transfer>,
    // The first failure of `cep_schedule` since the last call of `cep_transfer`, which returns it.
    refused: *mut ropewalk_error,
    error: *mut ropewalk_error,
    is_event_driven: bool,
}

// SAFETY: its pointers are its own, and a progress function is never set.
unsafe impl Send for Process {}

static PROCESS: Mutex<Process> = Mutex::new(Process {
    transfer: None,
    refused: ptr::null_mut(),
    error: ptr::null_mut(),
    is_event_driven: false,
});

fn process() -> MutexGuard<'static, Process> {
    PROCESS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Process {
    fn transfer(&mut self) -> &mut ropewalk_transfer {
        self.transfer.get_or_insert_with(ropewalk_transfer::new)
    }

    /// One step of the transfer, which does not wait.
    fn step(&mut self) -> ropewalk_result {
        self.forget_error();
        if !self.refused.is_null() {
            self.error = std::mem::replace(&mut self.refused, ptr::null_mut());
            return ropewalk_result::ROPEWALK_INPUT;
        }
        let mut error = ptr::null_mut();
        // SAFETY: `error` is a place for a pointer.
        let result = unsafe {
            guard(&raw mut error, || {
                match self.transfer().step(Duration::ZERO)? {
                    true => Ok(ROPEWALK_OK),
                    false => Ok(ROPEWALK_UNDER_WAY),
                }
            })
        };
        self.error = error;
        result
    }

    fn forget_error(&mut self) {
        // SAFETY: it was made by `guard`, and is replaced.
        unsafe { crate::ropewalk_error_free(std::mem::replace(&mut self.error, ptr::null_mut())) };
    }
}

/// The file with the secret of the agents. Whether it can be used; else [`cep_error`] says why not.
///
/// # Safety
/// `file` ends with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cep_token_file(file: *const c_char) -> bool {
    let mut process = process();
    process.forget_error();
    let mut error = ptr::null_mut();
    // SAFETY: `error` is a place for a pointer; the text as this function demands.
    let result = unsafe {
        guard(&raw mut error, || {
            let file = text(file)?;
            process.transfer().set_token(ropewalk::read_token(file)?);
            Ok(ROPEWALK_OK)
        })
    };
    process.error = error;
    result == ROPEWALK_OK
}

/// A running `ropewalk serve --listen` at `HOST:PORT` carries the transfer out, with the token of [`cep_token_file`]. Whether that is an address; else
/// [`cep_error`] says why not.
///
/// # Safety
/// `at` ends with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cep_master(at: *const c_char) -> bool {
    let mut process = process();
    process.forget_error();
    let mut error = ptr::null_mut();
    // SAFETY: `error` is a place for a pointer; the text as this function demands.
    let result = unsafe {
        guard(&raw mut error, || {
            process.transfer().set_master(text(at)?)?;
            Ok(ROPEWALK_OK)
        })
    };
    process.error = error;
    result == ROPEWALK_OK
}

/// Schedules one part of the transfer; what is wrong with it the next [`cep_transfer`] says.
///
/// # Safety
/// `row` is NULL or points to a row whose texts end with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cep_schedule(given: *const ropewalk_row) {
    let mut process = process();
    let mut error = ptr::null_mut();
    // SAFETY: `error` is a place for a pointer; the row as this function demands.
    unsafe {
        guard(&raw mut error, || {
            let given = given.as_ref().ok_or(Failure::Misuse("the row is NULL"))?;
            let row = crate::transfer::row(given)?;
            process.transfer().schedule(row)?;
            Ok(ROPEWALK_OK)
        });
    }
    if error.is_null() {
        return;
    }
    if process.refused.is_null() {
        process.refused = error;
    } else {
        // SAFETY: it was made by `guard` just now.
        unsafe { crate::ropewalk_error_free(error) };
    }
}

/// Starts the transfer, or continues it. Whether all is delivered. Without [`cep_event_driven`] it waits for the end, else it returns at once.
/// After `false` [`cep_error`] has the reason, or nothing while the transfer runs; the next call tries again. The other calls may be made by
/// other threads while it waits.
#[unsafe(no_mangle)]
pub extern "C" fn cep_transfer() -> bool {
    loop {
        let mut process = process();
        let result = process.step();
        let descriptor = process.transfer().borrowed_descriptor();
        let descriptor = descriptor.map(|descriptor| descriptor.try_clone_to_owned());
        if result != ROPEWALK_UNDER_WAY || process.is_event_driven {
            return result == ROPEWALK_OK;
        }
        drop(process);
        match descriptor {
            Some(Ok(descriptor)) => {
                let mut polled = [PollFd::new(&descriptor, PollFlags::IN)];
                // Whatever it says, the next step looks.
                let _ = poll(&mut polled, Some(&LOOK_EVERY));
            }
            // No further descriptor: the end is seen a little later.
            _ => std::thread::sleep(PAUSE),
        }
    }
}

/// Bytes that are in the destinations, checked and on stable storage.
#[unsafe(no_mangle)]
pub extern "C" fn cep_data_sent() -> u64 {
    let process = process();
    process
        .transfer
        .as_ref()
        .map_or(0, ropewalk_transfer::data_sent)
}

/// Whether [`cep_transfer`] returns at once, for programs with an event loop.
#[unsafe(no_mangle)]
pub extern "C" fn cep_event_driven(is_event_driven: bool) {
    process().is_event_driven = is_event_driven;
}

/// A descriptor for `poll` while the transfer runs, else -1: readable when [`cep_transfer`] has something to do.
#[unsafe(no_mangle)]
pub extern "C" fn cep_descriptor() -> c_int {
    let process = process();
    process
        .transfer
        .as_ref()
        .map_or(-1, ropewalk_transfer::descriptor)
}

/// Ends the running transfer within a second.
#[unsafe(no_mangle)]
pub extern "C" fn cep_cancel() {
    if let Some(transfer) = &process().transfer {
        transfer.cancel();
    }
}

/// Why the last call failed; NULL where it did not. It lasts until the next call.
#[unsafe(no_mangle)]
pub extern "C" fn cep_error() -> *const c_char {
    // SAFETY: the error is the process's own.
    unsafe { crate::ropewalk_error_message(process().error) }
}
