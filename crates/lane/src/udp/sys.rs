//! System calls of datagram lanes that no safe crate offers: batches with segmentation and receive offload, the state of
//! a socket's queue, a thread's scheduling.

use std::io;
use std::mem::{MaybeUninit, size_of, zeroed};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd as _};

use ropewalk_model::Nanos;
use ropewalk_sockopt::{get, get_bytes, set};
use socket2::SockAddr;

/// Messages that one call takes or gives.
pub const BATCH: usize = 16;
/// Bytes of one received message: what receive offload puts together at most.
pub(super) const MESSAGE_LEN: usize = 1 << 16;
/// Datagrams of one segmented send that all kernels since 4.18 take.
pub(super) const SEGMENTS_MAX: usize = 64;
/// Room for one control message with a small number.
const CONTROL_LEN: usize = 64;

/// Aligned as the kernel wants control messages.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct Control([u8; CONTROL_LEN]);

/// Packets leave whole or not at all, and what the kernel believes of the path's MTU does not count: probes find it.
pub(super) fn never_fragment(socket: impl AsFd, is_v6: bool) -> io::Result<()> {
    let (level, name, value) = match is_v6 {
        false => (
            libc::IPPROTO_IP,
            libc::IP_MTU_DISCOVER,
            libc::IP_PMTUDISC_PROBE,
        ),
        true => (
            libc::IPPROTO_IPV6,
            libc::IPV6_MTU_DISCOVER,
            libc::IPV6_PMTUDISC_PROBE,
        ),
    };
    set(socket, level, name, value)
}

/// MTU of the interface that a connected socket sends over.
pub(super) fn mtu(socket: impl AsFd, is_v6: bool) -> io::Result<u32> {
    let (level, name) = match is_v6 {
        false => (libc::IPPROTO_IP, libc::IP_MTU),
        true => (libc::IPPROTO_IPV6, libc::IPV6_MTU),
    };
    Ok(u32::try_from(get(socket, level, name)?).unwrap_or(0))
}

/// Lets the kernel put datagrams of one flow together; `false` where it cannot.
pub(super) fn merge_received(socket: impl AsFd) -> bool {
    set(socket, libc::IPPROTO_UDP, libc::UDP_GRO, 1).is_ok()
}

/// Sets the receive buffer as far as it is permitted; gives its size in the kernel's count.
pub(super) fn set_receive_buffer(socket: impl AsFd, bytes: u64) -> io::Result<u64> {
    // The kernel takes half of what it then counts with.
    let half = i32::try_from(bytes / 2).unwrap_or(i32::MAX);
    let socket = socket.as_fd();
    if set(socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, half).is_err() {
        set(socket, libc::SOL_SOCKET, libc::SO_RCVBUF, half)?;
    }
    let size = get(socket, libc::SOL_SOCKET, libc::SO_RCVBUF)?;
    Ok(u64::try_from(size).unwrap_or(0))
}

/// The queue of a socket: bytes in it and its size, in the kernel's count, and datagrams dropped.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Queue {
    pub queued: u64,
    pub size: u64,
    pub drops: u64,
}

/// Reads the queue's state; costs one call and disturbs nobody.
pub(super) fn queue(socket: impl AsFd) -> io::Result<Queue> {
    // SK_MEMINFO_RMEM_ALLOC, SK_MEMINFO_RCVBUF and SK_MEMINFO_DROPS of linux/sock_diag.h.
    let mut info = [0; 9 * size_of::<u32>()];
    get_bytes(socket, libc::SOL_SOCKET, libc::SO_MEMINFO, &mut info)?;
    let number = |at: usize| u32::from_ne_bytes(std::array::from_fn(|i| info[at * 4 + i])).into();
    Ok(Queue {
        queued: number(0),
        size: number(1),
        drops: number(8),
    })
}

/// The name of a message: where it goes, on a socket that is not connected.
fn name(to: Option<&SockAddr>) -> (*mut libc::c_void, libc::socklen_t) {
    match to {
        None => (std::ptr::null_mut(), 0),
        Some(to) => (to.as_ptr().cast_mut().cast(), to.len()),
    }
}

/// Sends `bytes` as datagrams of `segment` bytes each, the last one may be shorter: one segmented send.
pub(super) fn send_segmented(
    socket: impl AsFd,
    to: Option<&SockAddr>,
    bytes: &[u8],
    segment: u16,
) -> io::Result<()> {
    let mut part = libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    };
    let mut control = Control([0; CONTROL_LEN]);
    // SAFETY: zero is a valid msghdr: null pointers with zero lengths.
    let mut message: libc::msghdr = unsafe { zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    (message.msg_name, message.msg_namelen) = name(to);
    if bytes.len() > usize::from(segment) {
        message.msg_control = control.0.as_mut_ptr().cast();
        // SAFETY: pure arithmetic.
        message.msg_controllen = unsafe { libc::CMSG_SPACE(size_of::<u16>() as u32) } as _;
        // SAFETY: the control buffer is live, aligned for cmsghdr and longer than CMSG_SPACE of two bytes, so the first
        // header and its data lie within it.
        unsafe {
            let head = libc::CMSG_FIRSTHDR(&raw const message);
            (*head).cmsg_level = libc::IPPROTO_UDP;
            (*head).cmsg_type = libc::UDP_SEGMENT;
            (*head).cmsg_len = libc::CMSG_LEN(size_of::<u16>() as u32) as _;
            libc::CMSG_DATA(head).cast::<u16>().write_unaligned(segment);
        }
    }
    // SAFETY: the message points to `bytes`, `control` and `to`, all live; the kernel only reads them.
    let sent = unsafe {
        libc::sendmsg(
            socket.as_fd().as_raw_fd(),
            &raw const message,
            libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT,
        )
    };
    if sent < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Sends `bytes` as datagrams of `segment` bytes each in one call; gives how many bytes left. For kernels without segmentation.
pub(super) fn send_many(
    socket: impl AsFd,
    to: Option<&SockAddr>,
    bytes: &[u8],
    segment: u16,
) -> io::Result<usize> {
    // SAFETY: zero is a valid mmsghdr and iovec.
    let mut parts: [libc::iovec; SEGMENTS_MAX] = unsafe { zeroed() };
    // SAFETY: as above.
    let mut messages: [libc::mmsghdr; SEGMENTS_MAX] = unsafe { zeroed() };
    let mut count = 0;
    for chunk in bytes.chunks(usize::from(segment)).take(SEGMENTS_MAX) {
        parts[count] = libc::iovec {
            iov_base: chunk.as_ptr().cast_mut().cast(),
            iov_len: chunk.len(),
        };
        messages[count].msg_hdr.msg_iov = &raw mut parts[count];
        messages[count].msg_hdr.msg_iovlen = 1;
        (
            messages[count].msg_hdr.msg_name,
            messages[count].msg_hdr.msg_namelen,
        ) = name(to);
        count += 1;
    }
    // SAFETY: `count` messages point to live slices of `bytes` and to `to`; the kernel writes only their msg_len.
    let sent = unsafe {
        libc::sendmmsg(
            socket.as_fd().as_raw_fd(),
            messages.as_mut_ptr(),
            count as u32,
            // C libraries differ in its type.
            (libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT) as _,
        )
    };
    let sent = usize::try_from(sent).map_err(|_| io::Error::last_os_error())?;
    Ok((sent * usize::from(segment)).min(bytes.len()))
}

/// Buffers for a batch of received messages.
pub struct Inbox {
    bytes: Box<[u8]>,
    // Length and segment length of each message of the last batch.
    got: [(usize, usize); BATCH],
}

impl Default for Inbox {
    fn default() -> Self {
        Self::new()
    }
}

impl std::fmt::Debug for Inbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Inbox")
    }
}

impl Inbox {
    /// Space for a batch.
    #[must_use]
    pub fn new() -> Self {
        Self {
            bytes: vec![0; BATCH * MESSAGE_LEN].into(),
            got: [(0, 0); BATCH],
        }
    }

    /// One that holds nothing and receives nothing.
    #[must_use]
    pub fn empty() -> Self {
        Self {
            bytes: Box::default(),
            got: [(0, 0); BATCH],
        }
    }

    /// Takes what is there, up to [`BATCH`] messages; 0 when nothing is.
    ///
    /// # Errors
    /// As the system says.
    pub fn receive(&mut self, socket: impl AsFd) -> io::Result<usize> {
        let mut controls = [Control([0; CONTROL_LEN]); BATCH];
        // SAFETY: zero is a valid iovec and mmsghdr.
        let mut parts: [libc::iovec; BATCH] = unsafe { zeroed() };
        // SAFETY: as above.
        let mut messages: [libc::mmsghdr; BATCH] = unsafe { zeroed() };
        for (index, place) in self.bytes.chunks_mut(MESSAGE_LEN).enumerate() {
            parts[index] = libc::iovec {
                iov_base: place.as_mut_ptr().cast(),
                iov_len: place.len(),
            };
            let head = &mut messages[index].msg_hdr;
            head.msg_iov = &raw mut parts[index];
            head.msg_iovlen = 1;
            head.msg_control = controls[index].0.as_mut_ptr().cast();
            head.msg_controllen = CONTROL_LEN as _;
        }
        // SAFETY: each message points to its own live buffers with their true lengths; no timeout is given.
        let count = unsafe {
            libc::recvmmsg(
                socket.as_fd().as_raw_fd(),
                messages.as_mut_ptr(),
                BATCH as u32,
                libc::MSG_DONTWAIT as _,
                std::ptr::null_mut(),
            )
        };
        let Ok(count) = usize::try_from(count) else {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::WouldBlock
                | io::ErrorKind::Interrupted
                // What an earlier datagram met: nobody listens there, or not any more. The stream tells what matters.
                | io::ErrorKind::ConnectionRefused
                | io::ErrorKind::HostUnreachable
                | io::ErrorKind::NetworkUnreachable => Ok(0),
                _ => Err(error),
            };
        };
        for (index, message) in messages.iter().take(count).enumerate() {
            let length = message.msg_len as usize;
            // A message that did not fit cannot be ours.
            let cut = message.msg_hdr.msg_flags & libc::MSG_TRUNC != 0;
            self.got[index] = (if cut { 0 } else { length }, segment(&message.msg_hdr));
        }
        Ok(count)
    }

    /// The datagrams of message `index` of the last batch.
    pub fn datagrams(&self, index: usize) -> impl Iterator<Item = &[u8]> {
        let (length, segment) = self.got[index];
        let step = if segment == 0 { length } else { segment }.max(1);
        self.bytes[index * MESSAGE_LEN..][..length].chunks(step)
    }
}

/// The segment length that receive offload tells; 0 when the message is one datagram.
fn segment(message: &libc::msghdr) -> usize {
    // SAFETY: the kernel has filled the control buffer and its length; the macros stay within both.
    unsafe {
        let mut head = libc::CMSG_FIRSTHDR(message);
        while !head.is_null() {
            if (*head).cmsg_level == libc::IPPROTO_UDP && (*head).cmsg_type == libc::UDP_GRO {
                let value = libc::CMSG_DATA(head).cast::<i32>().read_unaligned();
                return usize::try_from(value).unwrap_or(0);
            }
            head = libc::CMSG_NXTHDR(message, head);
        }
    }
    0
}

/// Number of the calling thread.
pub(super) fn thread_id() -> i32 {
    // SAFETY: takes nothing, cannot fail.
    unsafe { libc::gettid() }
}

/// Processor time of the calling thread.
pub(super) fn thread_time() -> Nanos {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Nanos::from_secs(time.tv_sec as u64) + Nanos(time.tv_nsec as u64)
}

/// Wake-ups of the calling thread happen when they are asked for, not up to 50 microseconds later.
pub fn wake_on_time() {
    // SAFETY: plain numbers; the call changes one setting of the calling thread. Best effort.
    let _ = unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_u64, 0_u64, 0_u64, 0_u64) };
}

/// Asks for soft real time for the calling thread; whether it is permitted.
pub(super) fn soft_real_time() -> bool {
    // What the kernel calls sched_param. musl has the function and never calls the kernel.
    let priority: libc::c_int = 1;
    // SAFETY: the pointer is to a live number that is only read; 0 names the calling thread.
    unsafe {
        libc::syscall(
            libc::SYS_sched_setscheduler,
            0,
            libc::SCHED_FIFO,
            &raw const priority,
        ) == 0
    }
}

/// `sched_attr` of the kernel's first version, which is all that is needed.
#[repr(C)]
struct Scheduling {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

/// Asks for short time slices for the calling thread, so that it waits less for each (Linux 6.12 and newer; no privilege). Whether
/// it worked.
pub(super) fn short_slices(time: Nanos) -> bool {
    let mut now = MaybeUninit::<Scheduling>::zeroed();
    let size = size_of::<Scheduling>() as u32;
    // SAFETY: the structure is live and `size` bytes long; the kernel writes no more.
    let got = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, now.as_mut_ptr(), size, 0) };
    if got != 0 {
        return false;
    }
    // SAFETY: zeroed before and filled by the kernel; every bit pattern is valid.
    let mut wanted = unsafe { now.assume_init() };
    if wanted.policy != 0 {
        // Somebody gave this process another policy on purpose.
        return false;
    }
    wanted.size = size;
    wanted.flags = 0;
    wanted.runtime = time.0;
    // SAFETY: the structure is live and only read.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const wanted, 0) == 0 }
}

/// Bytes around a datagram in a packet.
pub(super) fn overhead(address: &SocketAddr) -> u32 {
    if address.is_ipv6() { 48 } else { 28 }
}
