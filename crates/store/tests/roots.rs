//! Paths that try to leave the folders an agent was given.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use ropewalk_store::{Access, FileSource, Manifest, Roots, Scan, StoreError, identity};

mod support;
use support::*;

/// `data` may be written, `docs` read, `secret` neither.
fn place() -> (tempfile::TempDir, PathBuf, Roots) {
    let (keep, folder) = folder();
    for name in ["data/sub", "docs", "secret", "data-not"] {
        std::fs::create_dir_all(folder.join(name)).unwrap();
    }
    for name in ["data/file", "docs/file", "secret/file", "data-not/file"] {
        std::fs::write(folder.join(name), "x").unwrap();
    }
    let roots = vec![
        (folder.join("data"), Access::ReadWrite),
        (folder.join("docs"), Access::ReadOnly),
    ];
    let roots = Roots::new(roots).unwrap();
    (keep, folder, roots)
}

fn is_outside(result: Result<PathBuf, StoreError>) -> bool {
    matches!(result, Err(StoreError::OutsideRoot { .. }))
}

/// Plain paths below a root resolve to themselves, the root and odd names included.
#[test]
fn paths_below_a_root_are_served() {
    let (_keep, folder, roots) = place();
    assert_eq!(
        roots.resolve_read(&folder.join("data/file")),
        Ok(folder.join("data/file"))
    );
    assert_eq!(
        roots.resolve_read(&folder.join("docs")),
        Ok(folder.join("docs"))
    );
    assert_eq!(
        roots.resolve_read(&folder.join("data/sub/../file")),
        Ok(folder.join("data/file"))
    );
    let odd = folder.join("data").join(name(b"new \xff\n"));
    assert_eq!(roots.resolve_write(&odd), Ok(odd));
    assert_eq!(
        roots.resolve_write(&folder.join("data/new/deep/er")),
        Ok(folder.join("data/new/deep/er"))
    );
    symlink("sub", folder.join("data/link")).unwrap();
    assert_eq!(
        roots.resolve_write(&folder.join("data/link/new")),
        Ok(folder.join("data/sub/new"))
    );
}

/// Neither `..`, nor links, nor a name that starts like a root leads out, for reading or writing.
#[test]
fn nothing_leads_out() {
    let (_keep, folder, roots) = place();
    symlink(folder.join("secret"), folder.join("data/to secret")).unwrap();
    symlink("../../secret/file", folder.join("data/sub/relative")).unwrap();
    symlink("..", folder.join("data/up")).unwrap();
    let escapes = [
        "secret/file",
        "data/../secret/file",
        "data/sub/../../secret/file",
        "data/to secret/file",
        "data/to secret",
        "data/sub/relative",
        "data/to secret/new",
        "data/up/secret/file",
        "data/up/secret/new",
        "data-not/file",
        "data/up/data/../secret/file",
        "secret/no such",
        "no such/file",
        "data/no such/../../secret/file",
    ];
    for path in escapes {
        let path = folder.join(path);
        assert!(
            is_outside(roots.resolve_read(&path)),
            "read {path:?}: {:?}",
            roots.resolve_read(&path)
        );
        assert!(
            is_outside(roots.resolve_write(&path)),
            "write {path:?}: {:?}",
            roots.resolve_write(&path)
        );
    }
    assert!(is_outside(roots.resolve_read(Path::new("/etc/passwd"))));
    assert!(is_outside(roots.resolve_read(Path::new("relative"))));
}

/// A link without a target is refused for writing, on the way (the target could appear outside later) and as the last
/// name (the copy would replace the link).
#[test]
fn links_without_targets_are_refused() {
    let (_keep, folder, roots) = place();
    symlink(folder.join("later"), folder.join("data/dangling")).unwrap();
    let error = roots
        .resolve_write(&folder.join("data/dangling/file"))
        .unwrap_err();
    let expected = StoreError::LinkWithoutTarget {
        path: folder.join("data/dangling"),
        target: folder.join("later"),
    };
    assert_eq!(error, expected);
    let last = roots.resolve_write(&folder.join("data/dangling"));
    assert_eq!(last, Err(expected));
}

/// What is wrong with a relative path below a root is said as of an absolute one.
#[test]
fn relative_paths_have_their_own_errors() {
    let roots = Roots::new(vec![(".".into(), Access::ReadWrite)]).unwrap();
    let error = roots.resolve_write(Path::new("Cargo.toml/x")).unwrap_err();
    assert!(matches!(error, StoreError::NotADirectory { .. }), "{error}");
    assert!(is_outside(
        roots.resolve_write(Path::new("../Cargo.toml/x"))
    ));
}

/// Reading and writing are different rights, and the message names the way out.
#[test]
fn read_only_roots_are_not_written() {
    let (_keep, folder, roots) = place();
    let error = roots.resolve_write(&folder.join("docs/new")).unwrap_err();
    assert!(matches!(error, StoreError::RootReadOnly { .. }), "{error}");
    assert!(error.to_string().contains("--root DIR:rw"), "{error}");
    assert!(matches!(
        roots.resolve_read(&folder.join("docs/none")),
        Err(StoreError::Vanished { .. })
    ));
    let error = roots.resolve_read(&folder.join("secret/file")).unwrap_err();
    assert!(
        error
            .to_string()
            .contains(&format!("{:?}", folder.join("docs"))),
        "{error}"
    );
}

/// Of nested roots the deepest decides.
#[test]
fn the_deepest_root_decides() {
    let (_keep, folder, _) = place();
    let roots = vec![
        (folder.join("data"), Access::ReadOnly),
        (folder.join("data/sub"), Access::ReadWrite),
    ];
    let roots = Roots::new(roots).unwrap();
    assert!(roots.resolve_write(&folder.join("data/sub/new")).is_ok());
    assert!(roots.resolve_write(&folder.join("data/new")).is_err());
    assert!(is_outside(
        Roots::new(vec![]).unwrap().resolve_read(&folder)
    ));
    assert!(matches!(
        Roots::new(vec![(folder.join("none"), Access::ReadOnly)]),
        Err(StoreError::Vanished { .. })
    ));
}

/// A link that takes the place of a tree, of a single file, or of a folder above either after the path was checked is
/// refused by all who open the path later: what it leads to has the lengths and times that were scanned.
#[test]
fn what_was_checked_is_not_swapped_for_a_link() {
    for (served, swapped) in [
        ("tree", "tree"),
        ("tree", ""),
        ("tree/file", "tree/file"),
        ("tree/file", "tree"),
        ("tree/file", ""),
    ] {
        let (_keep, folder, roots) = place();
        let (inside, outside) = (folder.join("data/sub"), folder.join("secret"));
        for (base, contents) in [(&inside, "mine"), (&outside, "SECR")] {
            std::fs::create_dir(base.join("tree")).unwrap();
            std::fs::write(base.join("tree/file"), contents).unwrap();
            set_times(&base.join("tree/file"), 1_000_000, 1);
        }
        let path = roots.resolve_read(&inside.join(served)).unwrap();
        let scan = Scan::read(&path).unwrap();
        let open = || FileSource::open_tree(&path, &scan, 0);
        assert!(open().is_ok());

        // Without the slash at the end that joining nothing gives.
        let taken: PathBuf = inside.join(swapped).components().collect();
        std::fs::rename(&taken, folder.join("gone")).unwrap();
        symlink(outside.join(swapped), &taken).unwrap();
        for (step, error) in [
            ("open", open().unwrap_err()),
            ("scan", Manifest::scan(&path).unwrap_err()),
            ("identity", identity(&path).unwrap_err()),
        ] {
            let refused = matches!(error, StoreError::SymbolicLink { .. });
            assert!(refused, "{step} of {served}, {swapped:?} swapped: {error}");
        }
    }
}

/// A file is opened where it was resolved: a link that was put there since is refused, and a pipe is not waited for.
#[test]
fn whole_files_are_opened_where_they_were_resolved() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().canonicalize().unwrap();
    std::fs::create_dir(folder.join("served")).unwrap();
    std::fs::write(folder.join("secret"), "secret").unwrap();
    let path = folder.join("served/in");
    std::fs::write(&path, "four").unwrap();
    let roots = Roots::new(vec![(folder.join("served"), Access::ReadOnly)]).unwrap();
    let resolved = roots.resolve_read(&path).unwrap();
    assert_eq!(ropewalk_store::open_whole(&resolved).unwrap().1, 4);
    std::fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink("../secret", &path).unwrap();
    assert!(ropewalk_store::open_whole(&resolved).is_err());
    std::fs::remove_file(&path).unwrap();
    let made = std::process::Command::new("mkfifo").arg(&path).status();
    assert!(made.unwrap().success());
    let error = ropewalk_store::open_whole(&resolved).unwrap_err();
    assert!(matches!(error, StoreError::SpecialFile { .. }), "{error}");
}
