//! How many masters are connected.

use tokio::sync::watch;

/// A master that is connected, as long as this lives.
pub(crate) struct Connected(watch::Sender<usize>);

impl Connected {
    pub fn new(masters: &watch::Sender<usize>) -> Self {
        masters.send_modify(|count| *count += 1);
        Self(masters.clone())
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}
