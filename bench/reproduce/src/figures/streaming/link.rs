//! One process of a bare chain: reads whole blocks from one socket and writes them to the next, and does nothing else.
//!
//! The denominator of the streaming figure: what sockets of a kind carry through as many processes.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use ropewalk_lane::shm::Rings;
use rustix::event::{PollFd, PollFlags, poll};
use serde_json::json;
use socket2::SockRef;

use crate::sys::monotonic_nanoseconds as now;

/// The next process listens within this time.
const CONNECT_MAX: Duration = Duration::from_secs(20);

/// The buffer that streams ask for on Unix sockets.
const UNIX_BUFFER_LEN: usize = 1 << 20;

/// Arguments of the hidden command `chain-link`.
#[derive(Args, Clone, Debug)]
pub(crate) struct LinkArgs {
    /// Where to take blocks: tcp:PORT, unix:NAME or shm:NAME; makes them when missing
    #[arg(long)]
    input: Option<String>,
    /// Where to send them: tcp:HOST:PORT, unix:NAME or shm:NAME; drops them when missing
    #[arg(long)]
    output: Option<String>,
    /// Bytes of a block
    #[arg(long)]
    block: usize,
    /// Blocks to make
    #[arg(long)]
    blocks: u64,
}

fn listen(text: &str) -> Result<Box<dyn Read>> {
    match text.split_once(':') {
        Some(("tcp", port)) => {
            let listener = TcpListener::bind(("0.0.0.0", port.parse()?))?;
            Ok(Box::new(listener.accept()?.0))
        }
        Some(("unix", name)) => {
            let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?)?;
            Ok(Box::new(listener.accept()?.0))
        }
        Some(("shm", name)) => {
            let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?)?;
            Ok(Box::new(Waiting(Rings::offer(listener.accept()?.0)?)))
        }
        _ => bail!("{text} is no place to listen"),
    }
}

fn connect(text: &str) -> Result<Box<dyn Write>> {
    match text.split_once(':') {
        Some(("tcp", address)) => {
            let socket = TcpStream::connect(address)?;
            socket.set_nodelay(true)?;
            Ok(Box::new(socket))
        }
        Some(("unix", name)) => {
            let socket = UnixStream::connect_addr(&SocketAddr::from_abstract_name(name)?)?;
            SockRef::from(&socket).set_send_buffer_size(UNIX_BUFFER_LEN)?;
            Ok(Box::new(socket))
        }
        Some(("shm", name)) => {
            let socket = UnixStream::connect_addr(&SocketAddr::from_abstract_name(name)?)?;
            Ok(Box::new(Waiting(Rings::accept(socket)?)))
        }
        _ => bail!("{text} is no place to send to"),
    }
}

/// Rings whose calls wait.
struct Waiting(Rings);

impl Waiting {
    fn until<T>(
        &mut self,
        writes: bool,
        mut call: impl FnMut(&mut Rings) -> io::Result<T>,
    ) -> io::Result<T> {
        loop {
            match call(&mut self.0) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                done => return done,
            }
            if !self.0.arm(writes)? {
                poll(&mut [PollFd::new(&self.0, PollFlags::IN)], None)?;
                self.0.wake()?;
            }
        }
    }
}

impl Read for Waiting {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.until(false, |rings| rings.take(&mut [IoSliceMut::new(buffer)]))
    }
}

impl Write for Waiting {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.until(true, |rings| rings.put(&[IoSlice::new(bytes)]))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Runs one process; the last one prints when its first block arrived and when its last one had.
pub(crate) fn run(args: &LinkArgs) -> Result<()> {
    let until = Instant::now() + CONNECT_MAX;
    let mut output = None;
    while let Some(text) = &args.output
        && output.is_none()
    {
        match connect(text) {
            Ok(connected) => output = Some(connected),
            Err(error) if Instant::now() > until => {
                return Err(error.context("the next process does not listen"));
            }
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
    let mut input = args.input.as_deref().map(listen).transpose()?;
    let mut block = vec![0; args.block];
    let (mut began, mut count) = (None, 0);
    while count < args.blocks {
        if let Some(input) = &mut input {
            input
                .read_exact(&mut block)
                .context("the process before ended early")?;
        }
        began.get_or_insert_with(now);
        if let Some(output) = &mut output {
            output
                .write_all(&block)
                .context("the next process ended early")?;
        }
        count += 1;
    }
    if output.is_none() {
        println!(
            "{}",
            json!({"began": began.unwrap_or_else(now), "ended": now(), "bytes": count * args.block as u64})
        );
    }
    Ok(())
}
