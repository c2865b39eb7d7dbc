//! TUN devices and the scheduling of relay threads: what here needs `unsafe`.

use std::io;
use std::mem;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags};

use super::spec::Offload;

/// Bytes of `struct virtio_net_hdr`, which precedes every packet where checksums or segments are left to do.
const OFFLOAD_HEADER_BYTES: usize = 10;
/// Above ordinary threads is enough; below what the kernel's own real-time threads have.
const PRIORITY: libc::c_int = 10;

impl Offload {
    /// Bytes that precede every packet read from or written to the device.
    pub(crate) fn header_bytes(self) -> usize {
        match self {
            Offload::None => 0,
            Offload::Checksum | Offload::Segments => OFFLOAD_HEADER_BYTES,
        }
    }

    fn flags(self) -> libc::c_uint {
        match self {
            Offload::None => 0,
            Offload::Checksum => libc::TUN_F_CSUM,
            Offload::Segments => libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6,
        }
    }
}

/// Creates a TUN device in the calling thread's network. It lives as long as the descriptor.
///
/// Reads and writes do not block; each is one IP packet, after [`Offload::header_bytes`].
pub(crate) fn create(name: &str, offload: Offload) -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let device = rustix::fs::open(c"/dev/net/tun", flags, Mode::empty())?;
    // SAFETY: an ifreq is plain bytes; all zeroes is an empty name and no flags.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    if name.len() >= request.ifr_name.len() {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    let header = if offload == Offload::None {
        0
    } else {
        libc::IFF_VNET_HDR
    };
    request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI | header) as libc::c_short;
    // SAFETY: TUNSETIFF reads and writes one ifreq, which lives on this stack.
    check(unsafe { libc::ioctl(device.as_raw_fd(), libc::TUNSETIFF, &raw mut request) })?;
    if offload != Offload::None {
        // SAFETY: TUNSETOFFLOAD takes its flags by value.
        check(unsafe {
            libc::ioctl(
                device.as_raw_fd(),
                libc::TUNSETOFFLOAD,
                libc::c_ulong::from(offload.flags()),
            )
        })?;
    }
    Ok(device)
}

/// Gives the calling thread precedence over ordinary ones.
pub(crate) fn take_precedence() -> io::Result<()> {
    let parameters = libc::sched_param {
        sched_priority: PRIORITY,
    };
    // SAFETY: reads one sched_param of this stack; 0 is the calling thread.
    check(unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameters) })
}

/// Ordinary threads are woken up to 50 us late, to save power; this one shall not be.
pub(crate) fn wake_on_time() {
    // SAFETY: PR_SET_TIMERSLACK takes a number of nanoseconds and concerns the calling thread only.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}
