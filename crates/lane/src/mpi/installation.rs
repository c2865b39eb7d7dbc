//! The MPI of this host: which one it is, and the library that is compiled for it.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::MpiError;
use crate::preface;

/// What is compiled.
const SHIM: &str = include_str!("shim.c");

/// Hexadecimal digits of a hash in the name of a library.
const DIGITS: usize = 16;

/// An implementation of MPI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Implementation {
    /// Open MPI.
    OpenMpi,
    /// MPICH.
    Mpich,
}

/// What ranks are started with on this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Installation {
    /// Whose `mpirun` it is.
    pub implementation: Implementation,
    /// What compiles for it.
    pub compiler: &'static str,
    /// The library for [`start`](super::start).
    pub shim: PathBuf,
}

impl Implementation {
    /// For people.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::OpenMpi => "Open MPI",
            Self::Mpich => "MPICH",
        }
    }

    /// Of what `mpirun --version` says.
    fn of(version: &str) -> Option<Self> {
        let version = version.to_ascii_lowercase();
        let has = |names: &[&str]| names.iter().any(|name| version.contains(name));
        if has(&["open mpi", "openrte", "prrte"]) {
            Some(Self::OpenMpi)
        } else if has(&["hydra", "mpich"]) {
            Some(Self::Mpich)
        } else {
            None
        }
    }

    /// Names of its compiler; Debian has both, and one of them under the plain name.
    fn compilers(self) -> [&'static str; 2] {
        match self {
            Self::OpenMpi => ["mpicc.openmpi", "mpicc"],
            Self::Mpich => ["mpicc.mpich", "mpicc"],
        }
    }

    fn packages(self) -> &'static str {
        match self {
            Self::OpenMpi => "libopenmpi-dev",
            Self::Mpich => "libmpich-dev",
        }
    }

    /// Has `shim.c` refuse the compiler of another implementation.
    fn definition(self) -> &'static str {
        match self {
            Self::OpenMpi => "-DROPEWALK_OPEN_MPI",
            Self::Mpich => "-DROPEWALK_MPICH",
        }
    }

    /// The command that starts so many ranks of a program on this host. Where one ends the others stay: their agents end them,
    /// and know which was first.
    ///
    /// * `folder`: for files of MPI.
    #[must_use]
    pub fn mpirun(self, ranks: usize, folder: &Path) -> Command {
        let mut command = Command::new("mpirun");
        command.arg("-n").arg(ranks.to_string());
        command.env("TMPDIR", folder);
        match self {
            Self::OpenMpi => {
                command.args(["--oversubscribe", "--bind-to", "none", "--enable-recovery"]);
                for (name, value) in [
                    // Started by root it asks twice whether that is meant; so does the agent's user, by running it as root.
                    ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
                    ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
                    ("OMPI_MCA_mpi_yield_when_idle", "1"),
                    // The memory of a rank that has ended cannot be read, which MPI prints for each message; called smsc from
                    // version 5 on.
                    ("OMPI_MCA_btl_vader_single_copy_mechanism", "none"),
                    ("OMPI_MCA_smsc", "^cma"),
                ] {
                    command.env(name, value);
                }
                // Shared memory, called vader in version 4.
                for name in ["vader", "sm"] {
                    command.env(format!("OMPI_MCA_btl_{name}_backing_directory"), folder);
                }
            }
            Self::Mpich => {
                command.args(["-launcher", "fork", "-bind-to", "none"]);
                command.arg("-disable-auto-cleanup");
                // A rank that reads the memory of one which has ended would end, too.
                command.env("UCX_TLS", "^cma");
            }
        }
        command
    }
}

/// The MPI whose `mpirun` is in `PATH`, and what that says of itself.
///
/// # Errors
/// [`MpiError::NoMpirun`] and [`MpiError::Unknown`].
pub fn found() -> Result<(Implementation, String), MpiError> {
    let version = match output("mpirun", &["--version"]) {
        Ok(version) => version,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(MpiError::NoMpirun),
        Err(error) => return Err(MpiError::Unknown(error.to_string())),
    };
    let Some(implementation) = Implementation::of(&version) else {
        let line = version.lines().next().unwrap_or_default();
        return Err(MpiError::Unknown(line.to_owned()));
    };
    Ok((implementation, version))
}

/// Looks for `mpirun` and the library for its MPI, which is compiled where it is not kept yet.
///
/// * `cache`: a folder of this user for the library; made where it is missing.
/// * `scratch`: a folder of this user alone, where the library is put instead if `cache` cannot be used.
///
/// # Errors
/// [`MpiError::NoMpirun`], [`MpiError::Unknown`] and [`MpiError::NoCompiler`] say what to install.
pub fn find(cache: Option<&Path>, scratch: &Path) -> Result<Installation, MpiError> {
    if cfg!(not(feature = "mpi")) {
        return Err(MpiError::NotBuilt);
    }
    if cfg!(target_feature = "crt-static") {
        return Err(MpiError::Static);
    }
    let (implementation, version) = found()?;
    let mut reasons = Vec::new();
    for compiler in implementation.compilers() {
        match compiled(implementation, compiler, &version, cache, scratch) {
            Ok(shim) => {
                return Ok(Installation {
                    implementation,
                    compiler,
                    shim,
                });
            }
            Err(reason) => reasons.push(format!("{compiler}: {reason}")),
        }
    }
    Err(MpiError::NoCompiler {
        mpi: implementation.name(),
        packages: implementation.packages(),
        reason: reasons.join("; "),
    })
}

/// What a program says.
fn output(program: &str, words: &[&str]) -> io::Result<String> {
    let output = Command::new(program)
        .args(words)
        .stdin(Stdio::null())
        .output()?;
    let text = [output.stdout, output.stderr].concat();
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// The library of this compiler: kept from an earlier time, or new.
fn compiled(
    implementation: Implementation,
    compiler: &str,
    version: &str,
    cache: Option<&Path>,
    scratch: &Path,
) -> Result<PathBuf, String> {
    // Has the paths of the MPI that it compiles for.
    let shown = output(compiler, &["-show"]).map_err(|error| error.to_string())?;
    let mut hasher = blake3::Hasher::new();
    for part in [SHIM, version, &shown] {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part.as_bytes());
    }
    let hash = hasher.finalize().to_hex();
    let name = format!("mpi-{}.so", &hash[..DIGITS]);
    let folder = cache.filter(|folder| is_own_folder(folder).unwrap_or(false));
    let kept = folder.unwrap_or(scratch).join(&name);
    if fs::symlink_metadata(&kept)
        .is_ok_and(|found| found.is_file() && found.uid() == rustix::process::geteuid().as_raw())
    {
        return Ok(kept);
    }
    compile(implementation, compiler, &kept).map(|()| kept)
}

/// Makes the folder; whether it belongs to this user, and no other can write into it.
fn is_own_folder(folder: &Path) -> io::Result<bool> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)?;
    let found = fs::symlink_metadata(folder)?;
    let is_own = found.uid() == rustix::process::geteuid().as_raw();
    Ok(found.is_dir() && is_own && found.mode() & 0o022 == 0)
}

/// Compiles under other names, and gives the library its own when it is whole.
fn compile(implementation: Implementation, compiler: &str, to: &Path) -> Result<(), String> {
    let chance: String = preface::random_bytes::<8>()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let (source, library) = (
        to.with_file_name(format!("new.{chance}.c")),
        to.with_file_name(format!("new.{chance}.so")),
    );
    let made = fs::write(&source, SHIM)
        .and_then(|()| {
            Command::new(compiler)
                .arg(implementation.definition())
                .args(["-O2", "-fPIC", "-shared", "-o"])
                .args([&library, &source])
                .stdin(Stdio::null())
                .output()
        })
        .map_err(|error| error.to_string())
        .and_then(|output| match output.status.success() {
            true => fs::rename(&library, to).map_err(|error| error.to_string()),
            false => {
                let text = String::from_utf8_lossy(&output.stderr).into_owned();
                let line = text.lines().find(|line| line.contains("error"));
                Err(line.or(text.lines().last()).unwrap_or("it failed").into())
            }
        });
    let _ = fs::remove_file(&source);
    let _ = fs::remove_file(&library);
    made
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each implementation is known by what its launcher says of itself.
    #[test]
    fn implementations_are_distinguished() {
        for (says, expected) in [
            ("mpirun (Open MPI) 4.1.4", Some(Implementation::OpenMpi)),
            (
                "mpirun.openmpi (OpenRTE) 4.1.4",
                Some(Implementation::OpenMpi),
            ),
            (
                "HYDRA build details:\n    Version: 4.0.2",
                Some(Implementation::Mpich),
            ),
            ("Intel(R) MPI Library for Linux", None),
        ] {
            assert_eq!(Implementation::of(says), expected, "{says}");
        }
    }
}
