//! Tensors by DLPack: the capsule that `__dlpack__` gives, with or without a version.
//!
//! The layout and the duties of a consumer are those of `dlpack.h`: it takes the pointer, renames the capsule so that this does not release it, and calls the
//! deleter once, also for a version that it does not know.

use std::ffi::{CStr, c_int, c_void};
use std::ptr;

use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::is_gapless;

/// Memory of the host's processors.
const CPU: i32 = 1;

/// The version that is asked for. A later minor one differs in flags and kinds of elements, which are bytes here.
const VERSION: (u32, u32) = (1, 0);

const READ_ONLY: u64 = 1;
const IS_COPIED: u64 = 2;

const PLAIN: (&CStr, &CStr) = (c"dltensor", c"used_dltensor");
const WITH_VERSION: (&CStr, &CStr) = (c"dltensor_versioned", c"used_dltensor_versioned");

#[repr(C)]
struct Described {
    data: *mut c_void,
    device_kind: i32,
    _device_number: i32,
    dimensions: i32,
    _code: u8,
    bits: u8,
    lanes: u16,
    shape: *const i64,
    /// In elements; NULL for rows without gaps.
    strides: *const i64,
    byte_offset: u64,
}

#[repr(C)]
struct Plain {
    tensor: Described,
    _context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Plain)>,
}

#[repr(C)]
struct WithVersion {
    major: u32,
    minor: u32,
    _context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut WithVersion)>,
    flags: u64,
    tensor: Described,
}

/// What was taken out of a capsule, and is to be given back once.
enum Owned {
    Plain(*mut Plain),
    WithVersion(*mut WithVersion),
}

impl Drop for Owned {
    fn drop(&mut self) {
        // Where there is no interpreter any more there is nothing to give back to.
        let _ = Python::try_attach(|_| match *self {
            // SAFETY: the pointer was taken out of a capsule, which does not release it any more, and nothing uses it after this.
            Self::Plain(managed) => unsafe {
                if let Some(deleter) = (*managed).deleter {
                    deleter(managed);
                }
            },
            // SAFETY: as above; the place of the deleter is the same in all versions.
            Self::WithVersion(managed) => unsafe {
                if let Some(deleter) = (*managed).deleter {
                    deleter(managed);
                }
            },
        });
    }
}

pub(super) struct Tensor {
    start: *mut u8,
    len: usize,
    _owned: Owned,
}

fn refused(why: impl Into<String>) -> PyErr {
    PyBufferError::new_err(why.into())
}

impl Tensor {
    pub fn of(object: &Bound<'_, PyAny>, is_written: bool) -> PyResult<Self> {
        // Before anything is exported: a device may have to wait for its work first.
        let device = object.call_method0("__dlpack_device__")?;
        on_this_host(device.extract::<(i32, i32)>()?.0)?;
        let owned = take(&export(object)?)?;
        // SAFETY: both were taken out of a capsule and are not released yet.
        let (tensor, flags) = unsafe {
            match &owned {
                Owned::Plain(managed) => (&(**managed).tensor, 0),
                Owned::WithVersion(managed) => {
                    let (major, minor) = ((**managed).major, (**managed).minor);
                    if major != VERSION.0 {
                        return Err(refused(format!(
                            "the tensor is described as in DLPack {major}.{minor}, which is not known here; give its numpy view"
                        )));
                    }
                    (&(**managed).tensor, (**managed).flags)
                }
            }
        };
        if is_written && flags & READ_ONLY != 0 {
            return Err(refused(
                "the tensor cannot be written; give one that is not read-only",
            ));
        }
        if is_written && flags & IS_COPIED != 0 {
            return Err(refused(
                "the tensor gives a copy of its memory, and what is written there is lost; give a contiguous one in memory of this host",
            ));
        }
        // SAFETY: `owned` keeps what is described.
        let (start, len) = unsafe { tensor.memory()? };
        Ok(Self {
            start,
            len,
            _owned: owned,
        })
    }

    pub fn start(&self) -> *mut u8 {
        self.start
    }

    pub fn len(&self) -> usize {
        self.len
    }
}

fn on_this_host(kind: i32) -> PyResult<()> {
    match kind {
        CPU => Ok(()),
        _ => Err(refused(format!(
            "the tensor is on a device (kind {kind} of DLPack), not in memory of this host; give a copy of it there, as of Tensor.cpu"
        ))),
    }
}

/// The capsule. Objects that know no versions take no arguments.
fn export<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let py = object.py();
    let arguments = PyDict::new(py);
    arguments.set_item("max_version", VERSION)?;
    arguments.set_item("copy", false)?;
    match object.call_method("__dlpack__", (), Some(&arguments)) {
        Err(error) if error.is_instance_of::<PyTypeError>(py) => object.call_method0("__dlpack__"),
        exported => exported,
    }
}

fn take(capsule: &Bound<'_, PyAny>) -> PyResult<Owned> {
    let capsule = capsule.as_ptr();
    let taken = |(name, used): (&CStr, &'static CStr)| -> Option<*mut c_void> {
        // SAFETY: the object lives and the interpreter's lock is held; both names last as long as the program.
        unsafe {
            if ffi::PyCapsule_IsValid(capsule, name.as_ptr()) != 1 {
                return None;
            }
            let managed = ffi::PyCapsule_GetPointer(capsule, name.as_ptr());
            let renamed: c_int = ffi::PyCapsule_SetName(capsule, used.as_ptr());
            (renamed == 0).then_some(managed)
        }
    };
    if let Some(managed) = taken(WITH_VERSION) {
        return Ok(Owned::WithVersion(managed.cast()));
    }
    if let Some(managed) = taken(PLAIN) {
        return Ok(Owned::Plain(managed.cast()));
    }
    Err(PyTypeError::new_err(
        "__dlpack__ gave no capsule of a tensor that is unused",
    ))
}

impl Described {
    /// Where its bytes are, and how many.
    ///
    /// # Safety
    /// Shape and strides have as many numbers as there are dimensions.
    unsafe fn memory(&self) -> PyResult<(*mut u8, usize)> {
        on_this_host(self.device_kind)?;
        let bits = usize::from(self.bits) * usize::from(self.lanes);
        if bits == 0 || !bits.is_multiple_of(8) {
            return Err(refused(format!(
                "elements of the tensor have {bits} bits, which are no whole bytes; give its bytes"
            )));
        }
        // SAFETY: as this function demands.
        let (shape, strides) = unsafe {
            let count = usize::try_from(self.dimensions).unwrap_or(0);
            (numbers(self.shape, count), numbers(self.strides, count))
        };
        let is_described = usize::try_from(self.dimensions) == Ok(shape.len());
        let elements = shape.iter().try_fold(1_usize, |all, &length| {
            all.checked_mul(usize::try_from(length).ok()?)
        });
        let len = elements.and_then(|elements| elements.checked_mul(bits / 8));
        let len = len
            .filter(|len| is_described && isize::try_from(*len).is_ok())
            .ok_or_else(|| refused("the tensor's shape cannot be right"))?;
        if len == 0 {
            return Ok((ptr::dangling_mut(), 0));
        }
        is_gapless(self.strides.is_null() || are_rows(shape, strides))?;
        let offset = usize::try_from(self.byte_offset);
        let offset = offset.ok().filter(|_| !self.data.is_null());
        let offset = offset.ok_or_else(|| refused("the tensor has no memory"))?;
        // SAFETY: the offset is within the tensor's memory, as the description says.
        Ok((unsafe { self.data.cast::<u8>().add(offset) }, len))
    }
}

/// # Safety
/// `start` is NULL or points to so many numbers, for as long as the result is used.
unsafe fn numbers<'a>(start: *const i64, count: usize) -> &'a [i64] {
    match start.is_null() {
        true => &[],
        // SAFETY: as this function demands.
        false => unsafe { std::slice::from_raw_parts(start, count) },
    }
}

/// Whether elements follow each other without gaps, the last dimension first. Of a dimension of one element the stride says nothing.
fn are_rows(shape: &[i64], strides: &[i64]) -> bool {
    let mut step = 1;
    shape.iter().zip(strides).rev().all(|(&length, &stride)| {
        let fits = length == 1 || stride == step;
        step *= length;
        fits
    })
}
