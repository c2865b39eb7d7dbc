//! The bare chain over MPI: a C program for the MPI of this host, whose ranks only receive and send blocks.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Result, ensure};
use ropewalk_lane::mpi::{self, Installation};

use crate::bench::Site;

/// What is compiled.
const CHAIN: &str = include_str!("chain.c");

/// The MPI of this host, and what it runs.
pub(super) struct Mpi {
    installation: Installation,
    program: PathBuf,
    scratch: PathBuf,
}

impl Mpi {
    /// Compiles the chain.
    pub fn new(site: &Site) -> Result<Self> {
        let scratch = site.scratch.clone();
        let installation = mpi::find(None, &scratch)?;
        let (source, program) = (scratch.join("chain.c"), scratch.join("chain"));
        std::fs::write(&source, CHAIN)?;
        let compiled = Command::new(installation.compiler)
            .arg("-O2")
            .arg("-o")
            .args([&program, &source])
            .output()?;
        ensure!(
            compiled.status.success(),
            "{} fails: {}",
            installation.compiler,
            String::from_utf8_lossy(&compiled.stderr)
        );
        Ok(Self {
            installation,
            program,
            scratch,
        })
    }

    /// Name of the implementation.
    pub fn name(&self) -> &'static str {
        self.installation.implementation.name()
    }

    /// Runs a chain of so many processes.
    pub fn chain(&self, processes: usize, block: u64, blocks: u64) -> Command {
        let implementation = self.installation.implementation;
        let mut command = implementation.mpirun(processes, &self.scratch);
        command.arg(&self.program);
        command.args([block.to_string(), blocks.to_string()]);
        command
    }
}
