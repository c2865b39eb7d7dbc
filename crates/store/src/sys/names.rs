//! Names, numbers and home folders of users and groups, as this host has them.

use std::ffi::{CStr, CString};
use std::mem::MaybeUninit;

/// Longest record that is read; directories of large sites put long texts into some fields, and groups have many members.
const RECORD_MAX: usize = 1 << 20;

/// Calls one of the system's functions with a larger buffer until the record fits, and reads a field of the record.
fn look_up<R, T>(
    call: impl Fn(*mut R, *mut libc::c_char, usize, *mut *mut R) -> libc::c_int,
    field: impl Fn(&R) -> T,
) -> Option<T> {
    let mut buffer: Vec<libc::c_char> = vec![0; 4096];
    loop {
        let mut record = MaybeUninit::<R>::uninit();
        let mut found = std::ptr::null_mut();
        let result = call(
            record.as_mut_ptr(),
            buffer.as_mut_ptr(),
            buffer.len(),
            &mut found,
        );
        if result == libc::ERANGE && buffer.len() < RECORD_MAX {
            buffer.resize(buffer.len() * 2, 0);
            continue;
        }
        if result != 0 || found.is_null() {
            return None;
        }
        // SAFETY: the call succeeded and found a record, so the record is filled in; its texts lie in the buffer, which outlives
        // the call of `field`.
        return Some(field(unsafe { record.assume_init_ref() }));
    }
}

/// A text of a record.
fn text(field: *const libc::c_char) -> Vec<u8> {
    // SAFETY: the fields of a record that was found point to texts in its buffer that end with a zero.
    unsafe { CStr::from_ptr(field) }.to_bytes().to_vec()
}

/// The number of a user.
pub(crate) fn user_id(name: &[u8]) -> Option<u32> {
    let name = CString::new(name).ok().filter(|name| !name.is_empty())?;
    look_up(
        |record, buffer, len, found| {
            // SAFETY: the name ends with a zero; record and buffer are valid for writing, the buffer for the length given.
            unsafe { libc::getpwnam_r(name.as_ptr(), record, buffer, len, found) }
        },
        |record: &libc::passwd| record.pw_uid,
    )
}

/// The home folder of a user; `None` when this host does not know the user, or cannot tell.
pub(crate) fn home_of(user: &[u8]) -> Option<Vec<u8>> {
    let user = CString::new(user).ok().filter(|user| !user.is_empty())?;
    let home = look_up(
        |record, buffer, len, found| {
            // SAFETY: the name ends with a zero; record and buffer are valid for writing, the buffer for the length given.
            unsafe { libc::getpwnam_r(user.as_ptr(), record, buffer, len, found) }
        },
        |record: &libc::passwd| text(record.pw_dir),
    );
    home.filter(|home| home.starts_with(b"/"))
}

/// The number of a group.
pub(crate) fn group_id(name: &[u8]) -> Option<u32> {
    let name = CString::new(name).ok().filter(|name| !name.is_empty())?;
    look_up(
        |record, buffer, len, found| {
            // SAFETY: the name ends with a zero; record and buffer are valid for writing, the buffer for the length given.
            unsafe { libc::getgrnam_r(name.as_ptr(), record, buffer, len, found) }
        },
        |record: &libc::group| record.gr_gid,
    )
}

/// The name of a user.
pub(crate) fn user_name(id: u32) -> Option<Vec<u8>> {
    look_up(
        |record, buffer, len, found| {
            // SAFETY: record and buffer are valid for writing, the buffer for the length given.
            unsafe { libc::getpwuid_r(id, record, buffer, len, found) }
        },
        |record: &libc::passwd| text(record.pw_name),
    )
}

/// The name of a group.
pub(crate) fn group_name(id: u32) -> Option<Vec<u8>> {
    look_up(
        |record, buffer, len, found| {
            // SAFETY: record and buffer are valid for writing, the buffer for the length given.
            unsafe { libc::getgrgid_r(id, record, buffer, len, found) }
        },
        |record: &libc::group| text(record.gr_name),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The superuser has the same number everywhere; what this host does not know has neither name nor number.
    #[test]
    fn names_and_numbers_agree() {
        assert_eq!(
            (user_id(b"root"), user_name(0)),
            (Some(0), Some(b"root".to_vec()))
        );
        assert_eq!(
            (group_id(b"root"), group_name(0)),
            (Some(0), Some(b"root".to_vec()))
        );
        assert_eq!((user_id(b"no such user"), group_id(b"")), (None, None));
        assert_eq!(
            (user_name(4_000_000_001), group_name(4_000_000_001)),
            (None, None)
        );
    }
}
