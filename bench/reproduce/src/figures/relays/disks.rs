//! Receivers that hand on, and senders whose disks are slower than the network: each byte is best read once, from one of the disks.

use std::fs;
use std::path::PathBuf;
use std::time::SystemTime;

use anyhow::{Result, ensure};
use ropewalk_lab::{HostSpec, Topology};

use crate::bench::Bench;
use crate::device::{Device, Speeds};
use crate::network::MASTER;
use crate::ropewalk::{Agents, PORT, Place, words};
use crate::scenario::deadline;
use crate::sys;
use crate::table::{Cell, Table, number};

use super::{COPY, NAME, Rig, Sample, names, place, relay, sent_bytes};

const SENDERS: usize = 3;
const RECEIVERS: usize = 4;

/// What the disk of a sender reads, bytes a second.
const DISK: u64 = 40_000_000;

/// What the kernel reads ahead of disks, where nothing else is said.
const READ_AHEAD: u64 = 128 << 10;

/// Beside the file: the journal of the file system and its tables.
const SPARE_BYTES: u64 = 200 << 20;

/// Least time: the disks share the reading.
pub(super) fn least_seconds(bytes: u64) -> f64 {
    bytes as f64 / (SENDERS as u64 * DISK) as f64
}

pub(super) fn key(bytes: u64, relay: &str) -> String {
    let (disk, ahead) = (DISK / 1_000_000, READ_AHEAD >> 10);
    format!("disks of {disk} MB/s, {ahead} KiB ahead, {bytes} bytes, {relay}")
}

fn disks(rig: &Rig<'_>) -> Result<Vec<Device>> {
    let written = SystemTime::now();
    let mut disks = Vec::new();
    for name in names('a', SENDERS) {
        let images = rig.folder.join(format!("image-{name}"));
        fs::create_dir_all(&images)?;
        let folder = rig.site.scratch.join(format!("disk-{name}"));
        let disk = Device::new(&images, &folder, rig.bytes + SPARE_BYTES)?;
        disk.read_ahead(READ_AHEAD)?;
        let path = disk.folder().join(NAME);
        fs::copy(rig.folder.join(NAME), &path)?;
        let file = fs::File::options().write(true).open(&path)?;
        // Of one time: they are replicas.
        file.set_modified(written)?;
        disks.push(disk);
    }
    Ok(disks)
}

/// Copies the file from all senders' disks to the memory of all receivers.
pub(super) fn measure(rig: &Rig<'_>, hands_on: bool) -> Result<Sample> {
    // Hosts see what is mounted when they are made.
    let mut disks = disks(rig)?;
    let folders: Vec<PathBuf> = disks.iter().map(|disk| disk.folder().to_owned()).collect();
    let hosts = names('a', SENDERS)
        .into_iter()
        .chain(names('b', RECEIVERS))
        .chain([MASTER.to_owned()]);
    let topology = Topology {
        hosts: hosts.map(HostSpec::new).collect(),
        ..Topology::default()
    };
    let lab = rig.lab(topology, &[])?;
    let mut agents = Agents::new(rig.site)?;
    let mut sources = Vec::new();
    for (host, folder) in names('a', SENDERS).iter().zip(&folders) {
        let folder = folder.display();
        agents.start_in(&lab, host, &[folder.to_string()])?;
        sources.push(format!("{host}:{PORT}:{folder}/{NAME}"));
    }
    for host in names('b', RECEIVERS) {
        agents.start_in(&lab, &host, &["/data:rw".to_owned()])?;
    }
    for (disk, folder) in disks.iter_mut().zip(&folders) {
        let file = fs::File::open(folder.join(NAME))?;
        file.sync_all()?;
        sys::forget_pages(&file);
        disk.limit(Speeds {
            read: Some(DISK),
            ..Speeds::default()
        })?;
    }
    let read = || -> Result<u64> {
        let all = disks.iter().map(|disk| Ok(disk.reads()?.bytes));
        all.sum()
    };
    let before = read()?;
    let (from, to) = (sources.join(" "), place('b', RECEIVERS, COPY));
    let arguments = words(&format!(
        "copy --sources replicas {from} {to} {}",
        relay(hands_on)
    ));
    let moved = agents.run_once(
        Place::Host(&lab, MASTER),
        &arguments,
        deadline(3.0 * least_seconds(rig.bytes)),
    )?;
    let read = read()? - before;
    ensure!(
        read >= rig.bytes,
        "the disks read {read} of {} bytes",
        rig.bytes
    );
    Ok(Sample {
        seconds: moved.report.seconds,
        sent_bytes: sent_bytes(&lab, SENDERS)?,
        trunk_bytes: None,
        read_bytes: Some(read),
        happened: None,
        moved: Some(moved),
    })
}

const COLUMNS: [(&str, &str); 5] = [
    ("relay", "relay"),
    ("seconds", "s"),
    ("bound_seconds", "bound s"),
    ("percent_of_bound", "% of bound"),
    ("read_over_size", "read/size"),
];

pub(super) fn table(bench: &mut Bench, samples: &[(super::Point, Sample)], bytes: u64) -> Table {
    let title = format!(
        "Full copies of one file of {} MB from three senders whose disks read {} MB/s, to the memory of four receivers",
        bytes / 1_000_000,
        DISK / 1_000_000
    );
    let mut table = Table::new(title, &COLUMNS);
    let least = least_seconds(bytes);
    for (point, sample) in samples {
        let super::Point::Disks(hands_on) = *point else {
            continue;
        };
        let read = sample.read_bytes.map(|read| read as f64 / bytes as f64);
        table.row(vec![
            if hands_on { "auto" } else { "off" }.into(),
            number(sample.seconds, 2),
            number(least, 2),
            number(least / sample.seconds * 100.0, 1),
            read.map_or(Cell::Empty, |read| number(read, 2)),
        ]);
        if let Some(read) = read.filter(|_| hands_on) {
            bench.headline(
                "three senders with slow disks to four receivers: time over the bound; read by the disks over the size",
                format!("{:.2}; {read:.2}", sample.seconds / least),
            );
        }
    }
    table.note("bound: the disks read each byte once, together. The network has no limit. read: by the three devices, which the kernel's block layer slows down and of which it reads 128 KiB ahead.");
    table
}
