//! `mpirun`, which starts ranks that give their places to other processes ([`join`](super::join)).
//!
//! ```text
//!  stream:    agent of node 1 ── starts ──▶ mpirun ── starts ──▶ a rank for each process of all nodes, by node, then group
//!             rank ── its place ──▶ agent of its node ──▶ process of its group, a child of the agent
//!  transfer:  command ── starts ──▶ mpirun ── starts ──▶ a rank for each node
//!             rank ── its place ──▶ agent of its node, a child of the command
//! ```
//!
//! Ranks end when their agents close the connections, `mpirun` when all of its ranks have ended.

use std::fs::DirBuilder;
use std::io::{PipeWriter, Read as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::process::CommandExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};

use super::join::{RANK_KEY, RankKey};
use super::{Installation, MpiError, find};
use crate::preface::random_bytes;

/// `mpirun` ends within this time after its ranks, with its files; then it is asked to, then killed.
const END_TIMEOUT: Duration = Duration::from_secs(5);
const TERM_TIMEOUT: Duration = Duration::from_secs(2);

/// Bytes that `mpirun` said last, for errors.
const SAID_MAX: usize = 2048;

/// What a rank's own errors begin with.
const OWN: &str = "ropewalk: ";

/// Runs `mpirun` and removes its folder, also when the process that started it is killed meanwhile: its input ends then, and
/// so do the ranks. An `mpirun` that is there after [`END_TIMEOUT`] is killed with all that it has started in this group, and so is
/// this shell. The folder is removed after that, as these processes could make it again: a process in a session of its own does both. On a
/// host without `setsid` the folder is removed before. This shell reports the end of `mpirun` to a pipe that no process reads, and has to
/// outlive SIGPIPE.
///
/// Arguments: the folder, the seconds of the timeout, the command.
const SCRIPT: &str = r#"d=$1 t=$2; shift 2; exec 3<&0 </dev/null
"$@" 3<&- & m=$!
{
  read -r _
  n=0; while [ $n -lt $t ]; do kill -0 $m || exit; sleep 1; n=$((n+1)); done
  command -v setsid && exec setsid /bin/sh -c 'kill -s KILL -- "-$1"; sleep 1; rm -rf "$2"' sh $$ "$d"
  rm -rf "$d"; kill -KILL 0
} <&3 3<&- >/dev/null 2>&1 & w=$!
exec 3<&-; trap '' PIPE; wait $m; s=$?; kill $w; rm -rf "$d"; exit $s"#;

/// What has gone wrong with ranks, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failed {
    /// A rank did not join.
    Rank(String),
    /// `mpirun` has ended, whenever it does. That explains less than the end of a process, which may be its cause.
    Ended(String),
}

/// What ranks are started with.
#[derive(Debug)]
pub struct Mpirun {
    installation: Installation,
    // Runs a rank.
    program: PathBuf,
    folder: Folder,
    child: Arc<Mutex<Option<Child>>>,
    // The end of the script's input: closed when this process ends.
    alive: Option<PipeWriter>,
    // Closed when `mpirun` has ended.
    ended: Option<Receiver<()>>,
}

/// What files of MPI lie in; removed with this value.
#[derive(Debug)]
struct Folder(PathBuf);

impl Folder {
    fn make() -> std::io::Result<Self> {
        let name: String = random_bytes::<8>()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let name = format!("ropewalk-mpi-{name}");
        let make = |folder: PathBuf| {
            let path = folder.join(&name);
            DirBuilder::new().mode(0o700).create(&path).map(|()| path)
        };
        // Pages that ranks share are written to no disk there.
        make("/dev/shm".into())
            .or_else(|_| make(std::env::temp_dir()))
            .map(Self)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // `mpirun` has removed it already, unless it was killed.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Mpirun {
    /// Looks for the MPI of this host.
    ///
    /// * `cache`: as for [`find`].
    /// * `program`: the path of one whose command `rank` runs [a rank](super::join), as other processes find it.
    ///
    /// # Errors
    /// As [`find`]; [`MpiError::Folder`] where none can be made for files of MPI.
    pub fn find(cache: Option<&Path>, program: PathBuf) -> Result<Self, MpiError> {
        let folder = Folder::make().map_err(|error| MpiError::Folder(error.to_string()))?;
        Ok(Self {
            installation: find(cache, &folder.0)?,
            program,
            folder,
            child: Arc::default(),
            alive: None,
            ended: None,
        })
    }

    /// Starts ranks for all processes. `failed` gets why a rank did not join, and why `mpirun` has ended.
    ///
    /// * `id`: what ranks and agents call what they are started for.
    /// * `each`: processes of a node.
    /// * `agents`: instance names of the agents of all nodes, in their order.
    ///
    /// # Errors
    /// As the system says where a process or a thread cannot be started.
    pub fn start(
        &mut self,
        (id, key): (&[u8; 16], &RankKey),
        each: usize,
        agents: &[String],
        failed: impl Fn(Failed) + Send + 'static,
    ) -> std::io::Result<()> {
        let mpirun = self
            .installation
            .implementation
            .mpirun(each * agents.len(), &self.folder.0);
        let id = u128::from_be_bytes(*id);
        let (mut output, input) = std::io::pipe()?;
        let (kept, alive) = std::io::pipe()?;
        let mut command = Command::new("/bin/sh");
        command.args(["-c", SCRIPT, "sh"]).arg(&self.folder.0);
        command.arg(END_TIMEOUT.as_secs().to_string());
        command.arg(mpirun.get_program()).args(mpirun.get_args());
        for (name, value) in mpirun.get_envs() {
            if let Some(value) = value {
                command.env(name, value);
            }
        }
        command.arg(&self.program).arg("rank");
        command.arg(format!("{id:032x}")).arg(each.to_string());
        command.arg(&self.installation.shim).args(agents);
        let child = command
            .env(RANK_KEY, key.text())
            .stdin(kept)
            .stdout(input.try_clone()?)
            .stderr(input)
            .process_group(0)
            .spawn()?;
        // Its ends of the pipe are closed here.
        drop(command);
        *lock(&self.child) = Some(child);
        self.alive = Some(alive);
        let (running, ended) = mpsc::channel();
        self.ended = Some(ended);
        let child = self.child.clone();
        let watch = move || {
            let said = last_of(&mut output, |text| failed(Failed::Rank(text)));
            let child = lock(&child).take();
            let status = child.map(|mut child| child.wait());
            drop::<mpsc::Sender<()>>(running);
            let status = match status {
                Some(Ok(status)) => describe("mpirun", status),
                Some(Err(error)) => error.to_string(),
                None => "mpirun ended".into(),
            };
            let text = match said.is_empty() {
                true => status,
                false => format!("{status}: {said}"),
            };
            failed(Failed::Ended(text));
        };
        std::thread::Builder::new()
            .name("mpirun".into())
            .spawn(watch)
            .map(drop)
    }

    /// After all ranks have ended: waits for `mpirun`, which removes its files.
    pub fn end(mut self) {
        let Some(ended) = self.ended.take() else {
            return;
        };
        let is_over = |time| ended.recv_timeout(time) == Err(RecvTimeoutError::Disconnected);
        for (time, signal) in [(END_TIMEOUT, Signal::TERM), (TERM_TIMEOUT, Signal::KILL)] {
            if is_over(time) {
                return;
            }
            let child = lock(&self.child);
            let group = child
                .as_ref()
                .and_then(|child| i32::try_from(child.id()).ok());
            if let Some(group) = group.and_then(Pid::from_raw) {
                let _ = kill_process_group(group, signal);
            }
        }
        let _ = is_over(TERM_TIMEOUT);
    }
}

fn lock(child: &Mutex<Option<Child>>) -> MutexGuard<'_, Option<Child>> {
    child.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How a process ended, as part of a sentence.
#[must_use]
pub fn describe(what: &str, status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("{what} ended with status {code}"),
        (None, Some(signal)) => format!("{what} was killed by signal {signal}"),
        (None, None) => format!("{what} ended"),
    }
}

/// Reads to the end; gives the last lines. `refused` gets what a rank says that does not join: the others wait for it.
fn last_of(output: &mut std::io::PipeReader, refused: impl Fn(String)) -> String {
    let mut last = Vec::new();
    let mut has_refused = false;
    let mut bytes = [0; SAID_MAX];
    while let Ok(count @ 1..) = output.read(&mut bytes) {
        last.extend_from_slice(&bytes[..count]);
        let text = String::from_utf8_lossy(&last);
        let mut whole = text
            .split_inclusive('\n')
            .filter(|line| line.ends_with('\n'));
        if !has_refused && let Some(line) = whole.find_map(|line| line.strip_prefix(OWN)) {
            has_refused = true;
            refused(line.trim_end().to_owned());
        }
        let surplus = last.len().saturating_sub(SAID_MAX);
        last.drain(..surplus);
    }
    let text = String::from_utf8_lossy(&last);
    // What stands out in frames of dashes and equals signs.
    let lines = text.lines().map(str::trim);
    let lines = lines.filter(|line| line.chars().any(char::is_alphanumeric));
    lines.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::time::Instant;

    use super::*;

    const DEADLINE: Duration = Duration::from_secs(60);

    fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
        let until = Instant::now() + DEADLINE;
        while !is_so() {
            assert!(Instant::now() < until, "waited for {what}");
            std::thread::yield_now();
        }
    }

    /// Where the process that started it is gone, an `mpirun` that does not end is killed before its folder is removed: it could make that
    /// again.
    #[test]
    fn the_folder_is_removed_after_its_processes() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        for folder in ["programs", "files"] {
            std::fs::create_dir(at(folder)).unwrap();
        }
        let remove = "#!/bin/sh\n[ -e /proc/$(cat running)/exe ] && : >too_early\nPATH=/bin:/usr/bin exec rm \"$@\"\n";
        let stand_in = at("programs/rm");
        std::fs::write(&stand_in, remove).unwrap();
        std::fs::set_permissions(&stand_in, PermissionsExt::from_mode(0o755)).unwrap();
        let (input, alive) = std::io::pipe().unwrap();
        let mut command = Command::new("/bin/sh");
        let runs_on =
            "trap '' TERM; echo $$ >started; mv started running; while :; do sleep 1; done";
        command
            .args(["-c", SCRIPT, "sh"])
            .arg(at("files"))
            .args(["0", "/bin/sh", "-c", runs_on])
            .current_dir(place.path())
            .env(
                "PATH",
                format!("{}:/usr/bin:/bin", at("programs").display()),
            )
            .stdin(input)
            .process_group(0);
        let mut shell = command.spawn().unwrap();
        drop(command);
        wait_until("mpirun", || at("running").exists());
        drop(alive);
        wait_until("the end of its folder", || !at("files").exists());
        assert!(!at("too_early").exists());
        shell.wait().unwrap();
    }
}
