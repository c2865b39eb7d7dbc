//! `--include`, `--exclude` and `--exclude-from`: rules in the order of the command line.

use std::ffi::OsString;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use anyhow::{Context as _, Result};
use clap::{ArgMatches, Args, Command, FromArgMatches};
use ropewalk_master::request::FilterRule;
use ropewalk_store::Filter;

use crate::inputs::Text;
use crate::job;

/// The options by themselves; their order is in the matches.
#[derive(Args, Clone, Debug)]
struct Options {
    /// Leave out what matches, with all below it, as rsync does; may be repeated
    ///
    /// `*.o` any file of such a name, `/cache` at the top only, `tmp/` folders only, `**` also matches `/`. Of --include and --exclude
    /// the first that matches decides
    #[arg(
        long,
        hide_short_help = true,
        value_name = "PATTERN",
        allow_hyphen_values = true,
        help_heading = "Filters"
    )]
    exclude: Vec<OsString>,

    /// Keep what matches, though a later --exclude matches it, too
    #[arg(
        long,
        hide_short_help = true,
        value_name = "PATTERN",
        allow_hyphen_values = true,
        help_heading = "Filters"
    )]
    include: Vec<OsString>,

    /// A file of patterns, one a line; `+ PATTERN` includes, lines that begin with # or ; are comments. - is standard input
    #[arg(
        long,
        hide_short_help = true,
        hide_long_help = true,
        value_name = "FILE",
        help_heading = "Filters"
    )]
    exclude_from: Vec<PathBuf>,
}

/// Rules and files of rules, in the order in which they were given.
#[derive(Clone, Debug, Default)]
pub(crate) struct FilterArgs {
    given: Vec<Given>,
    // What the files had, in their order; standard input has it once.
    read: OnceLock<Vec<Text>>,
}

#[derive(Clone, Debug)]
enum Given {
    Pattern { is_include: bool, text: OsString },
    File(PathBuf),
}

impl Args for FilterArgs {
    fn augment_args(command: Command) -> Command {
        Options::augment_args(command)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Options::augment_args_for_update(command)
    }
}

impl FromArgMatches for FilterArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut given: Vec<(usize, Given)> = Vec::new();
        for (name, is_include) in [("exclude", false), ("include", true)] {
            let places = matches.indices_of(name).into_iter().flatten();
            let texts = matches.get_many::<OsString>(name).into_iter().flatten();
            given.extend(
                places.zip(
                    texts
                        .cloned()
                        .map(|text| Given::Pattern { is_include, text }),
                ),
            );
        }
        let places = matches.indices_of("exclude_from").into_iter().flatten();
        let files = matches.get_many::<PathBuf>("exclude_from");
        let files = files.into_iter().flatten().cloned();
        given.extend(places.zip(files.map(Given::File)));
        given.sort_by_key(|(place, _)| *place);
        Ok(Self {
            given: given.into_iter().map(|(_, given)| given).collect(),
            read: OnceLock::new(),
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl FilterArgs {
    /// All rules.
    ///
    /// # Errors
    /// A file that cannot be read, a pattern that has no meaning.
    pub fn rules(&self) -> Result<Vec<FilterRule>> {
        let mut rules = Vec::new();
        let mut files = self.files()?.iter();
        for given in &self.given {
            match given {
                Given::Pattern { is_include, text } => {
                    add(&mut rules, *is_include, text.as_bytes())
                }
                Given::File(path) => {
                    let Text(bytes) = files
                        .next()
                        .with_context(|| format!("the job has no {}", path.display()))?;
                    for line in bytes.split(|byte| matches!(byte, b'\n' | b'\r')) {
                        if !line.is_empty() && !matches!(line[0], b'#' | b';') {
                            add(&mut rules, false, line);
                        }
                    }
                }
            }
        }
        Filter::new(&rules)?;
        Ok(rules)
    }

    /// What the files of patterns had when they were read.
    pub fn kept(&self) -> Vec<Text> {
        self.read.get().cloned().unwrap_or_default()
    }

    /// The files of patterns; of a job as they were when it was handed over.
    fn files(&self) -> Result<&Vec<Text>> {
        if let Some(read) = self.read.get() {
            return Ok(read);
        }
        let files = match job::as_job()? {
            Some(job) => job.inputs()?.patterns,
            None => {
                let paths = self.given.iter().filter_map(|given| match given {
                    Given::File(path) => Some(path),
                    Given::Pattern { .. } => None,
                });
                let read = |path: &PathBuf| {
                    let bytes = read(path);
                    bytes
                        .map(Text)
                        .with_context(|| format!("cannot read patterns from {}", path.display()))
                };
                paths.map(read).collect::<Result<_>>()?
            }
        };
        Ok(self.read.get_or_init(|| files))
    }
}

/// All of a file, or of standard input for `-`.
pub(crate) fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    if path.as_os_str() != "-" {
        return std::fs::read(path);
    }
    let mut bytes = Vec::new();
    std::io::stdin().lock().read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Adds a rule; one that begins with a sign and a space says itself what it does, and `!` ends all before it.
fn add(rules: &mut Vec<FilterRule>, is_include: bool, text: &[u8]) {
    let (is_include, pattern) = match text {
        b"!" => return rules.clear(),
        [b'+', b' ', pattern @ ..] => (true, pattern),
        [b'-', b' ', pattern @ ..] => (false, pattern),
        pattern => (is_include, pattern),
    };
    rules.push(FilterRule {
        is_include,
        pattern: pattern.to_vec(),
    });
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        filter: FilterArgs,
    }

    fn rules(words: &[&str]) -> Result<Vec<(bool, String)>> {
        let words = [&["x"], words].concat();
        let rules = Command::try_parse_from(words)?.filter.rules()?;
        let one = |rule: FilterRule| {
            let pattern = String::from_utf8(rule.pattern).unwrap();
            (rule.is_include, pattern)
        };
        Ok(rules.into_iter().map(one).collect())
    }

    /// Rules keep the order of the command line, whichever option they are of; a file's are where it stands.
    #[test]
    fn rules_keep_their_order() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, "# all\n\nd\n+ e\r\n; no\n- f g\n").unwrap();
        let path = file.path().to_str().unwrap();
        let words = [
            "--exclude",
            "a",
            "--include=b",
            "--exclude",
            "c",
            "--exclude-from",
            path,
            "--include",
            "h",
        ];
        let expected = [
            (false, "a"),
            (true, "b"),
            (false, "c"),
            (false, "d"),
            (true, "e"),
            (false, "f g"),
            (true, "h"),
        ];
        let expected = expected.map(|(is, text)| (is, text.to_owned()));
        assert_eq!(rules(&words).unwrap(), expected);
        let cleared = rules(&["--exclude", "a", "--exclude", "!", "--include", "- b"]).unwrap();
        assert_eq!(cleared, [(false, "b".to_owned())]);
    }

    /// What cannot be read or understood is an error that names it.
    #[test]
    fn bad_rules_are_named() {
        for (words, part) in [
            (["--exclude", "[a"], "[a"),
            (["--exclude", ""], "matches nothing"),
            (["--exclude-from", "/no/such"], "/no/such"),
        ] {
            let error = format!("{:#}", rules(&words).unwrap_err());
            assert!(error.contains(part), "{error}");
        }
    }
}
