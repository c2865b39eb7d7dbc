//! Special files: pipes, sockets and devices, which have no bytes. Recorded where the scan was asked to, else counted.

use rustix::fs::{FileType, Stat};

/// What a special file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Special {
    /// A named pipe.
    Pipe,
    /// The name of a socket; no program listens to a copy of it.
    Socket,
    /// A character device, by its number.
    Character(Device),
    /// A block device, by its number.
    Block(Device),
}

/// The number of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Device {
    /// Of its driver.
    pub major: u32,
    /// Of the device there.
    pub minor: u32,
}

impl Special {
    /// `None` for a file, folder or link.
    pub(crate) fn of(stat: &Stat) -> Option<Self> {
        let device = Device {
            major: rustix::fs::major(stat.st_rdev),
            minor: rustix::fs::minor(stat.st_rdev),
        };
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Fifo => Some(Self::Pipe),
            FileType::Socket => Some(Self::Socket),
            FileType::CharacterDevice => Some(Self::Character(device)),
            FileType::BlockDevice => Some(Self::Block(device)),
            FileType::RegularFile | FileType::Directory | FileType::Symlink | FileType::Unknown => {
                None
            }
        }
    }

    /// What the system calls need to make one.
    pub(crate) fn file_type(self) -> (FileType, rustix::fs::Dev) {
        let number = |device: Device| rustix::fs::makedev(device.major, device.minor);
        match self {
            Self::Pipe => (FileType::Fifo, 0),
            Self::Socket => (FileType::Socket, 0),
            Self::Character(device) => (FileType::CharacterDevice, number(device)),
            Self::Block(device) => (FileType::BlockDevice, number(device)),
        }
    }

    /// What it is, in words for people.
    pub(super) fn in_words(self) -> &'static str {
        match self {
            Self::Pipe => "pipe",
            Self::Socket => "socket",
            Self::Character(_) | Self::Block(_) => "device",
        }
    }
}

/// Whether something in a file system is a special file.
pub(crate) fn is_special(kind: FileType) -> bool {
    matches!(
        kind,
        FileType::Fifo | FileType::Socket | FileType::CharacterDevice | FileType::BlockDevice
    )
}
