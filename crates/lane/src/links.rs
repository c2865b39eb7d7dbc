//! Changes of this host's interfaces and addresses, as the kernel reports them (rtnetlink): at once, where silence would
//! take a second and a half to notice.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, recv, socket_with};

/// Groups of messages (RTMGRP_LINK, RTMGRP_IPV4_IFADDR, RTMGRP_IPV6_IFADDR): links, and addresses of both families.
const GROUPS: u32 = 0x1 | 0x10 | 0x100;

/// Listens to what the kernel says about interfaces.
#[derive(Debug)]
pub struct Links(OwnedFd);

impl Links {
    /// From now on.
    ///
    /// # Errors
    /// What the system says, where netlink is not allowed.
    pub fn open() -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            flags,
            // Protocol 0 of netlink: routes, links and addresses.
            None,
        )?;
        bind(&socket, &SocketAddrNetlink::new(0, GROUPS))?;
        Ok(Self(socket))
    }

    /// Waits for a change, no longer than `patience`. Several at once count as one.
    ///
    /// # Errors
    /// What the system says.
    pub fn changed(&self, patience: Duration) -> io::Result<bool> {
        let timeout = Timespec::try_from(patience).unwrap_or_default();
        let mut wanted = [PollFd::new(&self.0, PollFlags::IN)];
        match poll(&mut wanted, Some(&timeout)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(false),
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
        let mut message = [0_u8; 8192];
        loop {
            match recv(&self.0, &mut message, RecvFlags::empty()) {
                Ok(_) => {}
                Err(rustix::io::Errno::AGAIN) => return Ok(true),
                // More was said than the socket holds: something has changed in any case.
                Err(rustix::io::Errno::NOBUFS) => return Ok(true),
                Err(error) => return Err(error.into()),
            }
        }
    }
}
