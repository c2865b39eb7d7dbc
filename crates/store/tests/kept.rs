//! Owners, groups, set-id bits, extended attributes and ACLs of a copy.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, lchown, symlink};
use std::path::Path;
use std::sync::Arc;

use ropewalk_store::{
    Adopt, FileSource, Filter, Keep, Landed, Manifest, ManifestError, Owner, Part, Scan, Sink,
    TreeSink,
};
use rustix::fs::XattrFlags;

mod support;
use support::*;

const ALL: Keep = Keep {
    owners: true,
    attributes: true,
    links: false,
    specials: false,
};

const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";

/// An ACL as the kernel has it: the owner may do all, one more user may read, the mask allows reading and writing.
fn acl(user: u32) -> Vec<u8> {
    const NONE: u32 = u32::MAX;
    let entries: [(u16, u16, u32); 5] = [
        (0x01, 7, NONE),
        (0x02, 4, user),
        (0x04, 4, NONE),
        (0x10, 6, NONE),
        (0x20, 0, NONE),
    ];
    let mut out = 2_u32.to_le_bytes().to_vec();
    for (tag, rights, id) in entries {
        out.extend(tag.to_le_bytes());
        out.extend(rights.to_le_bytes());
        out.extend(id.to_le_bytes());
    }
    out
}

fn set(path: &Path, name: &str, value: &[u8]) {
    rustix::fs::lsetxattr(path, name, value, XattrFlags::empty()).unwrap();
}

fn get(path: &Path, name: &str) -> Option<Vec<u8>> {
    let mut value = vec![0; 1 << 16];
    let len = rustix::fs::lgetxattr(path, name, &mut value[..]).ok()?;
    value.truncate(len);
    Some(value)
}

/// Copies a tree with all that is kept of it.
fn copy_all(from: &Path, to: &Path, update: bool) -> Landed {
    copy_with(from, to, update, None)
}

/// The same, and removes what else is there.
fn mirror_all(from: &Path, to: &Path) -> Landed {
    copy_with(from, to, true, Some(Filter::default()))
}

fn copy_with(from: &Path, to: &Path, update: bool, removes: Option<Filter>) -> Landed {
    let scan = Scan::read_keeping(from, ALL).unwrap();
    assert_eq!(
        Manifest::decode(&scan.manifest.encode()).as_ref(),
        Ok(&*scan.manifest)
    );
    let source = FileSource::open_tree(from, &scan, 0).unwrap();
    let parts = [Part::whole(0, scan.manifest)];
    let sink = match update {
        true => TreeSink::update(to, &parts, ID, Adopt::All).unwrap(),
        false => TreeSink::create(to, &parts, ID, false).unwrap(),
    };
    removes
        .into_iter()
        .for_each(|filter| sink.remove_extra(filter));
    pump(source.layout(), &source, &sink);
    sink.commit().unwrap();
    sink.landed()
}

fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        eprintln!("SKIPPED: only root gives files to other users; run as root");
    }
    is_root
}

fn make_tree(at: &Path) {
    std::fs::create_dir_all(at.join("sub")).unwrap();
    for (name, mode) in [
        ("file", 0o640),
        ("program", 0o4755),
        ("shut", 0o400),
        ("sub/x", 0o644),
    ] {
        std::fs::write(at.join(name), name).unwrap();
        set_mode(&at.join(name), mode);
    }
    symlink("file", at.join("link")).unwrap();
    for name in ["file", "shut", "sub", "."] {
        set(&at.join(name), "user.colour", name.as_bytes());
    }
    set(&at.join("file"), "user.empty", b"");
    set(&at.join("file"), "user.binary", &[0, 1, 255]);
    set(&at.join("file"), ACCESS, &acl(4321));
    set(&at.join("sub"), DEFAULT, &acl(4322));
}

/// The superuser's copy has owners, groups, set-id bits, attributes and ACLs, also of folders and links, and a second copy over it
/// has what has changed since.
#[test]
fn root_keeps_all() {
    if !is_root() {
        return;
    }
    let (_keep, folder) = folder();
    let (from, to) = (folder.join("from"), folder.join("to"));
    make_tree(&from);
    for (name, owner, group) in [("file", 1234, 2345), ("program", 65534, 7), ("sub", 5, 6)] {
        chown(from.join(name), Some(owner), Some(group)).unwrap();
    }
    // A new owner takes set-id bits away.
    set_mode(&from.join("program"), 0o6755);
    set_mode(&from.join("sub"), 0o2750);
    lchown(from.join("link"), Some(8), Some(9)).unwrap();
    set(&from.join("link"), "trusted.mark", b"link");
    set(&from.join("shut"), "trusted.mark", b"shut");
    // cap_net_raw, permitted.
    let capability = [0, 0, 0, 2, 0, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    set(&from.join("sub/x"), "security.capability", &capability);
    for update in [false, true] {
        let landed = copy_all(&from, &to, update);
        assert_eq!(landed.owners_not_kept, 0);
        assert_eq!((landed.attributes_not_kept, landed.bits_not_kept), (0, 0));
        for name in [".", "file", "program", "shut", "sub", "sub/x", "link"] {
            let [a, b] =
                [&from, &to].map(|root| std::fs::symlink_metadata(root.join(name)).unwrap());
            assert_eq!((a.uid(), a.gid()), (b.uid(), b.gid()), "{name}");
            assert_eq!(a.permissions().mode(), b.permissions().mode(), "{name}");
            assert_eq!(a.mtime_nsec(), b.mtime_nsec(), "{name}");
            for attribute in [
                "user.colour",
                "user.empty",
                "user.binary",
                "trusted.mark",
                "security.capability",
                ACCESS,
                DEFAULT,
            ] {
                let [a, b] = [&from, &to].map(|root| get(&root.join(name), attribute));
                assert_eq!(a, b, "{name}: {attribute}");
            }
        }
        // For the second copy: contents, size and time are as they were.
        chown(from.join("shut"), Some(77), Some(78)).unwrap();
        set(&from.join("file"), "user.colour", b"other");
    }
}

/// A file that another user has put where the copy is to be gets no rights: one under the final name is replaced, however much it looks like
/// the source's, and one under the temporary name stays without.
#[test]
fn files_of_others_get_no_rights() {
    if !is_root() {
        return;
    }
    let (_keep, folder) = folder();
    let (from, to) = (folder.join("from"), folder.join("to"));
    for root in [&from, &to] {
        std::fs::create_dir(root).unwrap();
    }
    std::fs::write(from.join("program"), "good").unwrap();
    chown(from.join("program"), Some(0), Some(0)).unwrap();
    set_mode(&from.join("program"), 0o4755);
    let time = std::fs::metadata(from.join("program")).unwrap();
    let plant = |at: &Path| {
        std::fs::write(at, "evil").unwrap();
        set_mode(at, 0o755);
        set_times(at, time.mtime(), time.mtime_nsec() as u32);
        chown(at, Some(65534), Some(65534)).unwrap();
    };
    let seen = |at: &Path| {
        let stat = std::fs::metadata(at).unwrap();
        (stat.uid(), stat.mode() & 0o7777, std::fs::read(at).unwrap())
    };
    plant(&to.join("program"));
    let landed = copy_all(&from, &to, true);
    assert_eq!((landed.replaced_files, landed.unchanged_files), (1, 0));
    assert_eq!(seen(&to.join("program")), (0, 0o4755, b"good".to_vec()));
    // Of one file the temporary name is beside it.
    let (from, to) = (from.join("program"), folder.join("program"));
    let scan = Scan::read_keeping(&from, ALL).unwrap();
    let source = FileSource::open_tree(&from, &scan, 0).unwrap();
    let parts = [Part::whole(0, scan.manifest)];
    let sink = TreeSink::create(&to, &parts, ID, false).unwrap();
    pump(source.layout(), &source, &sink);
    let staged = folder.join(format!(".program.ropewalk-{ID}"));
    std::fs::remove_file(&staged).unwrap();
    plant(&staged);
    // Whether the end notices that is another question.
    let _ = sink.commit();
    if to.exists() {
        assert_eq!(seen(&to).1 & 0o7000, 0);
    }
}

/// Another user's copy has the attributes and none of the owners, which is counted; a file system without attributes has none.
#[test]
fn what_is_not_permitted_is_counted() {
    if !is_root() {
        return;
    }
    let (_keep, folder) = folder();
    let (from, to) = (folder.join("from"), folder.join("to"));
    make_tree(&from);
    set_mode(&from.join("shut"), 0o444);
    set_mode(&from.join("file"), 0o644);
    for path in [&folder, &from, &from.join("sub")] {
        set_mode(path, 0o777);
    }
    let landed = sys::as_nobody(|| copy_all(&from, &to, false));
    assert_eq!((landed.owners_not_kept, landed.bits_not_kept), (7, 1));
    assert_eq!(landed.attributes_not_kept, 0);
    assert_eq!(get(&to.join("file"), "user.binary"), Some(vec![0, 1, 255]));
    assert_eq!(
        to.join("program").metadata().unwrap().mode() & 0o7777,
        0o755
    );
    // A folder of another user stays as it is.
    let sub = to.join("sub");
    chown(&sub, Some(0), Some(0)).unwrap();
    set_times(&sub, 77, 0);
    let landed = sys::as_nobody(|| copy_all(&from, &to, true));
    let stat = sub.metadata().unwrap();
    assert_eq!((stat.uid(), stat.mtime()), (0, 77));
    assert!(landed.owners_not_kept > 0);
    sys::on_small_disk(1 << 20, |disk| {
        let landed = copy_all(&from, &disk.join("to"), false);
        assert_eq!(landed.owners_not_kept, 0);
        let has = get(&disk.join("to/file"), "user.colour").is_some();
        assert_eq!(landed.attributes_not_kept > 0, !has);
    });
}

/// A name that the receiver knows goes before the number; a name that it does not know leaves the number.
#[test]
fn names_go_before_numbers() {
    if !is_root() {
        return;
    }
    let (_keep, folder) = folder();
    std::fs::write(folder.join("from"), "x").unwrap();
    for (user, uid, gid) in [("nobody", 65534, 4000), ("no such user", 3000, 4000)] {
        let scan = Scan::read_keeping(&folder.join("from"), ALL).unwrap();
        let mut manifest = Arc::unwrap_or_clone(scan.manifest);
        manifest.entries[0].kept.owner = Some(Arc::new(Owner {
            uid: 3000,
            gid: 4000,
            user: user.into(),
            group: Vec::new(),
        }));
        let to = folder.join(user);
        let sink = TreeSink::create(&to, &[Part::whole(0, Arc::new(manifest))], ID, false).unwrap();
        sink.write_at(0, b"x").unwrap();
        sink.commit().unwrap();
        let found = to.metadata().unwrap();
        assert_eq!((found.uid(), found.gid()), (uid, gid));
    }
}

/// An ACL, an attribute and a capability that a file of the source has not any more are not any more those of its copy: nobody keeps a
/// right that was taken away.
#[test]
fn what_was_taken_away_is_taken_away() {
    let (_keep, folder) = folder();
    let (from, to) = (folder.join("from"), folder.join("to"));
    std::fs::create_dir(&from).unwrap();
    let file = from.join("file");
    std::fs::write(&file, "secret").unwrap();
    set_mode(&file, 0o640);
    set(&file, ACCESS, &acl(1234));
    set(&file, "user.old", b"x");
    set(&file, "user.kept", b"y");
    copy_all(&from, &to, false);
    let there = to.join("file");
    assert_eq!(get(&there, ACCESS), get(&file, ACCESS));
    for name in [ACCESS, "user.old"] {
        rustix::fs::removexattr(&file, name).unwrap();
    }
    set_mode(&file, 0o640);
    if is_root() {
        // Of the superuser's attributes other sources see nothing: they stay.
        set(&there, "trusted.mark", b"z");
    }
    copy_all(&from, &to, true);
    assert_eq!((get(&there, ACCESS), get(&there, "user.old")), (None, None));
    assert_eq!(get(&there, "user.kept"), Some(b"y".to_vec()));
    assert_eq!(there.metadata().unwrap().mode() & 0o7777, 0o640);
    assert_eq!(get(&there, "trusted.mark").is_some(), is_root());
}

/// A link that leads where it led has its time and owner set again, as a file that stays has.
#[test]
fn links_that_stay_are_as_at_the_source() {
    let (_keep, folder) = folder();
    let (from, to) = (folder.join("from"), folder.join("to"));
    std::fs::create_dir(&from).unwrap();
    std::os::unix::fs::symlink("target", from.join("link")).unwrap();
    copy_all(&from, &to, false);
    let link = |root: &Path| {
        let stat = root.join("link").symlink_metadata().unwrap();
        (stat.mtime(), stat.uid(), stat.gid(), stat.ino())
    };
    let before = link(&to);
    set_times(&from.join("link"), 1_000_000_000, 0);
    if is_root() {
        std::os::unix::fs::lchown(from.join("link"), Some(1234), Some(1235)).unwrap();
    }
    copy_all(&from, &to, true);
    let (after, source) = (link(&to), link(&from));
    assert_eq!((after.0, after.1, after.2), (source.0, source.1, source.2));
    assert_eq!(after.3, before.3, "it is not made again");
}

/// Folders that are there get what the source's folders have, also where nothing else is to be done; of a mirror DEST itself, too.
#[test]
fn folders_that_were_there_are_as_at_the_source() {
    let (_keep, folder) = folder();
    let (from, to) = (folder.join("from"), folder.join("to"));
    std::fs::create_dir_all(from.join("d/e")).unwrap();
    std::fs::write(from.join("d/e/file"), "same").unwrap();
    copy_all(&from, &to, false);
    let folders = ["", "d", "d/e"];
    let seen = |root: &Path| {
        folders.map(|path| {
            let path = root.join(path);
            let stat = path.metadata().unwrap();
            let owner = (stat.uid(), stat.gid(), stat.mode() & 0o7777);
            (
                owner,
                stat.mtime(),
                get(&path, ACCESS),
                get(&path, "user.old"),
            )
        })
    };
    assert_eq!(seen(&to), seen(&from));
    set(&from.join("d"), ACCESS, &acl(1234));
    set(&to.join("d/e"), "user.old", b"x");
    set(&to.join("d/e"), ACCESS, &acl(99));
    for (path, mode) in [("", 0o751), ("d", 0o2770), ("d/e", 0o555)] {
        if is_root() {
            chown(from.join(path), Some(1234), Some(1235)).unwrap();
        }
        set_mode(&from.join(path), mode);
        set_times(&from.join(path), 1_000_000_000, 5);
    }
    let before = seen(&to)[0].clone();
    copy_all(&from, &to, true);
    assert_eq!(seen(&to)[0], before);
    assert_eq!(seen(&to)[1..], seen(&from)[1..]);
    let landed = mirror_all(&from, &to);
    assert_eq!(seen(&to), seen(&from));
    assert_eq!((landed.owners_not_kept, landed.attributes_not_kept), (0, 0));
    // Something is put into each of them.
    set_mode(&from.join("d/e"), 0o755);
    for path in folders {
        std::fs::write(from.join(path).join("new"), "new").unwrap();
    }
    set_mode(&from.join("d/e"), 0o555);
    mirror_all(&from, &to);
    assert_eq!(seen(&to), seen(&from));
}

/// New files get no ACL from a folder at the destination where those of the source have none.
#[test]
fn acls_are_not_inherited() {
    let (_keep, folder) = folder();
    let (from, to) = (folder.join("from"), folder.join("to"));
    std::fs::create_dir(&from).unwrap();
    std::fs::create_dir(&to).unwrap();
    std::fs::create_dir(from.join("sub")).unwrap();
    std::fs::write(from.join("sub/file"), "x").unwrap();
    set(&to, DEFAULT, &acl(4323));
    copy_all(&from, &to, false);
    for (name, attribute) in [("sub", ACCESS), ("sub", DEFAULT), ("sub/file", ACCESS)] {
        assert_eq!(get(&to.join(name), attribute), None, "{name}: {attribute}");
    }
    assert!(get(&to, DEFAULT).is_some());
}

/// A manifest of a peer names no attribute that is not copied: those of the system belong to the receiver.
#[test]
fn attributes_of_the_system_are_refused() {
    let (_keep, folder) = folder();
    std::fs::write(folder.join("f"), "x").unwrap();
    set(&folder.join("f"), "user.x", b"value");
    let scan = Scan::read_keeping(&folder.join("f"), ALL).unwrap();
    for name in ["security.selinux", "system.other", "trusted.", "user.x\0"] {
        let mut manifest = (*scan.manifest).clone();
        manifest.entries[0].kept.attributes[0].name = name.into();
        let refused = Manifest::decode(&manifest.encode());
        assert!(matches!(refused, Err(ManifestError::Value(_))), "{name}");
    }
}
