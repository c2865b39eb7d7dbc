//! One deadline for all reads and writes of a socket between processes of this host.

use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use anyhow::Result;
use serde::Serialize;

/// Bytes of one call. The timeout of a socket begins again with each buffer of the kernel that a call fills, and this fits into one.
const PART: usize = 16 << 10;

/// A socket until its deadline: what a peer takes or gives slowly ends there, too.
pub(crate) struct Until<'a> {
    stream: &'a UnixStream,
    until: Instant,
}

impl<'a> Until<'a> {
    /// The deadline is after so long a time from now.
    pub fn new(stream: &'a UnixStream, patience: Duration) -> Self {
        Self {
            stream,
            until: Instant::now() + patience,
        }
    }

    fn rest(&self) -> io::Result<Option<Duration>> {
        match self.until.saturating_duration_since(Instant::now()) {
            Duration::ZERO => Err(ErrorKind::WouldBlock.into()),
            rest => Ok(Some(rest)),
        }
    }
}

impl Read for Until<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.rest()?)?;
        self.stream.read(buffer)
    }
}

impl Write for Until<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.rest()?)?;
        self.stream.write(&bytes[..bytes.len().min(PART)])
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes a line of JSON, within this time in all.
///
/// # Errors
/// [`ErrorKind::WouldBlock`] where that was too short.
pub(crate) fn write_line(
    stream: &UnixStream,
    line: &impl Serialize,
    patience: Duration,
) -> Result<()> {
    let mut line = serde_json::to_vec(line)?;
    line.push(b'\n');
    Ok(Until::new(stream, patience).write_all(&line)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_millis(100);

    /// A peer that takes, or gives, a little all the time ends with the deadline, and one that does nothing.
    #[test]
    fn slow_peers_end() {
        let (own, peer) = UnixStream::pair().unwrap();
        let taken = std::thread::scope(|scope| {
            let taking = scope.spawn(move || io::copy(&mut &peer, &mut io::sink()));
            let mut until = Until::new(&own, PATIENCE);
            let error = io::copy(&mut io::repeat(7), &mut until).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::WouldBlock);
            drop(own);
            taking.join().unwrap()
        });
        assert!(taken.unwrap() > 0);

        let (own, peer) = UnixStream::pair().unwrap();
        std::thread::scope(|scope| {
            let giving = scope.spawn(move || io::copy(&mut io::repeat(7), &mut &peer));
            let mut until = Until::new(&own, PATIENCE);
            let error = io::copy(&mut until, &mut io::sink()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::WouldBlock);
            drop(own);
            giving.join().unwrap().unwrap_err();
        });

        let (own, _peer) = UnixStream::pair().unwrap();
        let long = "x".repeat(4 << 20);
        let error = write_line(&own, &long, PATIENCE).unwrap_err();
        let error = error.downcast::<io::Error>().unwrap();
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
        let error = Until::new(&own, PATIENCE).read(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
    }
}
