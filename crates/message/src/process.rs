//! Which process made something. `fork` copies its memory and descriptors, but none of its threads.

use std::process;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::MessageError;

/// Bytes that are mapped for the number of this process: the kernel rounds them up to a page.
const PAGE_BYTES: usize = 4096;

/// Its address means that the kernel gives no such page.
static NONE: AtomicU32 = AtomicU32::new(0);

/// Where the number of this process is kept; NULL before it was first asked for.
static KEPT: AtomicPtr<AtomicU32> = AtomicPtr::new(ptr::null_mut());

/// The number of this process without a system call, which each call of a socket would make: it is kept in a page that the kernel empties in children.
fn this_process() -> u32 {
    let mut page = KEPT.load(Ordering::Acquire);
    if page.is_null() {
        page = map();
    }
    if ptr::eq(page, &NONE) {
        return process::id();
    }
    // SAFETY: it is a page that `map` has made, and that stays mapped.
    let kept = unsafe { &*page };
    match kept.load(Ordering::Relaxed) {
        0 => {
            let id = process::id();
            kept.store(id, Ordering::Relaxed);
            id
        }
        id => id,
    }
}

/// Makes the page, unless another thread has. Without a lock: a child that is forked meanwhile could not take it.
fn map() -> *mut AtomicU32 {
    let none = (&raw const NONE).cast_mut();
    let (read_write, private) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
    // SAFETY: fresh memory at a place that the kernel chooses.
    let made = unsafe { mmap_anonymous(ptr::null_mut(), PAGE_BYTES, read_write, private) };
    let page = made.map_or(none, |page| {
        // SAFETY: the memory is ours, and nothing is in it yet.
        match unsafe { madvise(page, PAGE_BYTES, Advice::LinuxWipeOnFork) } {
            Ok(()) => page.cast(),
            // Before Linux 4.14.
            Err(_) => {
                // SAFETY: the memory is ours, and nothing points to it.
                let _ = unsafe { munmap(page, PAGE_BYTES) };
                none
            }
        }
    });
    let kept = KEPT.compare_exchange(ptr::null_mut(), page, Ordering::AcqRel, Ordering::Acquire);
    match kept {
        Ok(_) => page,
        Err(other) => {
            if !ptr::eq(page, none) {
                // SAFETY: the memory is ours, and nothing points to it.
                let _ = unsafe { munmap(page.cast(), PAGE_BYTES) };
            }
            other
        }
    }
}

/// The process that made something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Maker(u32);

impl Maker {
    /// This process.
    #[must_use]
    pub fn this() -> Self {
        Self(this_process())
    }

    /// Whether it is this process; makes no system call. In a child of it locks may be held for ever by threads that do not exist there, and what is sent would
    /// get between the bytes of the parent: there nothing but the descriptors may be closed.
    #[must_use]
    pub fn is_this(self) -> bool {
        self.0 == this_process()
    }

    /// For what cannot be done in a child of it.
    ///
    /// # Errors
    /// [`MessageError::OtherProcess`].
    pub fn check(self) -> Result<(), MessageError> {
        match self.is_this() {
            true => Ok(()),
            false => Err(MessageError::OtherProcess),
        }
    }

    /// A process that this one is not.
    #[cfg(test)]
    pub(crate) fn other() -> Self {
        Self(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_that_is_kept_is_that_of_the_process() {
        for _ in 0..2 {
            assert_eq!(this_process(), process::id());
        }
        assert!(Maker::this().check().is_ok());
        assert!(matches!(
            Maker::other().check(),
            Err(MessageError::OtherProcess)
        ));
    }
}
