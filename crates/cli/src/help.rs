//! What is made of the definitions of commands and options besides the parser: `--help-all`, completion scripts, manual pages.
//!
//! Rare options are hidden from `-h` and `--help` (`hide_short_help` and `hide_long_help`) and shown by `--help-all`. What is hidden
//! altogether (`hide`) is shown by none.

use std::ffi::OsString;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::{Arg, ArgAction, Args, Command, CommandFactory as _};
use clap_complete::Shell;
use ropewalk_proto::codes::EXIT_FAILED;

use crate::Arguments;

const HELP_ALL: &str = "help-all";

/// Arguments of `ropewalk completions`.
#[derive(Args, Clone, Debug)]
pub(crate) struct CompletionsArgs {
    /// The shell
    #[arg(value_name = "SHELL", value_parser = ["bash", "zsh", "fish"])]
    shell: String,
}

/// Arguments of `ropewalk man`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ManArgs {
    /// The folder; it is made if it is missing
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

fn is_rare(arg: &Arg) -> bool {
    arg.is_hide_short_help_set() && arg.is_hide_long_help_set() && !arg.is_hide_set()
}

/// The program's commands. Those with rare options have `--help-all`.
pub(crate) fn command() -> Command {
    Arguments::command().mut_subcommands(|command| {
        if !command.get_arguments().any(is_rare) {
            return command;
        }
        let all = Arg::new(HELP_ALL)
            .long(HELP_ALL)
            .help("Print help with all options, the rare ones too")
            .action(ArgAction::SetTrue);
        command.arg(all)
    })
}

/// The whole help of a command, where the words of the command line ask for it.
pub(crate) fn asked_for_all(words: impl Iterator<Item = OsString>) -> Option<String> {
    let words: Vec<OsString> = words.take_while(|word| word != "--").collect();
    words.iter().find(|word| *word == "--help-all")?;
    let mut command = command();
    command.build();
    let named = words.first()?;
    if named == "--help-all" {
        return Some(command.render_long_help().to_string());
    }
    let command = command
        .get_subcommands_mut()
        .find(|command| *named == *command.get_name())?;
    let mut command = std::mem::take(command).mut_args(|arg| match is_rare(&arg) {
        true => arg.hide_long_help(false),
        false => arg,
    });
    Some(command.render_long_help().to_string())
}

/// Prints the script.
pub(crate) fn print_completions(args: &CompletionsArgs) -> ExitCode {
    let shell = match args.shell.as_str() {
        "bash" => Shell::Bash,
        "zsh" => Shell::Zsh,
        _ => Shell::Fish,
    };
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command(), "ropewalk", &mut script);
    let mut out = std::io::stdout();
    printed(out.write_all(&script).and_then(|()| out.flush()))
}

/// The status of a command that only prints. A reader that has gone misses nothing.
pub(crate) fn printed(printed: std::io::Result<()>) -> ExitCode {
    match printed {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            eprintln!("ropewalk: cannot write to standard output: {error}");
            ExitCode::from(EXIT_FAILED)
        }
        _ => ExitCode::SUCCESS,
    }
}

/// Writes ropewalk.1 and a page for each command.
pub(crate) fn write_manual(args: &ManArgs) -> Result<ExitCode> {
    let folder = &args.folder;
    std::fs::create_dir_all(folder)
        .with_context(|| format!("cannot make the folder {}", folder.display()))?;
    clap_mangen::generate_to(command(), folder)
        .with_context(|| format!("cannot write manual pages to {}", folder.display()))?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `--help` shows few options; each one that it leaves out is in `--help-all`, and none that is hidden altogether.
    #[test]
    fn help_all_has_what_help_leaves_out() {
        for name in ["copy", "put", "get", "transfer"] {
            let mut all = command();
            let command = all.find_subcommand_mut(name).unwrap();
            let options: Vec<Arg> = command
                .get_arguments()
                .filter(|arg| arg.get_long().is_some())
                .cloned()
                .collect();
            let short = command.render_long_help().to_string();
            let long = asked_for_all([name, "--help-all"].map(OsString::from).into_iter());
            let long = long.unwrap();
            let shows = |text: &str, arg: &Arg| {
                let option = format!("--{}", arg.get_long().unwrap());
                text.lines().any(|line| {
                    let mut words = line.split([' ', ',']).filter(|word| !word.is_empty());
                    line.starts_with("  ") && words.by_ref().take(2).any(|word| word == option)
                })
            };
            let common = options.iter().filter(|arg| shows(&short, arg)).count();
            assert!(common <= 21, "{name}: {common}");
            for arg in &options {
                assert_eq!(
                    shows(&short, arg),
                    !is_rare(arg) && !arg.is_hide_set(),
                    "{arg}"
                );
                assert_eq!(shows(&long, arg), !arg.is_hide_set(), "{name} {arg}");
            }
        }
        let of_program = asked_for_all(["--help-all"].map(OsString::from).into_iter());
        assert!(of_program.unwrap().contains("Usage: ropewalk <COMMAND>"));
        let plain = asked_for_all(["copy", "a", "b"].map(OsString::from).into_iter());
        assert_eq!(plain, None);
        let path = ["copy", "--", "--help-all"].map(OsString::from);
        assert_eq!(asked_for_all(path.into_iter()), None);
    }
}
