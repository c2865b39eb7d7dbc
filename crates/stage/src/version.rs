//! What shows that a file has changed without reading it.

use std::io;
use std::os::fd::AsFd;

use rustix::fs::{fstat, fstatfs};

/// They may have another time of the change of an inode although nothing has changed (decision 15): FUSE, FAT, exFAT, SMB, CIFS, SMB2, 9P.
const INODES_CHANGE: [u32; 7] = [
    0x6573_5546,
    0x0000_4d44,
    0x2011_bab0,
    0x0000_517b,
    0xff53_4d42,
    0xfe53_4d42,
    0x0102_1997,
];

/// An open file's length, and when its contents and its inode were last changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Version {
    pub length: u64,
    modified: (i64, u64),
    // `None` where it says nothing.
    changed: Option<(i64, u64)>,
}

impl Version {
    pub fn of(file: impl AsFd) -> io::Result<Self> {
        let stat = fstat(&file)?;
        // The type is signed on some machines: only the low 32 bits are the number.
        let system = fstatfs(&file).map(|system| system.f_type as u32);
        let keeps_inodes = system.is_ok_and(|system| !INODES_CHANGE.contains(&system));
        Ok(Self {
            length: stat.st_size as u64,
            modified: (stat.st_mtime, stat.st_mtime_nsec as u64),
            changed: keeps_inodes.then_some((stat.st_ctime, stat.st_ctime_nsec as u64)),
        })
    }
}
