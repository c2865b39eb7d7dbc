//! An agent of this process: memory that transfers read and write.

use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, c_void};

use ropewalk::{Agent, AgentOptions, Buffer};

use crate::error::{Failure, guard, text};
use crate::process::Maker;
use crate::ropewalk_result::ROPEWALK_OK;
use crate::sigpipe::Shield;
use crate::{ropewalk_error, ropewalk_result};

/// An agent of this process. It serves the memory that it is lent, and nothing else.
pub struct ropewalk_agent {
    agent: Agent,
    token: [u8; 32],
    buffers: BTreeMap<String, Buffer>,
    maker: Maker,
}

impl ropewalk_agent {
    pub(crate) fn token(&self) -> [u8; 32] {
        self.token
    }

    fn buffer(&self, name: &str) -> Result<&Buffer, Failure> {
        let found = self.buffers.get(name);
        found.ok_or(Failure::Misuse("the agent was lent no buffer of this name"))
    }

    fn lend(&mut self, name: &str, buffer: Buffer) -> Result<(), Failure> {
        self.agent.lend(name, buffer.clone())?;
        self.buffers.insert(name.to_owned(), buffer);
        Ok(())
    }
}

impl Drop for ropewalk_agent {
    fn drop(&mut self) {
        // Before the memory is the caller's again no thread may touch it.
        for buffer in self.buffers.values() {
            buffer.take_back();
        }
    }
}

/// A range of bytes: `end` is the one behind the last.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ropewalk_range {
    /// First byte.
    pub start: u64,
    /// The byte behind the last one.
    pub end: u64,
}

/// # Safety
/// `agent` is NULL or was returned by [`ropewalk_agent_new`] and is not released.
unsafe fn handle<'a>(agent: *mut ropewalk_agent) -> Result<&'a mut ropewalk_agent, Failure> {
    // SAFETY: as this function demands.
    let agent = unsafe { agent.as_mut() }.ok_or(Failure::Misuse("the agent is NULL"))?;
    agent.maker.check()?;
    Ok(agent)
}

/// Starts an agent in this process, on threads of its own.
///
/// * `address`: where it listens, as `192.168.1.5:0` or `[::]:7420`; port 0 lets the system choose. NULL for all addresses of this host.
/// * `token_file`: the file with its secret; NULL for a fresh one, which transfers get by
///   [`ropewalk_transfer_token_of`](crate::ropewalk_transfer_token_of).
/// * `agent`: where the agent is put.
///
/// # Safety
/// Texts are NULL or end with a zero byte; `agent` is NULL or a place for a pointer; `error` is NULL or a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ropewalk_agent_new(
    address: *const c_char,
    token_file: *const c_char,
    agent: *mut *mut ropewalk_agent,
    error: *mut *mut ropewalk_error,
) -> ropewalk_result {
    // SAFETY: as this function demands.
    unsafe {
        guard(error, || {
            if agent.is_null() {
                return Err(Failure::Misuse("the place for the agent is NULL"));
            }
            let address = match address.is_null() {
                true => "[::]:0",
                false => text(address)?,
            };
            let address = address.parse().map_err(|_| {
                Failure::Misuse("the address is none; write a number and a port, as 192.168.1.5:0")
            })?;
            let token = match token_file.is_null() {
                true => ropewalk::new_token(),
                false => ropewalk::read_token(text(token_file)?)?,
            };
            let made = Agent::start(AgentOptions {
                listen: vec![address],
                token,
                roots: Vec::new(),
            })?;
            let made = ropewalk_agent {
                agent: made,
                token,
                buffers: BTreeMap::new(),
                maker: Maker::this(),
            };
            *agent = Box::into_raw(Box::new(made));
            Ok(ROPEWALK_OK)
        })
    }
}

/// Stops an agent and its part of transfers, and releases it. Memory that it was lent is the caller's again. NULL is permitted. In a child of the process
/// that made it nothing is stopped.
///
/// # Safety
/// `agent` is NULL or was returned by [`ropewalk_agent_new`]; it is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ropewalk_agent_free(agent: *mut ropewalk_agent) {
    let _shield = Shield::new();
    if !agent.is_null() {
        // SAFETY: it was made by `ropewalk_agent_new`, and the caller gives it up.
        let agent = unsafe { Box::from_raw(agent) };
        agent.maker.release(agent);
    }
}

/// The port that it listens on.
///
/// # Safety
/// `agent` is NULL or was returned by [`ropewalk_agent_new`] and is not released.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ropewalk_agent_port(agent: *const ropewalk_agent) -> u16 {
    // SAFETY: as this function demands.
    let agent = unsafe { agent.as_ref() };
    let address = agent.and_then(|agent| agent.agent.addresses().first());
    address.map_or(0, |address| address.port())
}

fn check_memory(start: *const c_void, size: usize) -> Result<(), Failure> {
    match start.is_null() && size > 0 {
        true => Err(Failure::Misuse("the memory is NULL")),
        false => Ok(()),
    }
}

/// Serves memory that transfers read, as `buffer:NAME` of this agent. Nothing is copied before a transfer needs it.
///
/// # Safety
/// `agent` as for [`ropewalk_agent_port`]; `name` ends with a zero byte; `error` is NULL or a place for a pointer. `size` bytes from `start` on can be
/// read, and do not change, until [`ropewalk_agent_take_back`] or [`ropewalk_agent_free`] has returned.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ropewalk_agent_lend(
    agent: *mut ropewalk_agent,
    name: *const c_char,
    start: *const c_void,
    size: usize,
    error: *mut *mut ropewalk_error,
) -> ropewalk_result {
    // SAFETY: as this function demands.
    unsafe {
        guard(error, || {
            check_memory(start, size)?;
            let buffer = Buffer::lent(start.cast(), size);
            handle(agent)?.lend(text(name)?, buffer)?;
            Ok(ROPEWALK_OK)
        })
    }
}

/// Serves memory that transfers write, and read, as `buffer:NAME` of this agent.
///
/// # Safety
/// As [`ropewalk_agent_lend`]; the bytes can be written, too, and nothing else reads or writes them while a transfer does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ropewalk_agent_lend_writable(
    agent: *mut ropewalk_agent,
    name: *const c_char,
    start: *mut c_void,
    size: usize,
    error: *mut *mut ropewalk_error,
) -> ropewalk_result {
    // SAFETY: as this function demands.
    unsafe {
        guard(error, || {
            check_memory(start, size)?;
            let buffer = Buffer::lent_writable(start.cast(), size);
            handle(agent)?.lend(text(name)?, buffer)?;
            Ok(ROPEWALK_OK)
        })
    }
}

/// Ends the use of a buffer: when it returns, the memory is the caller's again. A transfer that needs it fails. Waits for no network.
///
/// # Safety
/// `agent` as for [`ropewalk_agent_port`]; `name` ends with a zero byte; `error` is NULL or a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ropewalk_agent_take_back(
    agent: *mut ropewalk_agent,
    name: *const c_char,
    error: *mut *mut ropewalk_error,
) -> ropewalk_result {
    // SAFETY: as this function demands.
    unsafe {
        guard(error, || {
            let (agent, name) = (handle(agent)?, text(name)?);
            agent.buffer(name)?.take_back();
            drop(agent.agent.withdraw(name));
            agent.buffers.remove(name);
            Ok(ROPEWALK_OK)
        })
    }
}

/// Whether a transfer writes the buffer now: 1 or 0; -1 where there is none of this name. Its bytes are not to be read then.
///
/// # Safety
/// As [`ropewalk_agent_take_back`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ropewalk_agent_is_busy(
    agent: *mut ropewalk_agent,
    name: *const c_char,
) -> c_int {
    let mut is_busy = -1;
    // SAFETY: as this function demands.
    unsafe {
        guard(std::ptr::null_mut(), || {
            is_busy = c_int::from(handle(agent)?.buffer(text(name)?)?.is_busy());
            Ok(ROPEWALK_OK)
        });
    }
    is_busy
}

/// The ranges of a buffer that transfers have delivered, also ones that failed, in order: at most `most` of them.
///
/// * `count`: where it is put how many there are, which may be more.
///
/// # Safety
/// As [`ropewalk_agent_take_back`]; `ranges` is NULL or has space for `most` ranges; `count` is NULL or a place for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ropewalk_agent_written(
    agent: *mut ropewalk_agent,
    name: *const c_char,
    ranges: *mut ropewalk_range,
    most: usize,
    count: *mut usize,
    error: *mut *mut ropewalk_error,
) -> ropewalk_result {
    // SAFETY: as this function demands.
    unsafe {
        guard(error, || {
            let written = handle(agent)?.buffer(text(name)?)?.written();
            if ranges.is_null() && most > 0 {
                return Err(Failure::Misuse("the place for ranges is NULL"));
            }
            for (at, range) in written.iter().take(most).enumerate() {
                let (start, end) = (range.start, range.end);
                *ranges.add(at) = ropewalk_range { start, end };
            }
            if let Some(count) = count.as_mut() {
                *count = written.len();
            }
            Ok(ROPEWALK_OK)
        })
    }
}
