//! OpenSSH inside the lab: a server per host that asks for it, one client key for root on all hosts.
//!
//! Keys are made for this lab and die with it. All files are in the hosts' private directories.

use std::fs;
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::{Lab, LabError};

/// A loaded machine needs seconds to start sshd; a broken one should not hold a test longer.
const START_SECONDS_MAX: u64 = 20;
/// How often a starting sshd is tried.
const RETRY: Duration = Duration::from_millis(5);

/// Private directory of a host for server files.
const SERVER_DIR: &str = "/run/ropewalk-lab/sshd";

/// The client's configuration: no questions, no memory of hosts.
const CLIENT_CONFIG: &str = "\
Host *
    StrictHostKeyChecking no
    UserKnownHostsFile /dev/null
    GlobalKnownHostsFile /dev/null
    LogLevel ERROR
    BatchMode yes
    User root
    IdentityFile /root/.ssh/id_ed25519
    IdentitiesOnly yes
";

/// The server's configuration; nothing of the machine's is read.
const SERVER_CONFIG: &str = "\
Port 22
HostKey /run/ropewalk-lab/sshd/host_key
PidFile none
UsePAM no
UseDNS no
StrictModes no
PermitRootLogin yes
PubkeyAuthentication yes
PasswordAuthentication no
KbdInteractiveAuthentication no
AuthorizedKeysFile /root/.ssh/authorized_keys
PrintMotd no
PrintLastLog no
AllowTcpForwarding yes
MaxStartups 200
MaxSessions 200
";

/// Where distributions have the server of SFTP, which `sshd` starts through the user's shell as it does any command.
const SFTP_SERVERS: [&str; 4] = [
    "/usr/lib/openssh/sftp-server",
    "/usr/libexec/openssh/sftp-server",
    "/usr/lib/ssh/sftp-server",
    "/usr/libexec/sftp-server",
];

/// Whether the lab has keys yet, and its running servers.
#[derive(Debug, Default)]
pub(crate) struct Ssh {
    keyed: bool,
    servers: Vec<(usize, Child)>,
}

impl Drop for Ssh {
    fn drop(&mut self) {
        for (_, server) in &mut self.servers {
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}

impl Lab {
    /// Starts an OpenSSH server in the host, listening on port 22 of all its addresses, and returns when it
    /// accepts connections. `ssh HOST true` then works without questions for root, from every host of the lab.
    ///
    /// The first call of a lab makes its keys. A second call for one host does nothing.
    ///
    /// # Errors
    /// [`LabError::NotPermitted`] when OpenSSH is not installed, [`LabError::Program`] with the server's log.
    pub fn start_sshd(&self, host: &str) -> Result<(), LabError> {
        let index = self.host_index(host)?;
        let mut ssh = self
            .ssh
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        if ssh.servers.iter().any(|(running, _)| *running == index) {
            return Ok(());
        }
        // sshd starts itself again and therefore wants its absolute path.
        let program = ["/usr/sbin/sshd", "/usr/local/sbin/sshd", "/usr/bin/sshd"]
            .into_iter()
            .find(|path| Path::new(path).exists());
        let Some(program) = program else {
            return Err(LabError::NotPermitted {
                reason: "sshd is not installed; run scripts/install-test-tools".into(),
            });
        };
        if !ssh.keyed {
            self.make_keys()?;
            ssh.keyed = true;
        }
        let log = self.path_in(host, format!("{SERVER_DIR}/log"));
        let failed = |message: String| LabError::Program {
            host: host.to_owned(),
            program: program.to_owned(),
            message,
        };
        let mut command = self.command(host, program);
        command.args([
            "-D",
            "-f",
            &format!("{SERVER_DIR}/config"),
            "-E",
            &format!("{SERVER_DIR}/log"),
        ]);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let mut server = command.spawn().map_err(|error| failed(error.to_string()))?;

        let deadline = Instant::now() + Duration::from_secs(START_SECONDS_MAX);
        loop {
            if self.in_network(host, || {
                TcpStream::connect((Ipv4Addr::LOCALHOST, 22)).is_ok()
            })? {
                break;
            }
            let ended = server.try_wait().ok().flatten();
            if ended.is_some() || Instant::now() > deadline {
                let _ = server.kill();
                let _ = server.wait();
                let log = fs::read_to_string(&log).unwrap_or_default();
                let what = ended.map_or("does not listen".to_owned(), |status| status.to_string());
                return Err(failed(format!("{what}; its log: {}", log.trim())));
            }
            std::thread::sleep(RETRY);
        }
        ssh.servers.push((index, server));
        Ok(())
    }

    /// Makes a host key and a client key and gives both to all hosts.
    fn make_keys(&self) -> Result<(), LabError> {
        let names: Vec<&str> = self.hosts().collect();
        let Some(&first) = names.first() else {
            return Ok(());
        };
        self.make_dirs(first)?;
        let host_key = self.make_key(first, &format!("{SERVER_DIR}/host_key"))?;
        let client_key = self.make_key(first, "/root/.ssh/id_ed25519")?;
        let mut server_config = SERVER_CONFIG.to_owned();
        let mut sftp = SFTP_SERVERS.into_iter();
        let program = sftp.find(|path| Path::new(path).exists());
        server_config += &format!("Subsystem sftp {}\n", program.unwrap_or("internal-sftp"));
        for host in names {
            self.make_dirs(host)?;
            for (path, contents) in [
                (format!("{SERVER_DIR}/host_key"), host_key.0.as_str()),
                (format!("{SERVER_DIR}/config"), server_config.as_str()),
                ("/root/.ssh/id_ed25519".into(), client_key.0.as_str()),
                ("/root/.ssh/authorized_keys".into(), client_key.1.as_str()),
                ("/root/.ssh/config".into(), CLIENT_CONFIG),
            ] {
                let path = self.path_in(host, path);
                let file = |path: PathBuf| move |cause| LabError::File { path, cause };
                fs::write(&path, contents).map_err(file(path.clone()))?;
                fs::set_permissions(&path, fs::Permissions::from_mode(0o600))
                    .map_err(file(path))?;
            }
        }
        Ok(())
    }

    fn make_dirs(&self, host: &str) -> Result<(), LabError> {
        let path = self.path_in(host, SERVER_DIR);
        fs::create_dir_all(&path).map_err(|cause| LabError::File { path, cause })
    }

    /// Runs ssh-keygen in the host; returns the private and the public part.
    fn make_key(&self, host: &str, path: &str) -> Result<(String, String), LabError> {
        let mut command: Command = self.command(host, "ssh-keygen");
        command
            .args(["-q", "-t", "ed25519", "-N", "", "-C", "lab", "-f", path])
            .stdin(Stdio::null());
        let failed = |message: String| LabError::Program {
            host: host.to_owned(),
            program: "ssh-keygen".into(),
            message,
        };
        let output = command
            .output()
            .map_err(|error| failed(error.to_string()))?;
        if !output.status.success() {
            return Err(failed(
                String::from_utf8_lossy(&output.stderr).trim().to_owned(),
            ));
        }
        Ok((
            crate::root::read(&self.path_in(host, path))?,
            crate::root::read(&self.path_in(host, format!("{path}.pub")))?,
        ))
    }
}
