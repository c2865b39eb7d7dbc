//! Packets between two processes of one host, with a descriptor where one is passed on.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg,
    sendmsg, socketpair,
};

/// Longest packet: well below what the system's default socket buffer holds.
pub const PACKET_MAX: usize = 128 << 10;

/// One end. The other end's process has ended when [`Packets::receive`] gives [`Packet::End`].
#[derive(Debug)]
pub struct Packets(OwnedFd);

/// What was received.
#[derive(Debug)]
pub enum Packet {
    /// Bytes, and a descriptor if one was sent with them.
    Bytes(Vec<u8>, Option<OwnedFd>),
    /// Nothing is there now.
    Nothing,
    /// The other end is closed.
    End,
}

impl Packets {
    /// Two connected ends, closed in programs that either process runs.
    ///
    /// # Errors
    /// As the system says, such as too many open files.
    pub fn pair() -> io::Result<(Self, Self)> {
        let flags = SocketFlags::CLOEXEC;
        let (one, other) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        Ok((Self(one), Self(other)))
    }

    /// Sends one packet; waits while the socket's buffer is full.
    ///
    /// # Errors
    /// As the system says; a broken pipe when the other end is closed, a long message above [`PACKET_MAX`].
    pub fn send(&self, bytes: &[u8], descriptor: Option<BorrowedFd<'_>>) -> io::Result<()> {
        self.send_with(bytes, descriptor, SendFlags::NOSIGNAL)
    }

    /// Sends one packet, without waiting.
    ///
    /// # Errors
    /// As [`Packets::send`]; [`io::ErrorKind::WouldBlock`] while the socket's buffer is full.
    pub fn try_send(&self, bytes: &[u8], descriptor: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        self.send_with(bytes, descriptor, flags)
    }

    fn send_with(
        &self,
        bytes: &[u8],
        descriptor: Option<BorrowedFd<'_>>,
        flags: SendFlags,
    ) -> io::Result<()> {
        if bytes.len() > PACKET_MAX {
            return Err(Errno::MSGSIZE.into());
        }
        let descriptors: Vec<BorrowedFd<'_>> = descriptor.into_iter().collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            let fits = ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
            debug_assert!(fits);
        }
        loop {
            let slices = [IoSlice::new(bytes)];
            match sendmsg(&self.0, &slices, &mut ancillary, flags) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Takes one packet, without waiting.
    ///
    /// # Errors
    /// As the system says; a long message where the packet is above [`PACKET_MAX`].
    pub fn receive(&self) -> io::Result<Packet> {
        let mut bytes = vec![0; PACKET_MAX];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let received = loop {
            let mut slices = [IoSliceMut::new(&mut bytes)];
            match recvmsg(&self.0, &mut slices, &mut ancillary, flags) {
                Ok(received) => break received,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(Packet::Nothing),
                Err(Errno::CONNRESET) => return Ok(Packet::End),
                Err(error) => return Err(error.into()),
            }
        };
        if received.flags.contains(ReturnFlags::TRUNC) {
            return Err(Errno::MSGSIZE.into());
        }
        if received.bytes == 0 {
            return Ok(Packet::End);
        }
        bytes.truncate(received.bytes);
        let descriptor = ancillary.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
            _ => None,
        });
        Ok(Packet::Bytes(bytes, descriptor))
    }
}

impl AsFd for Packets {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<OwnedFd> for Packets {
    fn from(descriptor: OwnedFd) -> Self {
        Self(descriptor)
    }
}

impl From<Packets> for OwnedFd {
    fn from(packets: Packets) -> Self {
        packets.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Write as _};

    /// Packets keep their bounds, descriptors arrive with their packet, and the end is noticed.
    #[test]
    fn packets_carry_descriptors() {
        let (one, other) = Packets::pair().unwrap();
        assert!(matches!(other.receive().unwrap(), Packet::Nothing));
        let (mut reader, mut writer) = std::io::pipe().unwrap();
        one.send(b"first", None).unwrap();
        one.send(b"second", Some(writer.as_fd())).unwrap();
        one.send(&vec![1; PACKET_MAX], None).unwrap();
        assert!(one.send(&vec![1; PACKET_MAX + 1], None).is_err());
        writer.write_all(b"a").unwrap();
        drop(writer);
        let Packet::Bytes(bytes, None) = other.receive().unwrap() else {
            panic!("a packet without a descriptor");
        };
        assert_eq!(bytes, b"first");
        let Packet::Bytes(bytes, Some(descriptor)) = other.receive().unwrap() else {
            panic!("a packet with a descriptor");
        };
        assert_eq!(bytes, b"second");
        std::fs::File::from(descriptor).write_all(b"b").unwrap();
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "ab");
        assert!(
            matches!(other.receive().unwrap(), Packet::Bytes(bytes, None) if bytes.len() == PACKET_MAX)
        );
        drop(one);
        // A process that another test starts has it, too, until it executes its program.
        let end = loop {
            match other.receive().unwrap() {
                Packet::Nothing => std::thread::yield_now(),
                packet => break packet,
            }
        };
        assert!(matches!(end, Packet::End));
    }
}
