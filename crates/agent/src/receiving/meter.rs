//! Bytes received on a lane, exact to the packet: on a slow lane a unit takes seconds, and the master wants to know
//! its speed before.

use ropewalk_lane::Stopper;

/// Counts what comes on the streams of a lane, parts of units included.
#[derive(Clone, Debug, Default)]
pub(super) struct Meter {
    // Open streams by key, and what had come on each before its first grant.
    streams: Vec<(u64, Stopper, u64)>,
    // From streams that are gone.
    gone: u64,
    // What the machine knows of.
    told: u64,
}

impl Meter {
    /// A stream opens.
    pub fn add(&mut self, key: u64, stream: Stopper) {
        if let Some(before) = stream.received() {
            self.streams.push((key, stream, before));
        }
    }

    /// Ends all streams.
    pub fn stop(&self) {
        for (_, stream, _) in &self.streams {
            stream.stop();
        }
    }

    /// It is over.
    pub fn remove(&mut self, key: u64) {
        if let Some(at) = self.streams.iter().position(|stream| stream.0 == key) {
            let (_, stream, before) = self.streams.swap_remove(at);
            self.gone += stream.received().unwrap_or(0).saturating_sub(before);
        }
    }

    /// Bytes since this was asked last.
    pub fn fresh(&mut self) -> u64 {
        let come = |(_, stream, before): &(u64, Stopper, u64)| {
            stream.received().unwrap_or(0).saturating_sub(*before)
        };
        let come = self.gone + self.streams.iter().map(come).sum::<u64>();
        let fresh = come.saturating_sub(self.told);
        self.told += fresh;
        fresh
    }
}
