//! Hosts that lack the program, or have another version: they get this one over ssh. ssh is a script that runs the command here.

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use common::*;

const PROGRAM: &str = env!("CARGO_BIN_EXE_ropewalk");

/// A host's home folder and what it finds as programs there besides the system's.
struct Host {
    place: Place,
    ssh: String,
    source: String,
}

impl Host {
    fn new() -> Self {
        let place = Place::new();
        make_tree(&place.path("set"));
        for folder in ["far/bin", "far/tmp"] {
            fs::create_dir_all(place.path(folder)).unwrap();
        }
        let ssh = make_ssh(
            &place,
            &format!(
                "far) unset XDG_CACHE_HOME; HOME={0}; TMPDIR={0}/tmp; PATH={0}/bin:/usr/bin:/bin; export HOME TMPDIR PATH ;;\n\
                 homeless) unset XDG_CACHE_HOME; HOME=/dev/null; TMPDIR={0}/tmp; PATH=/usr/bin:/bin; export HOME TMPDIR PATH ;;",
                place.text("far")
            ),
        );
        let source = place.text("set");
        Self { place, ssh, source }
    }

    fn has(&self, program: &str, text: &str) {
        let path = self.place.path("far/bin").join(program);
        write_program(path, text);
    }

    fn copy(&self, host: &str, options: &[&str], to: &str) -> Ran {
        let source = format!("{host}:{}", self.source);
        let mut args = vec!["copy", "--ssh", &self.ssh];
        args.extend(options);
        args.extend([source.as_str(), to]);
        self.place.run(&args)
    }

    fn cached(&self) -> PathBuf {
        let folder = format!(
            "{}-{}",
            ropewalk_proto::version::version(),
            std::env::consts::ARCH
        );
        let cache = self.place.path("far/.cache/ropewalk");
        cache.join(folder).join("ropewalk")
    }
}

/// Renames into place: an agent that still ends may run from the file that was there.
fn write_program(path: PathBuf, text: &str) {
    let new = path.with_extension("new");
    fs::write(&new, text).unwrap();
    fs::set_permissions(&new, fs::Permissions::from_mode(0o755)).unwrap();
    fs::rename(&new, &path).unwrap();
}

fn is_empty(folder: PathBuf) -> bool {
    fs::read_dir(folder).unwrap().next().is_none()
}

/// A host without the program gets it once; what was changed there is replaced and never run.
#[test]
fn bare_hosts_get_the_program() {
    let host = Host::new();
    let ran = host.copy("far", &[], "one").assert_status(0);
    assert_same_tree(&host.place.path("set"), &host.place.path("one"));
    let cached = host.cached();
    let place = cached.to_str().unwrap();
    ran.assert_says(&format!("uploaded this one to {place}"));
    let mode = |path: &PathBuf| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&cached), 0o700);
    assert_eq!(mode(&cached.parent().unwrap().to_owned()), 0o700);
    let before = fs::metadata(&cached).unwrap().modified().unwrap();

    let ran = host.copy("far", &[], "two").assert_status(0);
    assert!(!ran.err().contains("uploaded"), "{}", ran.err());
    assert_eq!(fs::metadata(&cached).unwrap().modified().unwrap(), before);

    let mark = host.place.path("was-run");
    write_program(cached, &format!("#!/bin/sh\ntouch {}\n", mark.display()));
    let ran = host.copy("far", &[], "three").assert_status(0);
    ran.assert_says("uploaded this one");
    assert_same_tree(&host.place.path("set"), &host.place.path("three"));
    assert!(!mark.exists());
    assert!(is_empty(host.place.path("far/tmp")));
}

/// An agent that runs from an open file, as an uploaded one does, is found by its name in lists of processes.
#[test]
fn uploaded_agents_have_a_name() {
    let script = format!("exec 9<{PROGRAM}; exec /proc/self/fd/9 agent --one-shot");
    let mut agent = std::process::Command::new("sh")
        .args(["-c", &script])
        .stdin(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let shown = |file: &str| fs::read(format!("/proc/{}/{file}", agent.id())).unwrap();
    wait_for("the agent to have its name", || {
        (shown("comm") == b"ropewalk\n").then_some(())
    });
    let words = shown("cmdline");
    agent.kill().unwrap();
    agent.wait().unwrap();
    assert_eq!(
        String::from_utf8_lossy(&words),
        "ropewalk\0agent\0--one-shot\0"
    );
}

/// New folders and files have the modes that the login's mask allows, as with an installed program.
#[test]
fn uploads_keep_the_mask_of_the_login() {
    let host = Host::new();
    let (one, two) = (host.place.text("one"), host.place.text("two"));
    fs::write(&one, b"1").unwrap();
    fs::write(&two, b"2").unwrap();
    let mode = |to: &str| {
        let path = host.place.path(to);
        fs::metadata(path).unwrap().permissions().mode() & 0o7777
    };
    for (to, options) in [
        ("installed", &["--remote-path", PROGRAM][..]),
        ("first", &[]),
        ("cached", &[]),
    ] {
        let target = format!("far:{}/", host.place.text(to));
        let mut args = vec!["copy", "--ssh", &host.ssh];
        args.extend(options);
        args.extend([one.as_str(), two.as_str(), &target]);
        host.place.run(&args).assert_status(0);
        assert_eq!(mode(to), mode("installed"), "{to}");
    }
}

/// Nothing is left of an upload that is interrupted.
#[test]
fn interrupted_uploads_leave_nothing() {
    let host = Host::new();
    // The connection breaks while the program is on its way.
    host.has("head", "#!/bin/sh\nkill -PIPE $PPID\nexit 1\n");
    host.copy("far", &[], "out").assert_status(4);
    assert!(is_empty(host.cached().parent().unwrap().to_owned()));
    host.has("head", "#!/bin/sh\nkill -TERM $PPID\nexit 1\n");
    host.copy("far", &[], "out").assert_status(4);
    assert!(is_empty(host.cached().parent().unwrap().to_owned()));
}

/// Another version is left alone; this one is used beside it.
#[test]
fn other_versions_are_left_alone() {
    let host = Host::new();
    let old = "#!/bin/sh\nif [ \"$1\" = --version ]; then echo ropewalk 0.1.0+00000000; else exit 2; fi\n";
    host.has("ropewalk", old);
    let ran = host.copy("far", &[], "out").assert_status(0);
    ran.assert_says("uploaded this one");
    assert_same_tree(&host.place.path("set"), &host.place.path("out"));
    let kept = fs::read_to_string(host.place.path("far/bin/ropewalk")).unwrap();
    assert_eq!(kept, old);
}

/// Without a folder that can be written, the program is there for one run.
#[test]
fn nothing_stays_without_a_cache_folder() {
    let host = Host::new();
    let ran = host.copy("homeless", &[], "out").assert_status(0);
    ran.assert_says("for this run only");
    assert_same_tree(&host.place.path("set"), &host.place.path("out"));
    assert!(is_empty(host.place.path("far/tmp")));
}

/// Where an upload is not wanted, or is of no use, nothing is put there and the error says what to do.
#[test]
fn uploads_that_are_of_no_use_are_not_made() {
    let host = Host::new();
    let ran = host.copy("far", &["--no-upload"], "out").assert_status(4);
    ran.assert_says("not found").assert_says("--remote-path");
    host.has("uname", "#!/bin/sh\necho Plan9 mips\n");
    let ran = host.copy("far", &[], "out").assert_status(4);
    ran.assert_says("far: it has no ropewalk of this version and is Plan9 mips")
        .assert_says("--remote-path");
    // A full disk.
    host.has("uname", "#!/bin/sh\nexec /usr/bin/uname \"$@\"\n");
    host.has(
        "head",
        "#!/bin/sh\necho head: no space left >&2\nexec /usr/bin/head -c 5\n",
    );
    let ran = host.copy("far", &[], "out").assert_status(4);
    ran.assert_says("was not stored whole")
        .assert_says("no space left");
    assert!(is_empty(host.cached().parent().unwrap().to_owned()));
    assert!(!host.place.path("out").exists());
}
