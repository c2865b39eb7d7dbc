//! A disk of a known speed: a file system in a file, whose device the kernel slows down for all.
//!
//! The limits are those of the root group of the block I/O controller (cgroup version 1), so that they hold for pages that the kernel
//! writes later, too.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};

use crate::process;

const LIMITS: &str = "/sys/fs/cgroup/blkio";

/// Longest time of one program that makes or removes the disk.
const STEP_MAX: Duration = Duration::from_secs(60);

/// A mounted disk; it goes with this value.
#[derive(Debug)]
pub(crate) struct Device {
    image: PathBuf,
    folder: PathBuf,
    // `/dev/loopN`, once there is one.
    path: Option<String>,
    is_mounted: bool,
    // Major and minor number, once it is limited.
    number: Option<String>,
}

/// What a disk has read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reads {
    /// Operations.
    pub count: u64,
    /// Bytes.
    pub bytes: u64,
}

/// What the disk can do, in bytes a second; the rest is as fast as memory.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Speeds {
    /// Reading.
    pub read: Option<u64>,
    /// Reading, in operations a second.
    pub reads: Option<u64>,
    /// Writing.
    pub write: Option<u64>,
    /// Bytes that may wait in memory to be written; programs that write more wait.
    pub unwritten: Option<u64>,
}

fn run(program: &str, args: &[&str]) -> Result<String> {
    let mut command = Command::new(program);
    command.args(args);
    let ended = process::run(command, STEP_MAX)?;
    Ok(ended.output.join("\n").trim().to_owned())
}

fn write(path: &str, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {text:?} to {path}"))
}

/// The part of all unwritten bytes that may be those of one device, in per cent, where nothing else is said.
const ALL_UNWRITTEN: &str = "100";

/// Bytes that may wait in memory to be written to a device, by its number; `None`: as many as to others. The kernel keeps such a limit for
/// what is attached to that number later.
fn limit_unwritten(number: &str, bytes: Option<u64>) -> Result<()> {
    let queue = format!("/sys/class/bdi/{number}");
    write(
        &format!("{queue}/strict_limit"),
        if bytes.is_some() { "1" } else { "0" },
    )?;
    match bytes {
        Some(bytes) => write(&format!("{queue}/max_bytes"), &bytes.to_string()),
        None => write(&format!("{queue}/max_ratio"), ALL_UNWRITTEN),
    }
}

impl Device {
    /// Makes a file system of `bytes` in a file in `images`, mounted at `folder`.
    pub fn new(images: &Path, folder: &Path, bytes: u64) -> Result<Self> {
        let is_limitable = Path::new(LIMITS).join("blkio.throttle.read_bps_device");
        ensure!(
            is_limitable.exists(),
            "{} is missing: slow disks need the blkio controller of cgroup version 1",
            is_limitable.display()
        );
        let mut device = Self {
            image: images.join(format!("ropewalk-bench-{}.image", std::process::id())),
            folder: folder.to_owned(),
            path: None,
            is_mounted: false,
            number: None,
        };
        let image = device.image.display().to_string();
        let folder = device.folder.display().to_string();
        fs::File::create(&device.image)?.set_len(bytes)?;
        fs::create_dir_all(&device.folder)?;
        let made = "lazy_itable_init=0,lazy_journal_init=0,nodiscard";
        run("mkfs.ext4", &["-q", "-F", "-E", made, &image])?;
        let path = run("losetup", &["--find", "--show", "--direct-io=off", &image])?;
        device.path = Some(path.clone());
        run("mount", &[&path, &folder])?;
        device.is_mounted = true;
        Ok(device)
    }

    /// Where it is mounted.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    fn name(&self) -> &str {
        let path = self.path.as_deref().unwrap_or_default();
        path.trim_start_matches("/dev/")
    }

    /// What it has read so far.
    pub fn reads(&self) -> Result<Reads> {
        let path = format!("/sys/class/block/{}/stat", self.name());
        let text = fs::read_to_string(&path)?;
        let numbers: Vec<u64> = text.split_whitespace().flat_map(str::parse).collect();
        let [count, _, sectors, ..] = numbers[..] else {
            bail!("{path} has no numbers");
        };
        Ok(Reads {
            count,
            bytes: sectors * 512,
        })
    }

    /// Makes the system forget all that it keeps of the disk in memory.
    pub fn forget(&mut self) -> Result<()> {
        let folder = self.folder.display().to_string();
        let path = self.path.clone().unwrap_or_default();
        run("umount", &[&folder])?;
        self.is_mounted = false;
        run("blockdev", &["--flushbufs", &path])?;
        run("mount", &[&path, &folder])?;
        self.is_mounted = true;
        Ok(())
    }

    /// How much the kernel reads ahead of a program; of devices in files that is far more than of disks.
    pub fn read_ahead(&self, bytes: u64) -> Result<()> {
        let path = format!("/sys/class/block/{}/queue/read_ahead_kb", self.name());
        write(&path, &(bytes >> 10).to_string())
    }

    /// Gives it these speeds from now on.
    pub fn limit(&mut self, speeds: Speeds) -> Result<()> {
        let number = fs::read_to_string(format!("/sys/class/block/{}/dev", self.name()))?;
        let number = number.trim().to_owned();
        self.number = Some(number.clone());
        for (what, speed) in [
            ("read_bps", speeds.read),
            ("read_iops", speeds.reads),
            ("write_bps", speeds.write),
        ] {
            let file = format!("{LIMITS}/blkio.throttle.{what}_device");
            write(&file, &format!("{number} {}", speed.unwrap_or(0)))?;
        }
        limit_unwritten(&number, speeds.unwritten)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // As much as can be undone: the measurement has its result, or its error, already.
        if let Some(number) = &self.number {
            for what in ["read_bps", "read_iops", "write_bps"] {
                let file = format!("{LIMITS}/blkio.throttle.{what}_device");
                let _ = write(&file, &format!("{number} 0"));
            }
            let _ = limit_unwritten(number, None);
        }
        if self.is_mounted {
            let _ = run("umount", &[&self.folder.display().to_string()]);
        }
        if let Some(path) = &self.path {
            let _ = run("losetup", &["--detach", path]);
        }
        let _ = fs::remove_file(&self.image);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device leaves no limit behind: the next one that gets its number is as fast as memory.
    #[test]
    fn limits_go_with_the_device() {
        let scratch = tempfile::tempdir().unwrap();
        let is_possible = Path::new(LIMITS).is_dir() && rustix::process::geteuid().is_root();
        let folder = scratch.path().join("disk");
        if !is_possible {
            return;
        }
        let Ok(mut device) = Device::new(scratch.path(), &folder, 64 << 20) else {
            return;
        };
        let slow = Speeds {
            write: Some(40_000_000),
            unwritten: Some(4 << 20),
            ..Speeds::default()
        };
        device.limit(slow).unwrap();
        let queue = format!("/sys/class/bdi/{}", device.number.clone().unwrap());
        let read = |name: &str| fs::read_to_string(format!("{queue}/{name}")).unwrap();
        assert_eq!(read("strict_limit").trim(), "1");
        device.limit(Speeds::default()).unwrap();
        assert_eq!(read("strict_limit").trim(), "0");
        device.limit(slow).unwrap();
        drop(device);
        assert_eq!(
            (read("strict_limit").trim(), read("max_ratio").trim()),
            ("0", "100")
        );
    }
}
