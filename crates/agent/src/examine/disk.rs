//! The disk of a folder: one large file written, made safe and read again; syncs of small writes; small files.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ropewalk_lane::preface;
use ropewalk_proto::control::Disk;
use rustix::fs::{Advice, fadvise, fstatvfs};

/// Most bytes of the large file.
const BYTES_MAX: u64 = 256 << 20;

/// Of the free space, one part of so many is used at most.
const FREE_PART: u64 = 8;

/// Longest time for the bytes of each measurement; the sync after them takes what it takes.
const TIME: Duration = Duration::from_millis(1500);

/// The same of small files.
const FILES_TIME: Duration = Duration::from_millis(400);

/// Most small files.
const FILES_MAX: u64 = 2000;

/// Bytes of one.
const FILE_LEN: usize = 4096;

/// Syncs of a small write; the middle one counts.
const SYNCS: usize = 5;

/// Bytes written or read at once.
const PART: usize = 1 << 20;

type Over<'o> = &'o dyn Fn() -> bool;

fn failed(what: &str, path: &Path) -> impl Fn(std::io::Error) -> String {
    move |error| format!("cannot {what} {}: {error}", path.display())
}

const STOPPED: &str = "the connection ended";

/// Bytes of no pattern that a file system could shorten.
fn bytes() -> Vec<u8> {
    let mut state = 5_u64;
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 56) as u8
    };
    (0..PART).map(|_| next()).collect()
}

fn new_file(path: &Path) -> Result<File, String> {
    let mut options = OpenOptions::new();
    let made = options.read(true).write(true).create_new(true).open(path);
    made.map_err(failed("make", path))
}

/// Makes a file of so many bytes and makes it safe.
pub(super) fn make(path: &Path, length: u64, is_over: Over<'_>) -> Result<(), String> {
    let made = new_file(path).and_then(|mut file| fill(&mut file, path, length, is_over));
    if made.is_err() {
        let _ = std::fs::remove_file(path);
    }
    made
}

fn fill(file: &mut File, path: &Path, length: u64, is_over: Over<'_>) -> Result<(), String> {
    let part = bytes();
    let mut left = length;
    while left > 0 {
        if is_over() {
            return Err(STOPPED.into());
        }
        let count = left.min(PART as u64);
        let written = file.write_all(&part[..count as usize]);
        written.map_err(failed("write", path))?;
        left -= count;
    }
    file.sync_data().map_err(failed("sync", path))?;
    match is_over() {
        true => Err(STOPPED.into()),
        false => Ok(()),
    }
}

/// Measures the disk. The large file has no name while it is used; a small one has it for less than a millisecond.
pub(super) fn measure(folder: &Path, is_over: Over<'_>) -> Result<Disk, String> {
    let name: [u8; 8] = preface::random_bytes();
    let name: String = name.iter().map(|byte| format!("{byte:02x}")).collect();
    let path = folder.join(format!(".ropewalk-doctor-{name}"));
    let mut file = new_file(&path)?;
    std::fs::remove_file(&path).map_err(failed("remove", &path))?;
    let space = fstatvfs(&file).map_err(|error| failed("look at", folder)(error.into()))?;
    let free = space.f_bavail * space.f_frsize;
    let (length, write) = write(&mut file, &path, free / FREE_PART, is_over)?;
    let sync = sync(&mut file, &path)?;
    let read = read(&mut file, &path, length, is_over)?;
    let files = files(&path, is_over)?;
    Ok(Disk {
        write,
        read,
        sync,
        files,
        free,
    })
}

fn rate(bytes: u64, began: Instant) -> u64 {
    (bytes as f64 / began.elapsed().as_secs_f64().max(1e-9)) as u64
}

/// How many bytes were written, and how many a second.
fn write(file: &mut File, path: &Path, most: u64, is_over: Over<'_>) -> Result<(u64, u64), String> {
    let part = bytes();
    let most = most.clamp(PART as u64, BYTES_MAX);
    let began = Instant::now();
    let mut written = 0;
    while written < most && began.elapsed() < TIME {
        if is_over() {
            return Err(STOPPED.into());
        }
        file.write_all(&part).map_err(failed("write", path))?;
        written += PART as u64;
    }
    file.sync_all().map_err(failed("sync", path))?;
    Ok((written, rate(written, began)))
}

/// Nanoseconds of a sync of a small write at the end of the file.
fn sync(file: &mut File, path: &Path) -> Result<u64, String> {
    let part = [7; FILE_LEN];
    let mut times = Vec::new();
    for _ in 0..SYNCS {
        file.write_all(&part).map_err(failed("write", path))?;
        let began = Instant::now();
        file.sync_data().map_err(failed("sync", path))?;
        times.push(began.elapsed().as_nanos() as u64);
    }
    times.sort_unstable();
    Ok(times[SYNCS / 2])
}

fn read(file: &mut File, path: &Path, length: u64, is_over: Over<'_>) -> Result<u64, String> {
    // Where the file system keeps all in memory, that is its disk.
    let _ = fadvise(&*file, 0, None, Advice::DontNeed);
    file.seek(SeekFrom::Start(0))
        .map_err(failed("read", path))?;
    let mut part = vec![0; PART];
    let began = Instant::now();
    let mut got = 0;
    while got < length && began.elapsed() < TIME {
        if is_over() {
            return Err(STOPPED.into());
        }
        file.read_exact(&mut part).map_err(failed("read", path))?;
        got += PART as u64;
    }
    Ok(rate(got, began))
}

/// Small files that are created, written and renamed, a second. Each is removed before the next.
fn files(path: &Path, is_over: Over<'_>) -> Result<u64, String> {
    let named: PathBuf = path.with_extension("named");
    let part = [7; FILE_LEN];
    let began = Instant::now();
    let (mut count, mut time) = (0, Duration::ZERO);
    while count < FILES_MAX && began.elapsed() < FILES_TIME {
        if is_over() {
            return Err(STOPPED.into());
        }
        let one = Instant::now();
        let mut file = new_file(path)?;
        let written = file.write_all(&part);
        drop(file);
        let made = written.and_then(|()| std::fs::rename(path, &named));
        time += one.elapsed();
        count += 1;
        let last = if made.is_ok() { &named } else { path };
        std::fs::remove_file(last).map_err(failed("remove", last))?;
        made.map_err(failed("write", path))?;
    }
    Ok((count as f64 / time.as_secs_f64().max(1e-9)) as u64)
}
