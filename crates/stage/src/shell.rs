//! The program of a stage: a child that gets blocks and gives blocks, over pipes that do not block.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};

use ropewalk_proto::stage::process::Held;
use rustix::io::{Errno, readv, writev};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::error::StageError;
use crate::pool::{Buffer, Pool};
use crate::program::PREFIX_LEN;

pub(crate) struct Shell {
    command: String,
    is_lines: bool,
    longest: usize,
    child: Child,
    // Readable once the child has ended.
    ended: OwnedFd,
    status: Option<ExitStatus>,
    input: Option<OwnedFd>,
    // The other end of its input, to see what is left there when it has ended.
    unread: Option<OwnedFd>,
    feeding: Option<Held<Buffer>>,
    fed: usize,
    output: Option<OwnedFd>,
    prefix: [u8; PREFIX_LEN],
    prefix_have: usize,
    // With frames: the block that is being read, and its length. With lines: what is read, to the end of the buffer.
    filling: Option<(Buffer, usize)>,
    filled: usize,
    // Begin of a line whose end was not in the last block.
    rest: Vec<u8>,
}

fn system(doing: &'static str) -> impl Fn(io::Error) -> StageError {
    move |source| StageError::System { doing, source }
}

impl Shell {
    /// Starts the command.
    ///
    /// * `variables`: of its environment.
    /// * `ends`: whether it gets blocks, and whether it gives blocks.
    pub fn start(
        command: &[u8],
        is_lines: bool,
        longest: usize,
        variables: &[(&str, String)],
        ends: (bool, bool),
    ) -> Result<Self, StageError> {
        use std::os::unix::ffi::OsStrExt as _;
        let text = String::from_utf8_lossy(command).into_owned();
        let pipe = ends.0.then(io::pipe).transpose();
        let (unread, input) = pipe.map_err(system("making a pipe"))?.unzip();
        let theirs = unread.as_ref().map(|pipe| pipe.try_clone()).transpose();
        let theirs = theirs.map_err(system("making a pipe"))?;
        let mut child = Command::new("/bin/sh")
            .arg("-c")
            .arg(std::ffi::OsStr::from_bytes(command))
            .envs(variables.iter().map(|(name, value)| (name, value)))
            .stdin(theirs.map_or_else(Stdio::null, Stdio::from))
            .stdout(if ends.1 {
                Stdio::piped()
            } else {
                Stdio::null()
            })
            .spawn()
            .map_err(system("starting /bin/sh"))?;
        let (input, unread) = (input.map(OwnedFd::from), unread.map(OwnedFd::from));
        let output = child.stdout.take().map(OwnedFd::from);
        let prepare = || -> io::Result<OwnedFd> {
            for pipe in [&input, &output].into_iter().flatten() {
                rustix::io::ioctl_fionbio(pipe, true)?;
                // More in a call where the system permits it.
                let _ = rustix::pipe::fcntl_setpipe_size(pipe, longest.clamp(64 << 10, 1 << 20));
            }
            let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
            let pid = pid.ok_or_else(|| io::Error::other("no process number"))?;
            Ok(pidfd_open(pid, PidfdFlags::empty())?)
        };
        let ended = prepare().map_err(system("watching a program"))?;
        Ok(Self {
            command: text,
            is_lines,
            longest,
            child,
            ended,
            status: None,
            input,
            unread,
            feeding: None,
            fed: 0,
            output,
            prefix: [0; PREFIX_LEN],
            prefix_have: 0,
            filling: None,
            filled: 0,
            rest: Vec::new(),
        })
    }

    fn failed(&self, what: impl Into<String>) -> StageError {
        StageError::Program {
            command: self.command.clone(),
            what: what.into(),
        }
    }

    /// Whether it takes another block.
    pub fn is_idle(&self) -> bool {
        self.feeding.is_none() && self.input.is_some()
    }

    /// Gives it a block.
    pub fn feed(&mut self, held: Held<Buffer>) {
        debug_assert!(self.is_idle());
        (self.feeding, self.fed) = (Some(held), 0);
    }

    /// Writes what its pipe takes; gives the block back once it is written.
    pub fn write(&mut self) -> Result<Option<Held<Buffer>>, StageError> {
        let (Some(held), Some(input)) = (&self.feeding, &self.input) else {
            return Ok(None);
        };
        let content = &held.body[..held.header.length as usize];
        let prefix = held.header.length.to_le_bytes();
        let prefix = if self.is_lines { &[][..] } else { &prefix[..] };
        while self.fed < prefix.len() + content.len() {
            let begin = &prefix[self.fed.min(prefix.len())..];
            let rest = &content[self.fed.saturating_sub(prefix.len())..];
            match writev(input, &[IoSlice::new(begin), IoSlice::new(rest)]) {
                Ok(count) => self.fed += count,
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR) => {}
                Err(error) => return Err(self.failed(format!("takes no blocks: {error}"))),
            }
        }
        Ok(self.feeding.take())
    }

    /// All blocks are written.
    pub fn close(&mut self) {
        if self.feeding.is_none() {
            self.input = None;
        }
    }

    /// Reads a block that it gives; `None` where none is whole yet, or after the last one.
    pub fn read(&mut self, pool: &mut Pool) -> Result<Option<(Buffer, usize)>, StageError> {
        if self.is_lines {
            self.read_lines(pool)
        } else {
            self.read_frame(pool)
        }
    }

    fn read_frame(&mut self, pool: &mut Pool) -> Result<Option<(Buffer, usize)>, StageError> {
        loop {
            let Some(output) = &self.output else {
                return Ok(None);
            };
            if self.filling.is_none() && self.prefix_have == PREFIX_LEN {
                let length = u32::from_le_bytes(self.prefix) as usize;
                if length > self.longest {
                    return Err(self.failed(format!(
                        "gave a block of {length} bytes, longer than {}; each block is its length in 4 bytes, little endian, \
                         and its content",
                        self.longest
                    )));
                }
                (self.filling, self.filled, self.prefix_have) = (Some((pool.take(), length)), 0, 0);
            }
            if let Some((_, length)) = &self.filling
                && self.filled == *length
            {
                return Ok(self.filling.take());
            }
            let body: &mut [u8] = match &mut self.filling {
                Some((buffer, length)) => &mut buffer[self.filled..*length],
                None => &mut [],
            };
            let body_len = body.len();
            let prefix = &mut self.prefix[self.prefix_have..];
            match readv(
                output,
                &mut [IoSliceMut::new(body), IoSliceMut::new(prefix)],
            ) {
                Ok(0) if self.filling.is_none() && self.prefix_have == 0 => self.output = None,
                Ok(0) => return Err(self.ended_within()),
                Ok(count) => {
                    self.filled += count.min(body_len);
                    self.prefix_have += count.saturating_sub(body_len);
                }
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR) => {}
                Err(error) => return Err(self.failed(format!("gives no blocks: {error}"))),
            }
        }
    }

    /// What its status says is more than that its output ended.
    fn ended_within(&mut self) -> StageError {
        match self.child.try_wait() {
            Ok(Some(status)) if !status.success() => self.failed(describe(status)),
            _ => self.failed("ended its output within a block"),
        }
    }

    fn read_lines(&mut self, pool: &mut Pool) -> Result<Option<(Buffer, usize)>, StageError> {
        loop {
            let Some(output) = &self.output else {
                return Ok(None);
            };
            if self.filling.is_none() {
                let mut buffer = pool.take();
                buffer[..self.rest.len()].copy_from_slice(&self.rest);
                self.filled = self.rest.len();
                self.rest.clear();
                self.filling = Some((buffer, self.longest));
            }
            let Some((buffer, _)) = &mut self.filling else {
                return Ok(None);
            };
            match rustix::io::read(output, &mut buffer[self.filled..self.longest]) {
                Ok(0) => {
                    self.output = None;
                    // There is a place for it: a full buffer is dealt before more is read.
                    if self.filled > 0 && buffer[self.filled - 1] != b'\n' {
                        buffer[self.filled] = b'\n';
                        self.filled += 1;
                    }
                    let last = self.filling.take().map(|(buffer, _)| (buffer, self.filled));
                    return Ok(match last {
                        Some((buffer, 0)) => {
                            pool.give(buffer);
                            None
                        }
                        last => last,
                    });
                }
                Ok(count) => self.filled += count,
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR) => {}
                Err(error) => return Err(self.failed(format!("gives no lines: {error}"))),
            }
            if self.filled == self.longest {
                let Some(at) = buffer[..self.longest]
                    .iter()
                    .rposition(|&byte| byte == b'\n')
                else {
                    return Err(self.failed(format!(
                        "gave a line longer than {} bytes; give --block a larger size",
                        self.longest
                    )));
                };
                self.rest.extend_from_slice(&buffer[at + 1..self.longest]);
                return Ok(self.filling.take().map(|(buffer, _)| (buffer, at + 1)));
            }
        }
    }

    /// Looks whether it has ended.
    pub fn check(&mut self) -> Result<(), StageError> {
        if self.status.is_none() {
            self.status = self
                .child
                .try_wait()
                .map_err(system("waiting for a program"))?;
        }
        match self.status {
            Some(status) if !status.success() => Err(self.failed(describe(status))),
            Some(_) if self.input.is_some() || self.left_unread() > 0 => Err(self.failed(format!(
                "ended before it had read all of its blocks, with {} bytes left in its standard input; write \
                 `; cat >/dev/null` behind a command that needs a part only",
                self.left_unread()
            ))),
            _ => Ok(()),
        }
    }

    /// Bytes in the pipe of its standard input.
    fn left_unread(&self) -> u64 {
        let left = self.unread.as_ref().map(rustix::io::ioctl_fionread);
        left.and_then(Result::ok).unwrap_or(0)
    }

    /// Whether it has taken and given everything and ended well.
    pub fn is_over(&self) -> bool {
        self.status.is_some_and(|status| status.success()) && self.output.is_none()
    }

    /// Its input, where a block waits for it.
    pub fn writes(&self) -> Option<BorrowedFd<'_>> {
        self.feeding.as_ref()?;
        self.input.as_ref().map(AsFd::as_fd)
    }

    /// Its output.
    pub fn reads(&self) -> Option<BorrowedFd<'_>> {
        self.output.as_ref().map(AsFd::as_fd)
    }

    /// What is readable when it has ended, until that was seen.
    pub fn ends(&self) -> Option<BorrowedFd<'_>> {
        self.status.is_none().then(|| self.ended.as_fd())
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        if self.status.is_none() {
            // It may have ended by itself.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// How a program ended, as part of a sentence.
fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("ended with status {code}"),
        (None, Some(signal)) => format!("was killed by signal {signal}"),
        (None, None) => "ended".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ropewalk_proto::stage::deal::Deal;
    use ropewalk_proto::stage::frame::{Header, Identity};
    use ropewalk_proto::stage::process::{Process, Role, Settings};

    /// A block that a process holds.
    fn held(len: usize) -> Held<Buffer> {
        let mut process = Process::new(Settings {
            role: Role::Sink,
            node: 0,
            group: 1,
            inputs: 1,
            outputs: 0,
            block: len,
            buffers: 2,
            deal: Deal::Random,
            seed: 0,
        });
        let header = Header {
            identity: Identity {
                node: 0,
                group: 0,
                number: 0,
            },
            length: len as u32,
            check: 0,
        };
        let _ = process.poll_credit(0);
        process
            .arrive(0, header, 1, 0, Pool::new(len).take())
            .unwrap();
        process.take().unwrap()
    }

    fn end(command: &str, ends: (bool, bool)) -> Result<(), StageError> {
        let folder = tempfile::tempdir().unwrap();
        let variables = [("FOLDER", folder.path().to_str().unwrap().to_owned())];
        let mut shell = Shell::start(command.as_bytes(), false, 1000, &variables, ends).unwrap();
        if ends.0 {
            shell.feed(held(1000));
            assert!(shell.write().unwrap().is_some());
            shell.close();
        }
        std::fs::write(folder.path().join("go"), "").unwrap();
        while !shell.is_over() {
            shell.check()?;
            let _ = shell.read(&mut Pool::new(1000))?;
            std::thread::yield_now();
        }
        shell.check()
    }

    /// A program that ends with status 0 and has not read what it was given is an error with the number of bytes.
    #[test]
    fn what_is_left_in_the_pipe_is_an_error() {
        const WAIT: &str = "until [ -e $FOLDER/go ]; do sleep 0.01; done";
        end("cat >/dev/null", (true, false)).unwrap();
        end(WAIT, (false, true)).unwrap();
        for (command, left) in [("true", 1004), ("head -c 4 >/dev/null", 1000)] {
            for ends in [(true, true), (true, false)] {
                let error = end(&format!("{WAIT}; {command}"), ends)
                    .unwrap_err()
                    .to_string();
                assert!(
                    error.contains(&format!("with {left} bytes left")),
                    "{command}: {error}"
                );
            }
        }
    }
}
