//! What is known of file systems by their numbers: whether one call makes a whole one safe, whether files have a size
//! before they are read, and whether a file keeps its inode.

use std::os::fd::AsFd;
use std::sync::OnceLock;

use rustix::fs;

/// The number by which `statfs` names a kind of file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileSystem(u32);

const TMPFS: FileSystem = FileSystem(0x0102_1994);

const FAT: FileSystem = FileSystem(0x0000_4d44);
const EXFAT: FileSystem = FileSystem(0x2011_bab0);

/// Local ones whose `syncfs` writes everything, waits for it, and reports what failed.
const SYNC_WHOLE: [FileSystem; 5] = [
    FileSystem(0x0000_ef53), // ext2, ext3, ext4
    FileSystem(0x5846_5342), // xfs
    FileSystem(0x9123_683e), // btrfs
    FileSystem(0xf2f5_2010), // f2fs
    TMPFS,
];

/// The kernel tells errors of writeback through `syncfs` since this version.
const SYNC_TELLS_SINCE: (u32, u32) = (5, 8);

/// The kernel makes the contents of their files when somebody reads them, so their sizes say nothing.
const MADE_WHEN_READ: [FileSystem; 13] = [
    FileSystem(0x0000_9fa0), // proc
    FileSystem(0x6265_6572), // sysfs
    FileSystem(0x6462_6720), // debugfs
    FileSystem(0x7472_6163), // tracefs
    FileSystem(0x7363_6673), // securityfs
    FileSystem(0x0027_e0eb), // cgroup
    FileSystem(0x6367_7270), // cgroup2
    FileSystem(0x6265_6570), // configfs
    FileSystem(0xcafe_4a11), // bpf
    FileSystem(0xf97c_ff8c), // selinux
    FileSystem(0x4341_5d53), // smack
    FileSystem(0x4249_4e4d), // binfmt_misc
    FileSystem(0x0765_5821), // resctrl
];

/// They may give a file another inode number once it was not used for a while, or a time of their own for the change of
/// an inode.
const INODES_CHANGE: [FileSystem; 7] = [
    FileSystem(0x6573_5546), // FUSE
    FAT,
    EXFAT,
    FileSystem(0x0000_517b), // SMB
    FileSystem(0xff53_4d42), // CIFS
    FileSystem(0xfe53_4d42), // SMB2
    FileSystem(0x0102_1997), // 9P
];

/// Several hosts may see one, with the same numbers and times of files.
const SHARED: [FileSystem; 7] = [
    FileSystem(0x0000_6969), // NFS
    FileSystem(0x0bd0_0bd0), // Lustre
    FileSystem(0x00c3_6400), // Ceph
    FileSystem(0x4750_4653), // GPFS
    FileSystem(0x1983_0326), // BeeGFS
    FileSystem(0x0116_1970), // GFS2
    FileSystem(0x7461_636f), // OCFS2
];

/// Whether all hosts that see an open file know of its locks (`flock`), by how it is mounted here. False where that is not known.
pub(crate) fn has_common_locks(file: impl AsFd) -> bool {
    let Ok(stat) = fs::fstat(file) else {
        return false;
    };
    let device = format!("{}:{}", fs::major(stat.st_dev), fs::minor(stat.st_dev));
    let mounts = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    let mounts = String::from_utf8_lossy(&mounts);
    let mut same = mounts
        .lines()
        .filter(|line| line.split(' ').nth(2) == Some(&*device));
    same.next().is_some_and(mounts_with_common_locks)
}

/// The same of a line of `/proc/self/mountinfo`.
fn mounts_with_common_locks(line: &str) -> bool {
    let Some((_, end)) = line.split_once(" - ") else {
        return false;
    };
    let mut fields = end.split(' ');
    let (kind, options) = (fields.next(), fields.nth(1).unwrap_or_default());
    let has = |wanted: &str| options.split(',').any(|option| option == wanted);
    match kind {
        // The server keeps them, unless the mount says otherwise.
        Some("nfs" | "nfs4") => has("local_lock=none") && !has("nolock"),
        Some("lustre") => has("flock"),
        Some("ceph") => true,
        _ => false,
    }
}

impl FileSystem {
    /// That of an open file; `None` when it cannot be asked.
    pub(crate) fn of(file: impl AsFd) -> Option<Self> {
        // The type is signed on some machines: only the low 32 bits are the number.
        fs::fstatfs(file)
            .ok()
            .map(|system| Self(system.f_type as u32))
    }

    /// Whether it lies in memory.
    pub(crate) fn is_memory(self) -> bool {
        self == TMPFS
    }

    /// Whether `syncfs` is as good as `fsync` of each file.
    pub(crate) fn syncs_whole(self) -> bool {
        self.syncs_whole_with(kernel())
    }

    fn syncs_whole_with(self, kernel: (u32, u32)) -> bool {
        kernel >= SYNC_TELLS_SINCE && SYNC_WHOLE.contains(&self)
    }

    /// Whether owner and mode of a file say what this process may do with it: no server has rules of its own.
    pub(crate) fn is_local(self) -> bool {
        SYNC_WHOLE.contains(&self)
    }

    /// Whether what it calls a hole can be relied on to be zeros. Servers (NFS, SMB, FUSE) pass on what their own file system says, which
    /// is not known here; ZFS before 2.2.2 said of files that were just written that they are holes.
    pub(crate) fn knows_holes(self) -> bool {
        SYNC_WHOLE.contains(&self)
    }

    /// How many bytes a file has at most, where that is few.
    pub(crate) fn file_len_max(self) -> Option<u64> {
        (self == FAT).then_some(u64::from(u32::MAX))
    }

    /// Whether modes may be those of the mount, and the same for all files.
    pub(crate) fn may_fix_modes(self) -> bool {
        INODES_CHANGE.contains(&self)
    }

    /// Whether other hosts may see it, with the same numbers and times of files.
    pub(crate) fn may_be_shared(self) -> bool {
        SHARED.contains(&self)
    }

    /// Whether all files have the owner of the mount.
    pub(crate) fn has_one_owner(self) -> bool {
        [FAT, EXFAT].contains(&self)
    }

    /// Whether sizes of files say nothing of their contents.
    pub(crate) fn makes_contents(self) -> bool {
        MADE_WHEN_READ.contains(&self)
    }

    /// Whether inode number and time of the last change of the inode tell one version of a file from another.
    pub(crate) fn keeps_inodes(self) -> bool {
        !INODES_CHANGE.contains(&self)
    }
}

/// Version of the running kernel; (0, 0) when it does not say.
fn kernel() -> (u32, u32) {
    static KERNEL: OnceLock<(u32, u32)> = OnceLock::new();
    *KERNEL.get_or_init(|| {
        let name = rustix::system::uname();
        release(&name.release().to_string_lossy()).unwrap_or((0, 0))
    })
}

/// `5.14.0-427.el9.x86_64` is (5, 14).
fn release(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    /// Only mounts whose options say so have locks that other hosts know of.
    #[test]
    fn common_locks_are_those_of_some_mounts() {
        let line = |kind: &str, options: &str| {
            format!("36 35 0:42 / /data rw,noatime shared:1 - {kind} server:/data {options}")
        };
        for (kind, options, expected) in [
            ("nfs4", "rw,vers=4.2,local_lock=none,addr=10.0.0.1", true),
            ("nfs", "rw,vers=3,nolock,local_lock=all", false),
            ("nfs", "rw,vers=3,local_lock=flock", false),
            ("nfs", "rw,vers=3", false),
            ("lustre", "rw,flock,lazystatfs", true),
            ("lustre", "rw,localflock", false),
            ("ceph", "rw,name=admin", true),
            ("fuse.sshfs", "rw,flock", false),
            ("ext4", "rw", false),
        ] {
            let found = super::mounts_with_common_locks(&line(kind, options));
            assert_eq!(found, expected, "{kind} {options}");
        }
        assert!(!super::mounts_with_common_locks("36 35 0:42 / /data rw"));
    }

    use super::*;

    /// One call for all files is trusted on known local file systems of kernels that report its errors, nowhere else.
    #[test]
    fn only_known_file_systems_are_synced_whole() {
        let (ext4, fuse, nfs) = (
            FileSystem(0xef53),
            FileSystem(0x6573_5546),
            FileSystem(0x6969),
        );
        assert!(ext4.syncs_whole_with((5, 8)) && ext4.syncs_whole_with((6, 0)));
        assert!(!ext4.syncs_whole_with((4, 18)) && !ext4.syncs_whole_with((5, 7)));
        assert!(!fuse.syncs_whole_with((6, 18)) && !nfs.syncs_whole_with((6, 18)));
        assert_eq!(release("4.18.0-553.el8_10.x86_64"), Some((4, 18)));
        assert_eq!(release("6.18"), Some((6, 18)));
        assert_eq!(release("unknown"), None);
        assert!(kernel() > (2, 6));
    }

    /// `/proc` is known for what it is, and inode numbers of FUSE are not relied on.
    #[test]
    fn odd_file_systems_are_known() {
        let proc = FileSystem::of(std::fs::File::open("/proc/version").unwrap()).unwrap();
        assert!(proc.makes_contents() && !proc.syncs_whole());
        assert!(!FileSystem(0x6573_5546).keeps_inodes() && FileSystem(0x6969).keeps_inodes());
    }
}
