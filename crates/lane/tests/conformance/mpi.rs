//! The kind of MPI: a process is a rank of one MPI at most, so its tests run in ranks of each MPI that is installed.

use std::io::{IoSlice, IoSliceMut};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

use ropewalk_lane::mpi;

/// Folder for what a rank compiles; only ranks have it.
const SCRATCH: &str = "ROPEWALK_TEST_MPI_SCRATCH";

/// The tests that every kind has to pass, and those of messages.
const TESTS: [&str; 11] = [
    "units_of_all_sizes_arrive",
    "hashes_come_without_bytes",
    "hashes_of_absent_bytes_are_missing",
    "many_small_units_arrive",
    "absent_units_are_reported_and_the_stream_goes_on",
    "cancelled_units_are_answered_once",
    "what_came_is_counted_before_a_unit_is_whole",
    "faults::a_receiver_that_does_not_read_is_given_up",
    "faults::an_idle_sender_can_be_served_again",
    "faults::a_stopper_wakes_both_ends",
    "mpi::a_side_that_reads_nothing_sleeps",
];

/// Whether this process is a rank of MPI.
pub fn is_rank() -> bool {
    std::env::var_os(SCRATCH).is_some()
}

/// Initialises MPI in this process.
pub fn start() {
    static STARTED: OnceLock<()> = OnceLock::new();
    STARTED.get_or_init(|| {
        let scratch = std::env::var_os(SCRATCH).unwrap();
        let found = mpi::find(None, Path::new(&scratch)).unwrap();
        let nothing = std::iter::empty();
        mpi::start(mpi::join::Place::own(&found.shim, nothing)).unwrap();
    });
}

/// Both MPIs pass the tests of all kinds, if they are installed.
#[test]
fn streams_over_mpi_conform() {
    if is_rank() {
        return;
    }
    for (name, implementation) in [
        ("openmpi", mpi::Implementation::OpenMpi),
        ("mpich", mpi::Implementation::Mpich),
    ] {
        let real = format!("/usr/bin/mpirun.{name}");
        if !Path::new(&real).exists() {
            eprintln!("{name} is not installed; scripts/install-test-tools installs it");
            continue;
        }
        let folder = tempfile::tempdir().unwrap();
        let mpirun = folder.path().join("mpirun");
        std::fs::write(&mpirun, format!("#!/bin/sh\nexec {real} \"$@\"\n")).unwrap();
        std::fs::set_permissions(&mpirun, std::fs::Permissions::from_mode(0o755)).unwrap();
        let launcher = implementation.mpirun(1, folder.path());
        let mut command = Command::new(&mpirun);
        command.args(launcher.get_args());
        for (key, value) in launcher.get_envs() {
            command.env(key, value.unwrap());
        }
        let path = format!("{}:/usr/bin:/bin", folder.path().display());
        let ran = command
            .arg(std::env::current_exe().unwrap())
            .args(TESTS)
            .args(["--exact", "--nocapture"])
            .env("PATH", path)
            .env(SCRATCH, folder.path())
            .output()
            .unwrap();
        let out = String::from_utf8_lossy(&ran.stdout);
        let err = String::from_utf8_lossy(&ran.stderr);
        // A rank that ends without MPI_Finalize, as these do, is an error of `mpirun`.
        let passed = format!("test result: ok. {} passed; 0 failed", TESTS.len());
        assert!(out.contains(&passed), "{name}\n{out}\n{err}");
    }
}

/// A side that wants neither bytes nor room sleeps, though a message waits for it; once it wants that, it is there.
#[test]
fn a_side_that_reads_nothing_sleeps() {
    if !is_rank() {
        return;
    }
    start();
    let (near, far) = UnixStream::pair().unwrap();
    let mut sending = mpi::Messages::sending(near).unwrap();
    let mut receiving = mpi::Messages::receiving(far).unwrap();
    // Their names.
    sending.wake().unwrap();
    receiving.wake().unwrap();
    assert_eq!(sending.put(&[IoSlice::new(&[7; 100])]).unwrap(), 100);
    for _ in 0..100 {
        assert!(!receiving.arm(false, false).unwrap());
        assert_eq!(receiving.rest().unwrap(), None);
        receiving.wake().unwrap();
        sending.wake().unwrap();
    }
    while !receiving.arm(true, false).unwrap() {
        receiving.rest().unwrap();
    }
    let mut bytes = [0; 100];
    let read = receiving.take(&mut [IoSliceMut::new(&mut bytes)]);
    assert_eq!((read.unwrap(), bytes), (100, [7; 100]));
}
