//! Copies that remove what no source has, and rsync's.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use ropewalk_store::{
    Act, Adopt, Dest, Entry, FileSource, Filter, FilterRule, Keep, Part, Removed, Scan, Scanning,
    Sink as _, StoreError, TreeSink,
};

use super::{id, name, write};

pub fn filter(rules: &[&str]) -> Filter {
    let rules: Vec<FilterRule> = rules
        .iter()
        .map(|text| FilterRule {
            is_include: text.starts_with('+'),
            pattern: text.as_bytes()[1..].to_vec(),
        })
        .collect();
    Filter::new(&rules).unwrap()
}

/// One tree, or several things side by side, as a copy of them has them.
pub fn scan(from: &[&Path], filter: &Filter) -> (FileSource, Part) {
    let (source, scan) = match from {
        [one] => {
            let scan = Scan::read_filtered(one, Keep::default(), filter, b"", &Scanning::default())
                .unwrap();
            (FileSource::open_tree(one, &scan, 0).unwrap(), scan)
        }
        several => {
            let (mut things, mut scans) = (Vec::new(), Vec::new());
            for path in several {
                let name = path.file_name().unwrap().as_bytes().to_vec();
                let scan =
                    Scan::read_filtered(path, Keep::default(), filter, &name, &Scanning::default())
                        .unwrap();
                scans.push((name.clone(), scan));
                things.push((name, path.to_path_buf()));
            }
            let scan = Scan::bundle(scans).unwrap();
            (FileSource::open_bundle(&things, &scan, 0).unwrap(), scan)
        }
    };
    (source, Part::whole(0, scan.manifest))
}

/// A copy that removes what is extra. What a preview said of it, which is refused where the copy is.
pub fn mirror(
    from: &[&Path],
    to: &Path,
    rules: &[&str],
) -> Result<(Removed, Vec<PathBuf>), StoreError> {
    let filter = filter(rules);
    let (source, part) = scan(from, &filter);
    let parts = [part];
    let preview = TreeSink::preview(to, &parts, Some(&Adopt::All.into()), Some(&filter), false);
    let dest = Dest::mirror(to, &filter);
    let sink = TreeSink::update(dest, &parts, &id(1), Adopt::All);
    assert_eq!(preview.as_ref().err(), sink.as_ref().err());
    let (preview, sink) = (preview?, sink?);
    let foreseen = preview
        .changes
        .iter()
        .filter(|change| matches!(change.act, Act::Remove | Act::RemoveFolder));
    let foreseen = foreseen.map(|change| to.join(name(&change.path)));
    let foreseen: Vec<PathBuf> = foreseen.collect();
    sink.remove_extra(filter.clone());
    for range in sink
        .layout()
        .ranges()
        .difference(&sink.present().all())
        .iter()
    {
        write(&source, &sink, range);
    }
    assert!(foreseen.iter().all(|path| path.symlink_metadata().is_ok()));
    sink.commit().unwrap();
    let removed = sink.landed().removed;
    // Something else may have its name, or that of a folder above it.
    let is_left = |path: &&PathBuf| {
        let is_link = |path: &Path| path.is_symlink();
        let is_new = |entry: &Entry| to.join(name(&entry.path)) == **path;
        let is_below_link = path.ancestors().skip(1).any(is_link);
        !is_below_link
            && path.symlink_metadata().is_ok()
            && !parts[0].manifest.entries.iter().any(is_new)
    };
    assert_eq!(foreseen.iter().find(is_left), None);
    let count = removed.files + removed.folders;
    assert_eq!(count as usize, foreseen.len(), "{foreseen:?}");
    Ok((removed, foreseen))
}

pub fn rsync(from: &[&Path], to: &Path, rules: &[&str]) {
    let mut command = Command::new("rsync");
    command.args(["-a", "--delete"]);
    for rule in rules {
        let option = match rule.starts_with('+') {
            true => "--include",
            false => "--exclude",
        };
        command.arg(format!("{option}={}", &rule[1..]));
    }
    match from {
        [one] => command.arg(format!("{}/", one.display())),
        several => command.args(several),
    };
    let ran = command.arg(format!("{}/", to.display())).output().unwrap();
    assert!(
        ran.status.success(),
        "{}",
        String::from_utf8_lossy(&ran.stderr)
    );
}

/// Every path below a folder, with the contents of files and the targets of links.
pub fn contents(root: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut pending = vec![root.to_owned()];
    while let Some(folder) = pending.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let kind = path.symlink_metadata().unwrap().file_type();
            let bytes = if kind.is_dir() {
                pending.push(path.clone());
                b"/".to_vec()
            } else if kind.is_symlink() {
                std::fs::read_link(&path)
                    .unwrap()
                    .into_os_string()
                    .into_encoded_bytes()
            } else if kind.is_file() {
                std::fs::read(&path).unwrap()
            } else {
                b"special".to_vec()
            };
            found.insert(path.strip_prefix(root).unwrap().to_owned(), bytes);
        }
    }
    found
}

pub fn clone(from: &Path, to: &Path) {
    let ran = Command::new("cp").arg("-a").args([from, to]).status();
    assert!(ran.unwrap().success());
}
