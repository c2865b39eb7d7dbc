//! What is asked of ssh, and what its failures mean. Pure: words in, words out.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};

use ropewalk_proto::codes::EXIT_REFUSED;

use super::upload;
use crate::request::{Options, RemoteProgram};

/// ssh finds out within half a minute that the other host is gone, and ends. A value of the user's own stands before.
const ALIVE: [&str; 4] = [
    "-o",
    "ServerAliveInterval=10",
    "-o",
    "ServerAliveCountMax=3",
];

/// Runs a program that leaves the signals of the terminal to this process, which ends its agents in order: ssh keeps to
/// signals that were ignored when it began.
const DEAF: [&str; 4] = ["/bin/sh", "-c", "trap '' INT QUIT HUP; exec \"$@\"", "ssh"];

/// Whether ssh may ask the person at the terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Questions {
    /// Fail instead.
    Never,
    /// Passwords, second factors, host keys.
    AtTerminal,
}

/// The words of the command that starts an agent on a host.
pub(super) fn words(options: &Options, target: &str, questions: Questions) -> Vec<OsString> {
    let mut words: Vec<OsString> = Vec::new();
    if questions == Questions::AtTerminal {
        words.extend(DEAF.map(OsString::from));
    }
    words.extend(options.ssh_command.iter().cloned());
    if options.ssh_command.is_empty() {
        words.push("ssh".into());
    }
    words.push("-T".into());
    words.extend(ALIVE.map(OsString::from));
    if questions == Questions::Never {
        words.extend(["-o".into(), "BatchMode=yes".into()]);
    }
    words.push(target.into());
    let mut arguments: Vec<OsString> = vec!["agent".into(), "--one-shot".into()];
    arguments.extend(ports(options));
    match &options.remote_program {
        RemoteProgram::Uploaded => {
            let arguments = arguments.join(OsStr::new(" "));
            words.push(upload::command(&arguments.to_string_lossy()).into());
        }
        RemoteProgram::At(path) => {
            words.push(quote(path));
            words.extend(arguments);
        }
    }
    words
}

/// What tells an agent where it may listen.
pub(super) fn ports(options: &Options) -> Vec<OsString> {
    let Some(ports) = &options.ports else {
        return Vec::new();
    };
    let range = format!("{}-{}", ports.start(), ports.end());
    vec!["--ports".into(), range.into()]
}

/// A program's path as the shell of another host takes it for one word; `~/` and `~user/` at its beginning stay what they are.
fn quote(path: &OsStr) -> OsString {
    let bytes = path.as_bytes();
    let is_plain =
        |byte: &u8| byte.is_ascii_alphanumeric() || b"/._-+=:@%,".contains(byte) || *byte >= 0x80;
    let home = match bytes.iter().position(|byte| *byte == b'/') {
        Some(slash) if bytes[0] == b'~' && bytes[1..slash].iter().all(is_plain) => slash + 1,
        _ => 0,
    };
    let (home, rest) = bytes.split_at(home);
    if rest.iter().all(is_plain) && !rest.is_empty() {
        return path.to_owned();
    }
    let mut quoted = home.to_vec();
    quoted.push(b'\'');
    for byte in rest {
        match byte {
            b'\'' => quoted.extend(b"'\\''"),
            byte => quoted.push(*byte),
        }
    }
    quoted.push(b'\'');
    OsString::from_vec(quoted)
}

/// Why an agent was not reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    /// In words for the person: those of ssh, then what to do where that is known.
    pub text: String,
    /// ssh would have asked something.
    pub is_question: bool,
    /// The agent says that what it is to serve is not there, or is nothing that it may serve.
    pub is_final: bool,
}

/// Status of a shell that does not find a program, and of one that cannot run it.
const NOT_FOUND: i32 = 127;
const NOT_RUNNABLE: i32 = 126;

/// What an end without an agent means.
///
/// * `program`: what was run here, for an end without a word.
/// * `status`: its exit status, where it has one.
/// * `said`: its standard error.
/// * `questions`: whether it could ask.
pub(super) fn explain(
    program: &str,
    status: Option<i32>,
    said: &str,
    questions: Questions,
) -> Failure {
    let said = said.trim();
    let failure = |advice: &str, is_question: bool| {
        let text = match (said.is_empty(), advice.is_empty()) {
            (true, _) if status == Some(0) => format!(
                "`{program}` ended without error, but no agent answered; check that --remote-path names a ropewalk, and that \
                 the login scripts of that host do not end the session"
            ),
            (true, _) => format!(
                "`{program}` ended{} without a message{advice}",
                status.map_or(String::new(), |status| format!(" with status {status}"))
            ),
            (false, true) => said.to_owned(),
            (false, false) => format!("{said}{advice}"),
        };
        Failure {
            text,
            is_question,
            is_final: false,
        }
    };
    // The agent itself knows what is wrong; login scripts may have said something before.
    if let Some(own) = said
        .lines()
        .rev()
        .find_map(|line| line.strip_prefix("ropewalk: "))
    {
        return Failure {
            text: own.to_owned(),
            is_question: false,
            is_final: status == Some(EXIT_REFUSED.into()),
        };
    }
    let has = |words: &str| said.contains(words);
    let unasked = match questions {
        Questions::Never => {
            "\nWithout a terminal no questions can be asked: log in there once with ssh, load the key into ssh-agent, or \
             keep a connection open with ControlMaster (ssh_config)"
        }
        Questions::AtTerminal => "",
    };
    if has("HOST IDENTIFICATION HAS CHANGED") {
        // ssh says at length what this may mean and what to do.
        return failure("", false);
    }
    if has("Host key verification failed") {
        return failure(unasked, true);
    }
    if has("Permission denied (") || has("Too many authentication failures") {
        return failure(unasked, true);
    }
    if has("Could not resolve hostname") {
        return failure(
            "\nCheck the host's name; a file of this host whose name has a colon is written ./NAME",
            false,
        );
    }
    let is_missed = said.lines().any(|line| line.ends_with(": not found"));
    let is_lacking = status == Some(NOT_FOUND) || is_missed || has("command not found");
    if is_lacking || status == Some(NOT_RUNNABLE) {
        return failure(
            "\nInstall ropewalk there, or say where it is with --remote-path",
            false,
        );
    }
    failure("", false)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One word for the other host's shell, whatever is in it.
    #[test]
    fn remote_paths_are_one_word() {
        for (path, word) in [
            ("ropewalk", "ropewalk"),
            ("/opt/x-1.2/bin/ropewalk", "/opt/x-1.2/bin/ropewalk"),
            ("/opt/my tools/ropewalk", "'/opt/my tools/ropewalk'"),
            ("x; y", "'x; y'"),
            ("it's", "'it'\\''s'"),
            ("$HOME/x", "'$HOME/x'"),
            ("~/bin/ropewalk", "~/bin/ropewalk"),
            ("~/my bin/ropewalk", "~/'my bin/ropewalk'"),
            ("~me/x y", "~me/'x y'"),
            ("~$(x)/y", "'~$(x)/y'"),
            ("", "''"),
        ] {
            assert_eq!(quote(OsStr::new(path)), OsStr::new(word), "{path}");
        }
    }

    /// Questions are possible only where a person is asked, and there ssh leaves signals alone.
    #[test]
    fn questions_are_asked_on_demand() {
        let options = Options {
            ssh_command: vec!["ssh".into(), "-F".into(), "f".into()],
            remote_program: RemoteProgram::At("ropewalk".into()),
            ..Options::default()
        };
        let text = |questions| {
            let words = words(&options, "me@h", questions);
            let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
            words.join(" ")
        };
        let never = text(Questions::Never);
        assert!(never.starts_with("ssh -F f -T -o ServerAlive"), "{never}");
        assert!(
            never.ends_with("-o BatchMode=yes me@h ropewalk agent --one-shot"),
            "{never}"
        );
        let asks = text(Questions::AtTerminal);
        assert!(
            asks.starts_with("/bin/sh -c trap '' INT QUIT HUP; "),
            "{asks}"
        );
        assert!(asks.contains(" ssh ssh -F f -T") && !asks.contains("BatchMode"));
    }

    /// Advice fits what ssh said, and only a program that is not found has that about installing.
    #[test]
    fn advice_fits() {
        let explain =
            |status: i32, said: &str| explain("ssh", Some(status), said, Questions::Never);
        for (status, said, advice, is_question) in [
            (127, "sh: 1: ropewalk: not found", "--remote-path", false),
            (
                1,
                "zsh:1: command not found: ropewalk",
                "--remote-path",
                false,
            ),
            (126, "sh: 1: /x: Permission denied", "--remote-path", false),
            (
                255,
                "me@h: Permission denied (publickey,password).",
                "ssh-agent",
                true,
            ),
            (
                255,
                "Host key verification failed.",
                "log in there once",
                true,
            ),
            (
                255,
                "ssh: Could not resolve hostname nx: Name or service not known",
                "./NAME",
                false,
            ),
        ] {
            let failure = explain(status, said);
            assert!(failure.text.starts_with(said), "{failure:?}");
            assert!(failure.text.contains(advice), "{failure:?}");
            assert_eq!(failure.is_question, is_question, "{failure:?}");
            let installs = failure.text.contains("--remote-path");
            assert_eq!(installs, advice == "--remote-path", "{failure:?}");
        }
        for alone in [
            "ssh: connect to host h port 22: Connection refused",
            "ssh: connect to host h port 22: Connection timed out",
            "@@@@\n@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\n@@@@\nHost key verification failed.",
        ] {
            let failure = explain(255, alone);
            assert_eq!((failure.text.as_str(), failure.is_question), (alone, false));
        }
        let own = explain(1, "motd\nropewalk: the source /x cannot be used: gone\n");
        assert_eq!(own.text, "the source /x cannot be used: gone");
        assert!(!own.is_final && explain(4, "ropewalk: no such file").is_final);
        let silent = explain(255, "");
        assert_eq!(silent.text, "`ssh` ended with status 255 without a message");
        let other = explain(0, "").text;
        assert!(
            other.contains("check that --remote-path names a ropewalk"),
            "{other}"
        );
        let asked = super::explain(
            "ssh",
            Some(255),
            "Permission denied (x).",
            Questions::AtTerminal,
        );
        assert_eq!(asked.text, "Permission denied (x).");
    }
}
