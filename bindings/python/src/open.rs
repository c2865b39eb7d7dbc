//! What is open until a program closes it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use pyo3::prelude::*;

use crate::error::misuse;
use crate::own::Own;
use crate::transfer::lock;
use crate::waiting::waited;

/// What programs may close while other threads use it: these find it closed when they look again.
pub(crate) struct Open<T> {
    held: Own<Mutex<Option<Arc<T>>>>,
    name: &'static str,
}

impl<T> Open<T> {
    pub fn new(name: &'static str, held: T) -> Self {
        let held = Own::new(Mutex::new(Some(Arc::new(held))));
        Self { held, name }
    }

    pub fn get(&self) -> PyResult<Arc<T>> {
        let held = lock(self.held.used()?).clone();
        held.ok_or_else(|| misuse(format!("this {} was closed", self.name)))
    }

    pub fn close(&self) {
        // Not with the lock held: what is dropped here may take locks of its own.
        let held = self.held.get().and_then(|held| lock(held).take());
        drop(held);
    }

    /// As [`waited`], as long as it is open.
    pub fn wait<R: Send>(
        &self,
        py: Python<'_>,
        seconds: Option<f64>,
        mut call: impl FnMut(&T, Duration) -> Result<Option<R>, ropewalk::Error> + Send,
    ) -> PyResult<Option<R>>
    where
        T: Send + Sync,
    {
        let done = waited(py, seconds, |most| match self.get() {
            Ok(held) => call(&held, most).transpose().map(|done| done.map(Ok)),
            Err(closed) => Some(Ok(Err(closed))),
        })?;
        done.transpose()
    }
}
