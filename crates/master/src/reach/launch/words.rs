//! What starts agents on the nodes of a job, and what its failures mean. Pure: words in, words out.

use std::ffi::{OsStr, OsString};

use ropewalk_lane::mpi::Implementation;
use ropewalk_model::host_list;

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

/// What `srun` puts before its errors.
const SRUN_ERROR: &str = "srun: error: ";

/// What all of its lines begin with.
const SRUN_WORDS: &str = "srun: ";

/// How it ends where the program is not there (ENOENT), whose message may be on its way still. A program that does not know its options
/// ends so, too, but says it first.
const NOT_FOUND: &str = "Exited with exit code 2";

/// Nodes on which a task has ended, or was not started, as a line of `srun`'s standard error says, and why.
///
/// ```text
///  srun: error: node[3,5-6]: tasks 2,4-5: Exited with exit code 2
///  srun: error: Task launch for StepId=7.0 failed on node node3: Unable to create step
///  srun: error: Node failure on node3
/// ```
pub(super) fn ended(line: &str) -> Option<(Vec<String>, String)> {
    let (_, said) = line.trim_end().split_once(SRUN_ERROR)?;
    let (nodes, reason) = if let Some(nodes) = said.strip_prefix("Node failure on ") {
        (nodes, "the node failed")
    } else if let Some((_, rest)) = said.split_once(" failed on node ") {
        rest.split_once(": ")?
    } else {
        let (nodes, rest) = said.split_once(": task")?;
        let (tasks, reason) = rest.split_once(": ")?;
        let tasks = tasks.strip_prefix('s').unwrap_or(tasks);
        let are_tasks = tasks
            .trim_start()
            .starts_with(|one: char| one.is_ascii_digit());
        are_tasks.then_some((nodes, reason))?
    };
    let nodes = host_list::expand(nodes).ok()?;
    Some((nodes, reason.to_owned()))
}

/// Why no agent runs on a node of a launch whose others may run.
///
/// * `reason`: what the launcher says of it.
/// * `said`: all of its standard error so far.
pub(super) fn explain_node(reason: &str, program: &OsStr, said: &str) -> String {
    // What programs say has no node's name: it may be another one's.
    let others = said.lines().map(str::trim);
    let others = others.filter(|line| !line.is_empty() && !line.contains(SRUN_ERROR));
    let mut text = format!("its agent has ended: {reason}");
    // What the launcher itself says of its set-up is no reason of the program.
    let mut is_silent = true;
    for line in others {
        is_silent &= line.starts_with(SRUN_WORDS);
        text += &format!("\n{line}");
    }
    if is_missed(program, said) || (is_silent && reason.ends_with(NOT_FOUND)) {
        text += &advice(program);
    }
    text
}

/// Whether a launcher says that the program is not there.
fn is_missed(program: &OsStr, said: &str) -> bool {
    said.contains("execve") || said.contains(&*program.to_string_lossy())
}

fn advice(program: &OsStr) -> String {
    format!(
        "\nAll nodes need the program {}; put it on a file system that they share, or copy it to each (sbcast) and name it with \
         --remote-path",
        program.to_string_lossy()
    )
}

/// Why a launcher that has ended has started no agent.
///
/// * `status`: its exit status, where it has one.
/// * `said`: its standard error.
pub(super) fn explain(launcher: &str, program: &OsStr, status: Option<i32>, said: &str) -> String {
    let said = said.trim();
    let advice = match is_missed(program, said) {
        true => advice(program),
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

    /// The lines of `srun` that say that no agent runs somewhere; those of programs, and others of its own, do not.
    #[test]
    fn ends_on_nodes_are_read() {
        let ended = |line: &str| {
            let (nodes, reason) = ended(line)?;
            Some(format!("{}: {reason}", nodes.join(" ")))
        };
        for (line, found) in [
            (
                "srun: error: node3: task 2: Exited with exit code 2\n",
                "node3: Exited with exit code 2",
            ),
            (
                "srun: error: node[1,3-4]: tasks 0,2-3: Exited with exit code 127",
                "node1 node3 node4: Exited with exit code 127",
            ),
            ("srun: error: n1: task 0: Killed", "n1: Killed"),
            (
                "0: srun: error: Task launch for StepId=7.0 failed on node n2: Invalid job credential",
                "n2: Invalid job credential",
            ),
            (
                "srun: error: Node failure on node[1-2]",
                "node1 node2: the node failed",
            ),
        ] {
            assert_eq!(ended(line).as_deref(), Some(found), "{line}");
        }
        for line in [
            "slurmstepd: error: execve(): /x/ropewalk: No such file or directory",
            "ropewalk: node3: task 2: Exited with exit code 2",
            "srun: error: Unable to create step for job 7: Invalid node name specified",
            "srun: error: node3: tasks of others: are none",
            "srun: error: node[3: task 2: Killed",
            "srun: job 7 queued and waiting for resources",
        ] {
            assert_eq!(ended(line), None, "{line}");
        }
    }

    /// A node without the program is named with what its launcher and programs said; other failures need no advice.
    #[test]
    fn a_node_without_an_agent_is_explained() {
        let program = OsStr::new("/x/ropewalk");
        let said = "slurmstepd: error: execve(): /x/ropewalk: No such file or directory\n\
                    srun: error: node3: task 2: Exited with exit code 2\n";
        let text = explain_node("Exited with exit code 2", program, said);
        let begin = "its agent has ended: Exited with exit code 2\nslurmstepd: error: execve(): /x/ropewalk: No such file or directory\n\
                     All nodes need the program /x/ropewalk;";
        assert!(text.starts_with(begin), "{text}");
        let early = explain_node("Exited with exit code 2", program, "");
        assert!(early.contains("--remote-path"), "{early}");
        let of_srun = "srun: cluster configuration lacks support for cpu binding\n";
        let text = explain_node("Exited with exit code 2", program, of_srun);
        assert!(text.contains("--remote-path"), "{text}");
        let own = "error: unexpected argument '--x' found\n";
        assert_eq!(
            explain_node("Exited with exit code 2", program, own),
            format!(
                "its agent has ended: Exited with exit code 2\n{}",
                own.trim()
            )
        );
        let killed = "srun: error: node3: task 2: Killed\n";
        assert_eq!(
            explain_node("Killed", program, killed),
            "its agent has ended: Killed"
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
