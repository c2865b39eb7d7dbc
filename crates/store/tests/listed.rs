//! A list of files means what it means to rsync.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use ropewalk_store::{FileList, Filter, FilterRule, Keep, Scan, Scanning, StoreError};

mod support;
use support::*;

fn filter(rules: &[&str]) -> Filter {
    let rules = rules.iter().map(|pattern| FilterRule {
        is_include: false,
        pattern: pattern.as_bytes().to_vec(),
    });
    Filter::new(&rules.collect::<Vec<_>>()).unwrap()
}

fn scan(root: &Path, names: &[&str], rules: &[&str], is_recursive: bool) -> Scan {
    let list = FileList {
        names: names.iter().map(|name| name.as_bytes().to_vec()).collect(),
        is_recursive,
    };
    Scan::read_listed(
        root,
        Keep::default(),
        &filter(rules),
        &list,
        &Scanning::default(),
    )
    .unwrap()
}

/// Paths below the root, and whether all names were found.
type Found = (BTreeSet<String>, bool);

fn listed(root: &Path, names: &[&str], rules: &[&str], is_recursive: bool) -> Found {
    let scan = scan(root, names, rules, is_recursive);
    let paths = scan.manifest.entries.iter().skip(1);
    let paths = paths.map(|entry| String::from_utf8(entry.path.clone()).unwrap());
    (paths.collect(), scan.left_out.is_empty())
}

fn of_rsync(root: &Path, names: &[&str], rules: &[&str], is_recursive: bool) -> Found {
    let (_keep, to) = folder();
    let list = to.join("list");
    std::fs::write(&list, names.join("\0")).unwrap();
    let copy = to.join("copy");
    std::fs::create_dir(&copy).unwrap();
    let mut command = Command::new("rsync");
    command.args(["-a", "--from0", "--files-from"]).arg(&list);
    if is_recursive {
        command.arg("-r");
    }
    for rule in rules {
        command.arg(format!("--exclude={rule}"));
    }
    let ran = command
        .arg(format!("{}/", root.display()))
        .arg(&copy)
        .output();
    let status = ran.unwrap().status.code().unwrap();
    assert!(matches!(status, 0 | 23), "{names:?} {status}");
    let mut found = BTreeSet::new();
    let mut pending = vec![copy.clone()];
    while let Some(folder) = pending.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            found.insert(
                path.strip_prefix(&copy)
                    .unwrap()
                    .to_str()
                    .unwrap()
                    .to_owned(),
            );
            if path.symlink_metadata().unwrap().is_dir() {
                pending.push(path);
            }
        }
    }
    (found, status == 0)
}

fn make(root: &Path) {
    for path in [
        "a", "b.o", "d/a", "d/b.o", "d/e/a", "d/e/f/a", "e/a", "e/d/b.o", " a",
    ] {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, "x").unwrap();
    }
    std::fs::create_dir(root.join("empty")).unwrap();
    std::os::unix::fs::symlink("d", root.join("link")).unwrap();
}

/// Files, folders with and without what is in them, names twice, names that lead up, absent ones; with and without filters and `-r`.
#[test]
fn lists_are_those_of_rsync() {
    let (_keep, folder) = folder();
    let root = folder.join("root");
    make(&root);
    let names = [
        "a",
        "d",
        "d/",
        "d/.",
        "/d/e/a",
        "d/../a",
        "../a",
        "../../etc/passwd",
        "none",
        "none/a",
        "a/b",
        "a/",
        ".",
        "./",
        "..",
        "/",
        "./d//a",
        "d/e/",
        "d/e/f",
        "link",
        "empty",
        "empty/",
        "e/d/b.o",
        "b.o",
        " a",
        "d/e/../e/f/",
        "d/e/..",
        "d/e/f/../",
        "e/.",
        "d/e/f/../../../b.o",
    ];
    let rules: [&[&str]; 6] = [&[], &["d"], &["*.o"], &["/d/e"], &["a"], &["e/"]];
    let mut seed = 1u64;
    let mut below = |most: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) as usize % most
    };
    let single = names.iter().map(|name| vec![*name]);
    let several: Vec<Vec<&str>> = (0..60)
        .map(|_| {
            (0..2 + below(3))
                .map(|_| names[below(names.len())])
                .collect()
        })
        .collect();
    for (at, names) in single.chain(several).enumerate() {
        for is_recursive in [false, true] {
            let rules = rules[(at + usize::from(is_recursive)) % rules.len()];
            for rules in [&[][..], rules] {
                assert_eq!(
                    listed(&root, &names, rules, is_recursive),
                    of_rsync(&root, &names, rules, is_recursive),
                    "{names:?} {rules:?} {is_recursive}"
                );
            }
        }
    }
}

/// What cannot be copied is named: what does not exist, what is below a link. A file has no names below it.
#[test]
fn what_is_absent_is_named() {
    let (_keep, folder) = folder();
    let root = folder.join("root");
    make(&root);
    let scan = scan(&root, &["d/none", "link/a", "d/a", "d/none"], &[], false);
    let left_out = scan.left_out.iter();
    let left_out: Vec<(&[u8], &str)> = left_out.map(|one| (&one.path[..], &*one.reason)).collect();
    assert_eq!(
        left_out,
        [
            (&b"d/none"[..], "does not exist"),
            (
                b"link/a",
                "is below a symbolic link; name it by the way without the link"
            )
        ]
    );
    let list = FileList::default();
    let refused = Scan::read_listed(
        &root.join("a"),
        Keep::default(),
        &filter(&[]),
        &list,
        &Scanning::default(),
    );
    assert!(matches!(refused, Err(StoreError::NotADirectory { .. })));
}

/// What a list names in a folder that cannot be listed is copied, with the folder, which is named as left out.
#[test]
fn a_folder_that_cannot_be_listed_holds_what_is_named() {
    let (_keep, folder) = folder();
    let root = folder.join("root");
    make(&root);
    set_mode(&folder, 0o755);
    set_mode(&root.join("d"), 0o311);
    let list = || scan(&root, &["d/a", "d/"], &[], false);
    let scan = sys::as_nobody(list);
    let left_out: Vec<(&[u8], &str)> = scan
        .left_out
        .iter()
        .map(|one| (&one.path[..], &*one.reason))
        .collect();
    assert_eq!(left_out, [(&b"d"[..], "permission denied")]);
    let paths: Vec<&[u8]> = scan.manifest.entries.iter().map(|e| &*e.path).collect();
    assert_eq!(paths, [&b""[..], b"d", b"d/a"]);
    set_mode(&root.join("d"), 0o755);
}

/// Folders below one whose whole content is part of the copy are not walked again, and special files count once, unless the filter cuts
/// such a folder off.
#[test]
fn nested_names_are_walked_once() {
    const DEEP: usize = 60;
    let (_keep, root) = folder();
    // Bytes of these names are before the slash.
    for name in ["a-", "a.x"] {
        std::fs::write(root.join(name), "x").unwrap();
    }
    let mut names = vec!["a-".to_owned(), "a.x".to_owned(), "a/d0/pipe".to_owned()];
    let mut path = "a".to_owned();
    for at in 0..DEEP {
        names.push(path.clone());
        path = format!("{path}/d{at}");
    }
    std::fs::create_dir_all(root.join(&path)).unwrap();
    let pipe = root.join("a/d0/pipe");
    let (kind, mode) = (rustix::fs::FileType::Fifo, 0o600.into());
    rustix::fs::mknodat(rustix::fs::CWD, pipe, kind, mode, 0).unwrap();
    let list = FileList {
        names: names.into_iter().map(String::into_bytes).collect(),
        is_recursive: true,
    };
    for (rule, specials) in [("none", 1), ("d30", 1), ("a/d0", 1)] {
        let scanning = Scanning::default();
        let filter = filter(&[rule]);
        let scan = Scan::read_listed(&root, Keep::default(), &filter, &list, &scanning).unwrap();
        // The last folder is not named, and of the excluded one only what is below it.
        assert_eq!(scan.manifest.entries.len(), 1 + 2 + DEEP + 1, "{rule}");
        assert_eq!(scan.special, specials, "{rule}");
        assert!(scan.left_out.is_empty(), "{rule}");
        let most = list.names.len() + DEEP + 10;
        assert!(
            scanning.entries() < most as u64,
            "{rule}: {}",
            scanning.entries()
        );
    }
}
