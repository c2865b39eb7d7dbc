//! Memory of objects of Python, by the buffer protocol, or by DLPack where an object has only that, as tensors do.

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;

use tensor::Tensor;
use view::View;

mod tensor;
mod view;

/// Contiguous memory of an object, which stays where it is until this is dropped.
pub(crate) struct Memory {
    start: *mut u8,
    len: usize,
    // Keeps the object, and where its memory is.
    _kept: Kept,
}

enum Kept {
    View { _view: View },
    Tensor { _tensor: Tensor },
}

// SAFETY: the memory may be used by any thread: what may touch it when is the caller's duty, as the documents of each call say. What keeps it is released with
// the interpreter's lock, whichever thread drops it.
unsafe impl Send for Memory {}

fn is_gapless(is_contiguous: bool) -> PyResult<()> {
    match is_contiguous {
        true => Ok(()),
        false => Err(PyBufferError::new_err(
            "the memory has gaps; give a contiguous copy, as of numpy.ascontiguousarray or Tensor.contiguous",
        )),
    }
}

impl Memory {
    /// Memory to be read.
    pub fn readable(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        Self::of(object, false)
    }

    /// Memory to be written.
    pub fn writable(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        Self::of(object, true)
    }

    fn of(object: &Bound<'_, PyAny>, is_written: bool) -> PyResult<Self> {
        // SAFETY: the object lives, and the interpreter's lock is held.
        let has_buffer = unsafe { ffi::PyObject_CheckBuffer(object.as_ptr()) } == 1;
        if !has_buffer && object.hasattr("__dlpack__")? {
            let tensor = Tensor::of(object, is_written)?;
            return Ok(Self {
                start: tensor.start(),
                len: tensor.len(),
                _kept: Kept::Tensor { _tensor: tensor },
            });
        }
        let view = View::of(object, is_written)?;
        Ok(Self {
            start: view.start(),
            len: view.len(),
            _kept: Kept::View { _view: view },
        })
    }

    /// Its first byte; any address where it has none.
    pub fn start(&self) -> *mut u8 {
        self.start
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// Its bytes from `from` on, at most so many. Copied with the interpreter's lock held: other threads of Python may write it when that is released.
    pub fn copy(&self, _py: Python<'_>, from: usize, most: usize) -> Vec<u8> {
        let count = self.len.saturating_sub(from).min(most);
        if count == 0 {
            return Vec::new();
        }
        // SAFETY: the range is within the memory, which this keeps where it is.
        unsafe { std::slice::from_raw_parts(self.start.add(from), count) }.to_vec()
    }
}
