//! How a process that `mpirun` has started gives its place to another one.
//!
//! ```text
//!   rank, started by mpirun                           agent that waits for it, on this host
//!   preface: stream, number, MAC                 ──▶  right, a process of this user, number not taken?
//!   library, variables; descriptor of the launcher ─▶ passes them to its child, which becomes the rank
//!   ends                                         ◀──  closes the connection
//! ```
//!
//! What makes a process a rank is its environment, and with MPICH a connected socket. Processes of a stream so stay children of
//! their agents, with their files, their ends and their process groups, and the launcher never kills one. The key is good for
//! this only.

use std::ffi::{OsStr, OsString};
use std::io::{self, IoSlice, IoSliceMut, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use crate::preface::{Kind, MacKey, PREFACE_LEN, Preface, random_bytes};
use crate::seal::{derive, wipe};

/// Name of the environment variable that ranks find the key by: command lines are public.
pub const RANK_KEY: &str = "ROPEWALK_RANK_KEY";

/// Bytes of a key.
pub const KEY_LEN: usize = 32;

/// Bytes of a library's path and variables: what fits a packet to a process.
const PLACE_MAX: usize = 64 << 10;

/// What ranks of one stream are known by.
#[derive(Clone)]
pub struct RankKey([u8; KEY_LEN]);

impl Drop for RankKey {
    fn drop(&mut self) {
        wipe(&mut self.0);
    }
}

impl std::fmt::Debug for RankKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RankKey(hidden)")
    }
}

impl RankKey {
    /// Of a stream's secret.
    #[must_use]
    pub fn of(secret: &[u8]) -> Self {
        Self(derive(secret, "ropewalk rank", &[]))
    }

    /// What was given to a rank as text; `None` when it is not 64 hexadecimal digits.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut key = [0; KEY_LEN];
        if text.len() != 2 * KEY_LEN || !text.is_ascii() {
            return None;
        }
        for (byte, at) in key.iter_mut().zip((0..).step_by(2)) {
            *byte = u8::from_str_radix(&text[at..at + 2], 16).ok()?;
        }
        Some(Self(key))
    }

    /// As text, for a rank's environment.
    #[must_use]
    pub fn text(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// What the rank sends that is to be process `number` of a stream.
    #[must_use]
    pub fn ask(&self, stream: [u8; 16], number: u32) -> [u8; PREFACE_LEN] {
        let mut extra = [0; 16];
        extra[..4].copy_from_slice(&number.to_le_bytes());
        let head = Preface {
            kind: Kind::Rank,
            flags: 0,
            key_id: [0; 16],
            transfer_id: stream,
            nonce: random_bytes(),
            extra,
        };
        head.encode(&MacKey::new(&self.0))
    }

    /// Which process a rank asks for; `None` from an unauthenticated peer.
    #[must_use]
    pub fn read(&self, preface: &[u8; PREFACE_LEN]) -> Option<u32> {
        let head = Preface::parse(preface).ok()?;
        let is_ours = head.kind == Kind::Rank && head.flags == 0;
        (is_ours && Preface::verify(preface, &MacKey::new(&self.0)))
            .then(|| u32::from_le_bytes(std::array::from_fn(|i| head.extra[i])))
    }
}

/// What makes a process a rank.
#[derive(Debug)]
pub struct Place {
    /// The library of MPI.
    pub library: PathBuf,
    /// Variables of its environment: `NAME=VALUE`.
    pub variables: Vec<OsString>,
    /// The socket that the launcher has given it under [`SOCKET`].
    pub socket: Option<OwnedFd>,
}

/// Name of the variable with the number of the launcher's socket.
pub const SOCKET: &str = "PMI_FD";

/// What names of the launchers' variables begin with.
const PREFIXES: [&str; 9] = [
    "OMPI_", "OPAL_", "ORTE_", "PRTE_", "PMIX_", "PMI_", "MPI", "HYD", "UCX_",
];

impl Place {
    /// The place of this process, which takes the launcher's socket. Once for a process.
    #[must_use]
    pub fn own(library: &Path, environment: impl Iterator<Item = (OsString, OsString)>) -> Self {
        let mut place = Self {
            library: library.to_owned(),
            variables: Vec::new(),
            socket: None,
        };
        for (name, value) in environment {
            let text = name.to_string_lossy();
            if text == SOCKET {
                let number = value.to_str().and_then(|value| value.parse::<i32>().ok());
                let number = number.filter(|number| *number > 2);
                // SAFETY: the launcher has opened it for this process, and nothing else here uses it.
                place.socket = number.map(|number| unsafe { OwnedFd::from_raw_fd(number) });
            } else if text == "TMPDIR" || PREFIXES.iter().any(|prefix| text.starts_with(prefix)) {
                let parts = [name.as_os_str(), value.as_os_str()];
                place.variables.push(parts.join(OsStr::new("=")));
            }
        }
        place
    }

    /// As one text, without the socket.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let library = [self.library.clone().into_os_string()];
        let parts: Vec<OsString> = library.into_iter().chain(self.variables.clone()).collect();
        parts.join(OsStr::new("\0")).into_vec()
    }

    /// What [`Place::encode`] has made.
    #[must_use]
    pub fn decode(bytes: &[u8], socket: Option<OwnedFd>) -> Self {
        let mut parts = bytes.split(|&byte| byte == 0).map(OsStr::from_bytes);
        Self {
            library: parts.next().unwrap_or_default().into(),
            variables: parts.map(OsStr::to_owned).collect(),
            socket,
        }
    }

    /// Sends it to an agent.
    ///
    /// # Errors
    /// As the system says; [`io::ErrorKind::InvalidInput`] where the environment is too long.
    pub fn send(&self, mut socket: &UnixStream) -> io::Result<()> {
        let bytes = self.encode();
        if bytes.len() > PLACE_MAX {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let sockets: Vec<BorrowedFd<'_>> = self.socket.iter().map(|own| own.as_fd()).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut rights = SendAncillaryBuffer::new(&mut space);
        if !sockets.is_empty() {
            let fits = rights.push(SendAncillaryMessage::ScmRights(&sockets));
            debug_assert!(fits, "the space is for one descriptor");
        }
        let length = (bytes.len() as u32).to_le_bytes();
        let slices = [IoSlice::new(&length)];
        if sendmsg(socket, &slices, &mut rights, SendFlags::NOSIGNAL)? != length.len() {
            return Err(io::Error::other("the socket took part of a number"));
        }
        socket.write_all(&bytes)
    }

    /// Receives what [`Place::send`] sends; waits for it.
    ///
    /// # Errors
    /// [`io::ErrorKind::UnexpectedEof`] where the rank has ended, [`io::ErrorKind::InvalidData`] where it is too long.
    pub fn receive(mut socket: &UnixStream) -> io::Result<Self> {
        let mut length = [0; 4];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut rights = RecvAncillaryBuffer::new(&mut space);
        let mut slices = [IoSliceMut::new(&mut length)];
        let received = recvmsg(socket, &mut slices, &mut rights, RecvFlags::CMSG_CLOEXEC)?;
        let passed = rights.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut files) => files.next(),
            _ => None,
        });
        if received.bytes == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        socket.read_exact(&mut length[received.bytes..])?;
        let length = u32::from_le_bytes(length) as usize;
        if length > PLACE_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut bytes = vec![0; length];
        socket.read_exact(&mut bytes)?;
        Ok(Self::decode(&bytes, passed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::pipe;

    /// Only what has the key gets a number, and a key survives being text.
    #[test]
    fn only_the_key_gives_a_number() {
        let (key, stranger) = (RankKey::of(&[7; 32]), RankKey::of(&[8; 32]));
        let asked = RankKey::parse(&key.text()).unwrap().ask([1; 16], 5);
        assert_eq!((key.read(&asked), stranger.read(&asked)), (Some(5), None));
        let mut changed = asked;
        changed[72] ^= 1;
        assert_eq!(key.read(&changed), None);
        for text in ["", "7", &"ü".repeat(32), &"x".repeat(64)] {
            assert!(RankKey::parse(text).is_none(), "{text}");
        }
    }

    /// Of an environment what the launcher has set is passed on, with its socket; nothing else, and nothing too long.
    #[test]
    fn places_are_passed_on() {
        let (near, far) = UnixStream::pair().unwrap();
        let (mut reader, writer) = pipe().unwrap();
        let variables = [
            ("HOME", "/root"),
            ("PMI_RANK", "3"),
            ("OMPI_X", "a=b c"),
            ("TMPDIR", "/t"),
        ];
        let environment = variables.map(|(name, value)| (name.into(), value.into()));
        let mut place = Place::own(Path::new("/lib/m.so"), environment.into_iter());
        place.socket = Some(writer.into());
        place.send(&near).unwrap();
        drop(place);
        let passed = Place::receive(&far).unwrap();
        assert_eq!(passed.library, Path::new("/lib/m.so"));
        assert_eq!(
            passed.variables,
            ["PMI_RANK=3", "OMPI_X=a=b c", "TMPDIR=/t"]
        );
        let mut writer = std::fs::File::from(passed.socket.unwrap());
        writer.write_all(b"x").unwrap();
        drop(writer);
        let mut bytes = Vec::new();
        reader.read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes, b"x");
        let long = Place {
            library: PathBuf::new(),
            variables: vec!["x".repeat(PLACE_MAX).into()],
            socket: None,
        };
        assert!(long.send(&near).is_err());
        drop(near);
        let error = Place::receive(&far).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }
}
