//! Rules mean what they mean to rsync.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use proptest::prelude::*;
use ropewalk_store::{Filter, FilterRule, Keep, Scan, Scanning};

mod support;
use support::*;

/// Rules as the command line has them: `+` or `-`, then the pattern.
fn parse(rules: &[&str]) -> Vec<FilterRule> {
    let rule = |text: &&str| FilterRule {
        is_include: text.starts_with('+'),
        pattern: text.as_bytes()[1..].to_vec(),
    };
    rules.iter().map(rule).collect()
}

/// Paths below the root.
type Paths = BTreeSet<Vec<u8>>;

fn scanned(root: &Path, rules: &[&str], name: &str) -> Paths {
    let filter = Filter::new(&parse(rules)).unwrap();
    let scan = Scan::read_filtered(
        root,
        Keep::default(),
        &filter,
        name.as_bytes(),
        &Scanning::default(),
    )
    .unwrap();
    let paths = scan.manifest.entries.iter().map(|entry| entry.path.clone());
    paths.filter(|path| !path.is_empty()).collect()
}

/// What rsync would copy; `source` with a slash behind it is the root of the transfer.
fn of_rsync(source: &str, rules: &[&str]) -> Paths {
    let mut command = Command::new("rsync");
    command.args(["-a", "--list-only"]);
    for rule in rules {
        let option = if rule.starts_with('+') {
            "--include"
        } else {
            "--exclude"
        };
        command.arg(format!("{option}={}", &rule[1..]));
    }
    let ran = command.arg(source).output().unwrap();
    assert!(
        ran.status.success(),
        "{}",
        String::from_utf8_lossy(&ran.stderr)
    );
    let text = String::from_utf8(ran.stdout).unwrap();
    // drwxr-xr-x          4,096 2026/11/23 21:00:00 path
    let paths = text.lines().map(|line| line.split_once(':').unwrap().1);
    let paths = paths.map(|rest| rest.as_bytes()[6..].to_vec());
    paths.filter(|path| path != b".").collect()
}

/// A tree in which every short pattern finds something.
fn tree(folder: &Path) -> std::path::PathBuf {
    let root = folder.join("root");
    for path in [
        "a",
        "b",
        "ab",
        "c.o",
        "sub/a",
        "sub/b",
        "sub/ab",
        "sub/c.o",
        "sub/sub/a",
        "sub/sub/b",
        "a.d/a",
        "a.d/sub/a",
        "a.d/sub/deep/b",
        "b.d/sub/ab",
        "sub/a.d/x",
        "[b]",
        "a*b",
        "-",
        "a\\b",
    ] {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, "x").unwrap();
    }
    root
}

#[track_caller]
fn assert_same(root: &Path, rules: &[&str]) {
    let expected = of_rsync(&format!("{}/", root.display()), rules);
    let found = scanned(root, rules, "");
    let text = |paths: &Paths| -> Vec<String> {
        paths
            .iter()
            .map(|path| String::from_utf8_lossy(path).into_owned())
            .collect()
    };
    assert_eq!(text(&found), text(&expected), "{rules:?}");
}

/// Each kind of pattern, and the order of rules.
#[test]
fn rules_are_those_of_rsync() {
    let (_keep, folder) = folder();
    let root = tree(&folder);
    for rules in [
        &["-a"][..],
        &["-/a"],
        &["-a/"],
        &["-sub/"],
        &["-/sub/"],
        &["-sub"],
        &["-sub/a"],
        &["-/sub/a"],
        &["-sub/sub/a"],
        &["-*.o"],
        &["-/*.o"],
        &["-a*"],
        &["-*"],
        &["-**"],
        &["-/**"],
        &["-**/a"],
        &["-/**/a"],
        &["-sub/**"],
        &["-/sub/**"],
        &["-a.d/***"],
        &["-/sub/***"],
        &["-sub/***/"],
        &["-a**b"],
        &["-s**/b"],
        &["-a.d/**/b"],
        &["-**b"],
        &["-?"],
        &["-a?b"],
        &["-sub?a"],
        &["-[ab]"],
        &["-[!ab]"],
        &["-[^a]b"],
        &["-[a-b]"],
        &["-[[:alpha:]]"],
        &["-[[:]b]"],
        &["-[[:]b]", "-[[:a]"],
        &["-[]b]"],
        &["-\\[b\\]"],
        &["-[b]"],
        &["-a\\*b"],
        &["-a\\b"],
        &["-a\\\\*"],
        &["-sub[/]a"],
        &["+a", "-*"],
        &["+*/", "+a", "-*"],
        &["+/sub/", "+/sub/a", "-/sub/*", "-b"],
        &["+sub/***", "-*"],
        &["+*.o", "-c*", "-sub/sub"],
        &["-a", "+a"],
        &["--"],
    ] {
        assert_same(&root, rules);
    }
}

/// Where the source has a name in the copy, an anchored pattern begins with it.
#[test]
fn a_named_source_is_part_of_the_path() {
    let (_keep, folder) = folder();
    let root = tree(&folder);
    let below = |paths: Paths| -> Paths {
        let paths = paths.into_iter();
        paths
            .filter_map(|path| Some(path.strip_prefix(b"root/")?.to_vec()))
            .collect()
    };
    for rules in [
        &["-/root/a"][..],
        &["-/a"],
        &["-root/sub"],
        &["-/root/sub/*", "-b"],
    ] {
        let expected = below(of_rsync(&root.display().to_string(), rules));
        assert_eq!(scanned(&root, rules, "root"), expected, "{rules:?}");
    }
}

/// What matches is not read: a folder that may not be listed is not missed.
#[test]
fn what_is_excluded_is_not_read() {
    let (_keep, folder) = folder();
    let root = tree(&folder);
    std::os::unix::net::UnixListener::bind(root.join("a.d/socket")).unwrap();
    let read = |rules: &[&str]| {
        let filter = Filter::new(&parse(rules)).unwrap();
        Scan::read_filtered(&root, Keep::default(), &filter, b"", &Scanning::default()).unwrap()
    };
    assert_eq!(read(&["-b"]).special, 1);
    assert_eq!(read(&["-socket"]).special, 0);
    assert_eq!(read(&["-a.d"]).special, 0);
}

/// A pattern of pieces that meet in the tree.
fn pattern() -> impl Strategy<Value = String> {
    let pieces = [
        "a", "b", "sub", "/", "*", "**", "***", "?", "[ab]", "[!a]", ".d", ".o", "\\", "a/",
        "/sub", "**/", "/***",
    ];
    let pieces = prop::collection::vec(prop::sample::select(pieces.to_vec()), 1..5);
    (any::<bool>(), pieces).prop_filter_map("means nothing", |(is_include, pieces)| {
        let pattern = pieces.concat();
        let sign = if is_include { '+' } else { '-' };
        // What rsync does with several slashes, or with one behind `**`, differs between its versions.
        let is_odd = pattern.contains("//") || pattern == "/" || pattern.ends_with('\\');
        (!is_odd).then(|| format!("{sign}{pattern}"))
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Any rules mean the same to rsync.
    #[test]
    fn any_rules_are_those_of_rsync(rules in prop::collection::vec(pattern(), 1..4)) {
        let (_keep, folder) = folder();
        let root = tree(&folder);
        let rules: Vec<&str> = rules.iter().map(String::as_str).collect();
        assert_same(&root, &rules);
    }
}
