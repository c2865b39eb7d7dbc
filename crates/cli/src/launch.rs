//! `--launch`: agents on the nodes of a job, which its launcher starts all at once. Pure but for [`Job::find`].

use anyhow::{Result, bail};
use ropewalk_master::request::{Launcher, Reach};
use ropewalk_model::host_list;

use crate::endpoint::Endpoint;

/// What Slurm names a job and its nodes by, in the environment of its processes.
const SLURM_JOB: &str = "SLURM_JOB_ID";
const SLURM_NODES: &str = "SLURM_JOB_NODELIST";

/// The job that this process is part of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Job {
    // Where they are known.
    nodes: Option<Nodes>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Nodes {
    job: String,
    /// As Slurm writes them, for people.
    list: String,
    names: Vec<String>,
}

impl Job {
    /// From this process's environment.
    pub(crate) fn find(launcher: Launcher) -> Result<Self> {
        Self::of(launcher, &|name| std::env::var(name).ok())
    }

    /// From variables of the environment. `mpirun` reaches hosts without a job of Slurm, too.
    fn of(launcher: Launcher, variable: &dyn Fn(&str) -> Option<String>) -> Result<Self> {
        let known = variable(SLURM_JOB).zip(variable(SLURM_NODES));
        let nodes = match known {
            None if launcher == Launcher::Slurm => bail!(
                "--launch slurm: this is no job of Slurm ({SLURM_JOB} is not set); run the command in a script for sbatch, or below \
                 `salloc`; elsewhere leave the option out, and hosts are reached over ssh"
            ),
            None => None,
            Some((job, list)) => Some(Nodes {
                names: host_list::expand(&list)
                    .map_err(|error| anyhow::anyhow!("{SLURM_NODES}: {error}"))?,
                job,
                list,
            }),
        };
        Ok(Self { nodes })
    }

    /// Has the launcher reach the hosts that would else be reached over ssh.
    ///
    /// # Errors
    /// A host that is none of the job's, or has a user.
    pub(crate) fn take(&self, endpoint: &mut Endpoint) -> Result<()> {
        let Reach::Ssh(host) = &endpoint.reach else {
            return Ok(());
        };
        if host.contains('@') {
            bail!(
                "{endpoint}: agents on nodes of a job run as the job's user; leave out what is before the @"
            );
        }
        if let Some(nodes) = &self.nodes
            && !nodes.names.contains(host)
        {
            bail!(
                "{host} is no node of job {}, which has {}; name one of these, as Slurm does",
                nodes.job,
                nodes.list
            );
        }
        endpoint.reach = Reach::Launched(host.clone());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;
    use crate::endpoint::{self, Side};

    fn job(launcher: Launcher, variables: &[(&str, &str)]) -> Result<Job> {
        Job::of(launcher, &|name| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    const VARIABLES: [(&str, &str); 2] = [(SLURM_JOB, "42"), (SLURM_NODES, "node[1-2],gpu07")];

    fn taken(job: &Job, text: &str) -> Result<Vec<Reach>> {
        let mut ends = endpoint::parse(OsStr::new(text), Side::Source)?;
        for end in &mut ends {
            job.take(end)?;
        }
        Ok(ends.into_iter().map(|end| end.reach).collect())
    }

    /// Nodes of the job are launched; standing agents and this host stay what they are.
    #[test]
    fn nodes_of_the_job_are_launched() {
        let job = job(Launcher::Slurm, &VARIABLES).unwrap();
        let launched = |host: &str| Reach::Launched(host.into());
        let nodes = taken(&job, "node[1-2]:/set").unwrap();
        assert_eq!(nodes, [launched("node1"), launched("node2")]);
        assert_eq!(taken(&job, "gpu07:set").unwrap(), [launched("gpu07")]);
        assert_eq!(taken(&job, "/set").unwrap(), [Reach::Local]);
        let attached = taken(&job, "store:7420:/set").unwrap();
        assert!(matches!(attached[..], [Reach::Attached { .. }]));
        let all = taken(&job, "node[1-2],gpu07:/set").unwrap();
        assert_eq!(all.len(), 3);
    }

    /// A host that is not of the job is refused with the job's nodes; so is a user.
    #[test]
    fn other_hosts_are_refused() {
        let job = job(Launcher::Slurm, &VARIABLES).unwrap();
        let refusal = |text| taken(&job, text).unwrap_err().to_string();
        let text = refusal("node[1-3]:/set");
        assert!(
            text.contains("node3 is no node of job 42, which has node[1-2],gpu07"),
            "{text}"
        );
        assert!(refusal("me@node1:/set").contains("leave out what is before the @"));
    }

    /// Slurm starts nothing outside a job; mpirun does, and keeps to the job where there is one.
    #[test]
    fn jobs_are_found() {
        for variables in [&[][..], &VARIABLES[..1], &VARIABLES[1..]] {
            let text = job(Launcher::Slurm, variables).unwrap_err().to_string();
            assert!(text.contains("SLURM_JOB_ID is not set"), "{text}");
        }
        let free = job(Launcher::Mpi, &[]).unwrap();
        assert_eq!(taken(&free, "any:/x").unwrap().len(), 1);
        let bound = job(Launcher::Mpi, &VARIABLES).unwrap();
        assert!(taken(&bound, "any:/x").is_err());
        let odd = [(SLURM_JOB, "1"), (SLURM_NODES, "node[1")];
        assert!(job(Launcher::Slurm, &odd).is_err());
    }
}
