//! What starts agents on the nodes of a job, and what its failures mean. Pure: words in, words out.

use std::ffi::{OsStr, OsString};

use ropewalk_lane::mpi::Implementation;

/// One step on all of these nodes, beside the steps and the script of the job: it shares their processors, is bound to none, and
/// neither a node nor an agent that ends takes the others with it.
const SRUN: [&str; 9] = [
    "srun",
    "--overlap",
    "--no-kill",
    "--kill-on-bad-exit=0",
    "--cpu-bind=none",
    "--mpi=none",
    "--input=all",
    "--ntasks-per-node=1",
    "--distribution=block",
];

/// What makes a process an agent of a launch; its seat follows.
const AGENT: [&str; 3] = ["agent", "--one-shot", "--launched"];

/// As an agent finds its seat where `srun` starts it: the name of its node.
const BY_NODE: &str = "slurm";

/// The command that starts agents with Slurm; seats are names of nodes.
///
/// * `ports`: options of each agent.
pub(super) fn srun(program: &OsStr, nodes: &[&str], ports: &[OsString]) -> Vec<OsString> {
    let mut words: Vec<OsString> = SRUN.map(OsString::from).to_vec();
    let count = nodes.len();
    words.push(format!("--nodes={count}").into());
    words.push(format!("--ntasks={count}").into());
    words.push(format!("--nodelist={}", nodes.join(",")).into());
    words.push(program.into());
    words.extend(AGENT.map(OsString::from));
    words.push(BY_NODE.into());
    words.extend(ports.iter().cloned());
    words
}

/// The command that starts the agent of one node with `mpirun`.
pub(super) fn mpirun(
    mpi: Implementation,
    program: &OsStr,
    node: &str,
    seat: &str,
    ports: &[OsString],
) -> Vec<OsString> {
    let mut words: Vec<OsString> = vec!["mpirun".into()];
    let own: &[&str] = match mpi {
        Implementation::OpenMpi => &["--oversubscribe", "--bind-to", "none", "--host"],
        Implementation::Mpich => &["-bind-to", "none", "-hosts"],
    };
    words.extend(own.iter().chain(&[node, "-n", "1"]).map(OsString::from));
    words.push(program.into());
    words.extend(AGENT.map(OsString::from));
    words.push(seat.into());
    words.extend(ports.iter().cloned());
    words
}

/// Why a launcher that has ended has started no agent.
///
/// * `status`: its exit status, where it has one.
/// * `said`: its standard error.
pub(super) fn explain(launcher: &str, program: &OsStr, status: Option<i32>, said: &str) -> String {
    let said = said.trim();
    let is_missed = said.contains("execve") || said.contains(&*program.to_string_lossy());
    let advice = match is_missed {
        true => format!(
            "\nAll nodes need the program {}; put it on a file system that they share, or copy it to each (sbcast) and name it with \
             --remote-path",
            program.display()
        ),
        false => String::new(),
    };
    match (said.is_empty(), status) {
        (false, _) => format!("{said}{advice}"),
        (true, Some(status)) => format!("{launcher} ended with status {status} without a message"),
        (true, None) => format!("{launcher} was killed"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(words: &[OsString]) -> String {
        words.join(OsStr::new(" ")).into_string().unwrap()
    }

    /// One step for all nodes, an `mpirun` for each, and nothing secret in their words.
    #[test]
    fn launchers_start_all_agents() {
        let (program, nodes) = (OsStr::new("/opt/ropewalk"), ["node1", "node3"]);
        let ports = ["--ports", "7-9"].map(OsString::from);
        assert_eq!(
            text(&srun(program, &nodes, &ports)),
            "srun --overlap --no-kill --kill-on-bad-exit=0 --cpu-bind=none --mpi=none --input=all --ntasks-per-node=1 \
             --distribution=block --nodes=2 --ntasks=2 --nodelist=node1,node3 /opt/ropewalk agent --one-shot --launched slurm \
             --ports 7-9"
        );
        let mpirun = |mpi| text(&mpirun(mpi, program, "node1", "0", &ports));
        assert_eq!(
            mpirun(Implementation::OpenMpi),
            "mpirun --oversubscribe --bind-to none --host node1 -n 1 /opt/ropewalk agent --one-shot --launched 0 --ports 7-9"
        );
        assert_eq!(
            mpirun(Implementation::Mpich),
            "mpirun -bind-to none -hosts node1 -n 1 /opt/ropewalk agent --one-shot --launched 0 --ports 7-9"
        );
    }

    /// Only a program that is not there has advice about it.
    #[test]
    fn failures_are_explained() {
        let missing = "slurmstepd: error: execve(): /x/ropewalk: No such file or directory";
        let explain = |status, said: &str| explain("srun", OsStr::new("/x/ropewalk"), status, said);
        let text = explain(Some(2), missing);
        assert!(
            text.starts_with(missing) && text.contains("--remote-path"),
            "{text}"
        );
        let refused = "srun: error: Unable to create step for job 7: Invalid node name specified\n";
        assert_eq!(explain(Some(1), refused), refused.trim());
        assert_eq!(explain(None, ""), "srun was killed");
        let silent = explain(Some(1), "");
        assert_eq!(silent, "srun ended with status 1 without a message");
    }
}
