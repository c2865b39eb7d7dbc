//! Memory by the buffer protocol: with its format, so that elements which hold pointers are refused, or as plain bytes where its exporter can state no
//! format, as numpy for `bfloat16`.

use std::ffi::{CStr, c_char, c_int};
use std::mem::MaybeUninit;

use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;

use super::is_gapless;

/// A buffer that an object has given, until this is dropped.
pub(super) struct View(
    /// Exporters may keep pointers into it: it stays where it is.
    Box<ffi::Py_buffer>,
);

impl Drop for View {
    fn drop(&mut self) {
        // Where there is no interpreter any more there is nothing to give back to.
        // SAFETY: the object filled it in, and it is given back once.
        let _ = Python::try_attach(|_| unsafe { ffi::PyBuffer_Release(&raw mut *self.0) });
    }
}

fn refused(why: impl Into<String>) -> PyErr {
    PyBufferError::new_err(why.into())
}

impl View {
    pub fn of(object: &Bound<'_, PyAny>, is_written: bool) -> PyResult<Self> {
        let view = match Self::get(object, ffi::PyBUF_FULL_RO) {
            Ok(view) => view,
            // What cannot be stated as a request asks is a BufferError, or a ValueError of numpy.
            Err(error)
                if error.is_instance_of::<PyBufferError>(object.py())
                    || error.is_instance_of::<PyValueError>(object.py()) =>
            {
                Self::without_format(object)?
            }
            Err(error) => return Err(error),
        };
        if let Some(format) = view.format()
            && has_pointers(format)
        {
            return Err(refused(format!(
                "its elements (format {:?}) hold pointers, which mean nothing elsewhere; give numbers, or bytes as of pickle.dumps",
                String::from_utf8_lossy(format)
            )));
        }
        // SAFETY: the object filled it in.
        let is_contiguous =
            unsafe { ffi::PyBuffer_IsContiguous(&raw const *view.0, b'C' as c_char) };
        is_gapless(is_contiguous == 1)?;
        if is_written && view.0.readonly != 0 {
            return Err(refused(
                "the memory cannot be written: bytes are not, bytearrays and numpy arrays are",
            ));
        }
        Ok(view)
    }

    /// As bytes: what such a request has no strides for is refused by the exporter.
    fn without_format(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let has_objects = object
            .getattr("dtype")
            .and_then(|dtype| dtype.getattr("hasobject"))
            .and_then(|has| has.is_truthy());
        if has_objects.unwrap_or(false) {
            return Err(refused(
                "its elements hold pointers (dtype object), which mean nothing elsewhere; give numbers, or bytes as of pickle.dumps",
            ));
        }
        Self::get(object, ffi::PyBUF_SIMPLE).map_err(|error| {
            refused(format!(
                "the memory is not to be had as contiguous bytes: {}",
                error.value(object.py())
            ))
        })
    }

    fn get(object: &Bound<'_, PyAny>, flags: c_int) -> PyResult<Self> {
        let mut view = Box::new(MaybeUninit::<ffi::Py_buffer>::uninit());
        // SAFETY: the object lives, the interpreter's lock is held, and the place is one for a buffer.
        if unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), view.as_mut_ptr(), flags) } != 0 {
            return Err(PyErr::fetch(object.py()));
        }
        // SAFETY: the object filled it in.
        Ok(Self(unsafe { view.assume_init() }))
    }

    fn format(&self) -> Option<&[u8]> {
        // SAFETY: the format ends with a zero byte, and lasts as long as the buffer.
        (!self.0.format.is_null()).then(|| unsafe { CStr::from_ptr(self.0.format) }.to_bytes())
    }

    pub fn start(&self) -> *mut u8 {
        self.0.buf.cast()
    }

    pub fn len(&self) -> usize {
        usize::try_from(self.0.len).unwrap_or(0)
    }
}

/// Whether elements of a format hold addresses of this process: objects (`O`), pointers (`P`, `&`), functions (`X`), and texts as ctypes has them (`z`, `Z`
/// without the kind of a complex number). Names of fields are between colons.
fn has_pointers(format: &[u8]) -> bool {
    let mut is_name = false;
    format.iter().enumerate().any(|(at, &byte)| {
        if byte == b':' {
            is_name = !is_name;
        }
        !is_name
            && match byte {
                b'O' | b'P' | b'&' | b'X' | b'z' => true,
                b'Z' => !matches!(format.get(at + 1), Some(b'e' | b'f' | b'd' | b'g')),
                _ => false,
            }
    })
}
