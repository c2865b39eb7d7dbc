//! UDT beside the lane: the distribution's library, loaded when it is there, under a sender and a receiver of our own.
//!
//! The library is C++ with a plain interface; its functions are found by the names that the compiler gave them.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::net::SocketAddrV4;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};

use crate::process::Process;
use crate::ropewalk::Place;

const LIBRARY: &CStr = c"libudt.so.0";
pub(super) const PORT: u16 = 9200;
/// What either end hands over with one call.
const BLOCK: usize = 256 << 10;
/// `UDT_MSS`.
const MSS: c_int = 0;
const FAILED: c_int = -1;

type Address = *const libc::sockaddr;

/// The functions that are needed.
struct Library {
    socket: unsafe extern "C" fn(c_int, c_int, c_int) -> c_int,
    bind: unsafe extern "C" fn(c_int, Address, c_int) -> c_int,
    listen: unsafe extern "C" fn(c_int, c_int) -> c_int,
    accept: unsafe extern "C" fn(c_int, *mut libc::sockaddr, *mut c_int) -> c_int,
    connect: unsafe extern "C" fn(c_int, Address, c_int) -> c_int,
    send: unsafe extern "C" fn(c_int, *const c_char, c_int, c_int) -> c_int,
    recv: unsafe extern "C" fn(c_int, *mut c_char, c_int, c_int) -> c_int,
    close: unsafe extern "C" fn(c_int) -> c_int,
    set: unsafe extern "C" fn(c_int, c_int, c_int, *const c_void, c_int) -> c_int,
    startup: unsafe extern "C" fn() -> c_int,
    cleanup: unsafe extern "C" fn() -> c_int,
}

/// Why there is no UDT here; `None` when there is.
pub(super) fn missing() -> Option<String> {
    // SAFETY: the name is a C string; loading runs the library's own initialisers.
    let library = unsafe { libc::dlopen(LIBRARY.as_ptr(), libc::RTLD_NOW) };
    if library.is_null() {
        return Some("libudt is not installed; run scripts/install-test-tools".into());
    }
    // SAFETY: a handle that was just opened.
    unsafe { libc::dlclose(library) };
    None
}

impl Library {
    fn load() -> Result<Self> {
        // SAFETY: as in `missing`; it stays loaded.
        let library = unsafe { libc::dlopen(LIBRARY.as_ptr(), libc::RTLD_NOW) };
        ensure!(!library.is_null(), "libudt is not installed");
        let find = |name: &CStr| {
            // SAFETY: an open handle and a C string.
            let found = unsafe { libc::dlsym(library, name.as_ptr()) };
            ensure!(!found.is_null(), "libudt has no {name:?}");
            Ok(found)
        };
        // SAFETY: the names hold the types of the arguments, and all of them return an int: version 4 of the library.
        unsafe {
            use std::mem::transmute as of;
            Ok(Self {
                socket: of::<*mut c_void, unsafe extern "C" fn(c_int, c_int, c_int) -> c_int>(
                    find(c"_ZN3UDT6socketEiii")?,
                ),
                bind: of::<*mut c_void, unsafe extern "C" fn(c_int, Address, c_int) -> c_int>(
                    find(c"_ZN3UDT4bindEiPK8sockaddri")?,
                ),
                listen: of::<*mut c_void, unsafe extern "C" fn(c_int, c_int) -> c_int>(find(
                    c"_ZN3UDT6listenEii",
                )?),
                accept: of::<
                    *mut c_void,
                    unsafe extern "C" fn(c_int, *mut libc::sockaddr, *mut c_int) -> c_int,
                >(find(c"_ZN3UDT6acceptEiP8sockaddrPi")?),
                connect: of::<*mut c_void, unsafe extern "C" fn(c_int, Address, c_int) -> c_int>(
                    find(c"_ZN3UDT7connectEiPK8sockaddri")?,
                ),
                send: of::<
                    *mut c_void,
                    unsafe extern "C" fn(c_int, *const c_char, c_int, c_int) -> c_int,
                >(find(c"_ZN3UDT4sendEiPKcii")?),
                recv: of::<
                    *mut c_void,
                    unsafe extern "C" fn(c_int, *mut c_char, c_int, c_int) -> c_int,
                >(find(c"_ZN3UDT4recvEiPcii")?),
                close: of::<*mut c_void, unsafe extern "C" fn(c_int) -> c_int>(find(
                    c"_ZN3UDT5closeEi",
                )?),
                set: of::<
                    *mut c_void,
                    unsafe extern "C" fn(c_int, c_int, c_int, *const c_void, c_int) -> c_int,
                >(find(c"_ZN3UDT10setsockoptEii6UDTOptPKvi")?),
                startup: of::<*mut c_void, unsafe extern "C" fn() -> c_int>(find(
                    c"_ZN3UDT7startupEv",
                )?),
                cleanup: of::<*mut c_void, unsafe extern "C" fn() -> c_int>(find(
                    c"_ZN3UDT7cleanupEv",
                )?),
            })
        }
    }
}

fn raw(address: SocketAddrV4) -> libc::sockaddr_in {
    libc::sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: address.port().to_be(),
        sin_addr: libc::in_addr {
            s_addr: u32::from(*address.ip()).to_be(),
        },
        sin_zero: [0; 8],
    }
}

/// One end: takes `bytes` at the address and says how long that took, or sends them there.
pub(crate) fn end(serves: bool, address: SocketAddrV4, bytes: u64, mtu: i32) -> Result<()> {
    let udt = Library::load()?;
    let target = raw(address);
    let (target, length) = (
        (&raw const target).cast::<libc::sockaddr>(),
        size_of::<libc::sockaddr_in>() as c_int,
    );
    let check = |what: &str, result: c_int| {
        ensure!(result != FAILED, "UDT: cannot {what}");
        Ok(result)
    };
    // SAFETY: as the library's header has them: the address and the option are live for the calls, with their lengths.
    let socket = unsafe {
        check("start", (udt.startup)())?;
        let socket = check(
            "make a socket",
            (udt.socket)(libc::AF_INET, libc::SOCK_STREAM, 0),
        )?;
        let option = (&raw const mtu).cast();
        check(
            "set the packets' length",
            (udt.set)(socket, 0, MSS, option, size_of::<i32>() as c_int),
        )?;
        socket
    };
    let mut block = vec![0_u8; BLOCK];
    let mut left = bytes;
    if serves {
        let mut peer = raw(address);
        let mut room = length;
        // SAFETY: the address is live; the library writes a peer's address of at most `room` bytes.
        let stream = unsafe {
            check("bind", (udt.bind)(socket, target, length))?;
            check("listen", (udt.listen)(socket, 1))?;
            println!("listening");
            check(
                "accept",
                (udt.accept)(socket, (&raw mut peer).cast(), &raw mut room),
            )?
        };
        let began = Instant::now();
        while left > 0 {
            let room = left.min(BLOCK as u64) as c_int;
            // SAFETY: `room` writable bytes.
            let count = unsafe { (udt.recv)(stream, block.as_mut_ptr().cast(), room, 0) };
            left -= u64::from(check("receive", count)?.unsigned_abs());
        }
        println!(
            "{}",
            json!({"bytes": bytes, "seconds": began.elapsed().as_secs_f64()})
        );
    } else {
        // SAFETY: the address is live.
        unsafe { check("connect", (udt.connect)(socket, target, length))? };
        while left > 0 {
            let room = left.min(BLOCK as u64) as c_int;
            // SAFETY: `room` readable bytes.
            let count = unsafe { (udt.send)(socket, block.as_ptr().cast(), room, 0) };
            left -= u64::from(check("send", count)?.unsigned_abs());
        }
        // SAFETY: a socket of ours; it waits until what was sent has left.
        unsafe { (udt.close)(socket) };
    }
    // SAFETY: nothing of the library is used after it.
    unsafe { (udt.cleanup)() };
    Ok(())
}

/// Moves bytes between two places; Mbit/s and processor seconds of both ends.
pub(super) fn run(
    (from, to): (Place<'_>, Place<'_>),
    address: &str,
    bytes: u64,
    mtu: u32,
) -> Result<(f64, f64)> {
    let program = std::env::current_exe().context("this program's own path is not known")?;
    let target = format!("{address}:{PORT}");
    let words = [target, bytes.to_string(), mtu.to_string()];
    let mut command = to.command(&program);
    command.args(["udt-end", "--serve"]).args(&words);
    let server = Process::start(command)?;
    match server.line(Duration::from_secs(20))? {
        Some(line) if line == "listening" => {}
        _ => bail!("UDT: {}", server.stop()?.errors.trim()),
    }
    let mut command = from.command(&program);
    command.arg("udt-end").args(&words);
    let client = Process::start(command)?;
    let line = server
        .line(Duration::from_secs(120))?
        .context("UDT: nothing was received")?;
    let told: Value = serde_json::from_str(&line).with_context(|| format!("UDT said {line}"))?;
    let seconds = told["seconds"].as_f64().context("UDT: no time was told")?;
    // The sender lingers; what it would still do is of no interest.
    let processor = client.finish(Duration::from_secs(20))?.processor_seconds
        + server.finish(Duration::from_secs(20))?.processor_seconds;
    Ok((bytes as f64 * 8e-6 / seconds, processor))
}
