use std::ffi::{CString, OsString};
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::symlink;

use proptest::prelude::*;

use super::*;
use crate::roots::Access;

/// What the system's own function says of a component, in its locale of single bytes.
fn fnmatch(pattern: &[u8], name: &[u8]) -> bool {
    let text = |bytes: &[u8]| CString::new(bytes).unwrap();
    sys::fnmatch(&text(pattern), &text(name))
}

/// The parts with each `?` before the stars beside it, which means the same: the GNU C library takes a dot for a leading
/// one where `*?` precedes it.
fn stars_last(parts: &[String]) -> String {
    let is_run = |part: &String| part == "*" || part == "?";
    let mut out = parts.to_vec();
    for run in out.chunk_by_mut(|a, b| is_run(a) && is_run(b)) {
        run.sort_by_key(|part| part == "*");
    }
    out.concat()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    /// Components match as `fnmatch` has it. Odd escapes at ends and brackets that are never closed are left to the
    /// tests below: systems differ.
    #[test]
    fn components_match_as_in_shells(
        parts in prop::collection::vec("[abc.*?-]|\\\\[ab*?.]|\\[[!^]?\\]?[a-c][a-c-]?[a-c]?\\]|\\[[a-c]-[a-c]\\]|\\[\\[:alpha:\\]0-9\\]", 0..6),
        name in "[abc.*?1-]{1,6}",
    ) {
        let pattern = parts.concat();
        let ours = matches(&tokens(pattern.as_bytes()), name.as_bytes());
        let theirs = fnmatch(stars_last(&parts).as_bytes(), name.as_bytes());
        prop_assert_eq!(ours, theirs, "{} {}", pattern, name);
    }
}

/// Letters of UTF-8 and bytes that are none count as one each; brackets that are not closed are letters.
#[test]
fn letters_are_characters_or_bytes() {
    for (pattern, name, is_match) in [
        (&b"?"[..], "é".as_bytes(), true),
        (b"??", "é".as_bytes(), false),
        (b"?", b"\xff", true),
        (b"x?y", b"x\xc3y", true),
        ("[à-ü]".as_bytes(), "é".as_bytes(), true),
        ("[!à-ü]".as_bytes(), "é".as_bytes(), false),
        (b"a\xff*", b"a\xffb", true),
        (b"[ab", b"[ab", true),
        (b"[ab", b"a", false),
        (b"[]", b"[]", true),
        (b"[]x]", b"]", true),
        (b"a\\", b"a\\", true),
        (b"*", b".a", false),
        (b".*", b".a", true),
        (b"[.]a", b".a", false),
        (b"\\.a*", b".ab", true),
        (
            b"*a*a*a*a*a*b",
            b"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
            false,
        ),
    ] {
        let shown = (
            pattern.escape_ascii().to_string(),
            name.escape_ascii().to_string(),
        );
        assert_eq!(matches(&tokens(pattern), name), is_match, "{shown:?}");
    }
}

fn tree(paths: &[&[u8]]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for path in paths {
        let path = dir.path().join(OsString::from_vec(path.to_vec()));
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, "x").unwrap();
    }
    dir
}

/// The matches below a folder, without it.
fn found(dir: &Path, pattern: &[u8], roots: Option<&Roots>) -> Result<Vec<Vec<u8>>, StoreError> {
    let prefix = [dir.as_os_str().as_bytes(), b"/"].concat();
    let whole = [prefix.as_slice(), pattern].concat();
    let below = |path: Vec<u8>| path.strip_prefix(prefix.as_slice()).unwrap().to_vec();
    Ok(expand(&whole, roots)?.into_iter().map(below).collect())
}

/// Sorted, through folders and links to folders, with names of any bytes; slashes at the end ask for folders.
#[test]
fn patterns_are_expanded() {
    let dir = tree(&[
        b"b.h5",
        b"a.h5",
        b".h.h5",
        b"c.txt",
        b"r1/x.h5",
        b"r2/x.h5",
        b"r2/y",
        b"r3",
        b"odd\xff\nname",
        b"st*r",
        b"sttr",
    ]);
    symlink(dir.path().join("r1"), dir.path().join("r4")).unwrap();
    symlink("nothing", dir.path().join("r5")).unwrap();
    symlink("r6", dir.path().join("r6")).unwrap();
    let texts = |pattern: &[u8]| {
        let found = found(dir.path(), pattern, None).unwrap();
        found
            .iter()
            .map(|path| path.escape_ascii().to_string())
            .collect::<Vec<_>>()
    };
    assert_eq!(texts(b"*.h5"), ["a.h5", "b.h5"]);
    assert_eq!(texts(b".*.h5"), [".h.h5"]);
    assert_eq!(texts(b"*/x.h5"), ["r1/x.h5", "r2/x.h5", "r4/x.h5"]);
    assert_eq!(texts(b"r?/[!x]*"), ["r2/y"]);
    assert_eq!(texts(b"r*/"), ["r1", "r2", "r4"]);
    assert_eq!(texts(b"r[56]"), ["r5", "r6"]);
    assert_eq!(texts(b"odd*"), ["odd\\xff\\nname"]);
    assert_eq!(texts(b"r2//../[ab].h5"), ["r2/../a.h5", "r2/../b.h5"]);
    // What is there under the very name is meant; a star that is hidden is a star.
    assert_eq!(texts(b"st*r"), ["st*r"]);
    assert_eq!(texts(b"s[t]*r"), ["st*r", "sttr"]);
    assert_eq!(texts(b"s?\\*r"), ["st*r"]);
    for pattern in [&b"*.none"[..], b"c.txt/*", b"none/*", b"a.h5*/"] {
        let error = found(dir.path(), pattern, None).unwrap_err();
        assert!(matches!(error, StoreError::NoMatch { .. }), "{error}");
        assert!(error.to_string().contains("no file matches"), "{error}");
    }
}

/// Roots bound what is listed, also through links; a root that is a file is itself only.
#[test]
fn roots_bound_what_is_listed() {
    let dir = tree(&[b"in/a", b"in/sub/b", b"out/secret", b"file*"]);
    symlink(dir.path().join("out"), dir.path().join("in/way")).unwrap();
    let roots = Roots::new(vec![
        (dir.path().join("in"), Access::ReadOnly),
        (dir.path().join("file*"), Access::ReadOnly),
    ])
    .unwrap();
    let texts = |pattern: &[u8]| {
        found(dir.path(), pattern, Some(&roots)).map(|found| {
            found
                .iter()
                .map(|path| path.escape_ascii().to_string())
                .collect::<Vec<_>>()
        })
    };
    assert_eq!(texts(b"in/*").unwrap(), ["in/a", "in/sub", "in/way"]);
    assert_eq!(texts(b"in/s*/b").unwrap(), ["in/sub/b"]);
    assert_eq!(texts(b"file*").unwrap(), ["file*"]);
    for pattern in [
        &b"out/*"[..],
        b"*",
        b"in/way/*",
        b"in/*/s*",
        b"in/*/secret",
        b"in/../out/*",
        b"nowhere/*",
    ] {
        let error = texts(pattern).unwrap_err();
        assert!(
            matches!(error, StoreError::OutsideRoot { .. }),
            "{}: {error}",
            pattern.escape_ascii()
        );
    }
    assert!(matches!(
        texts(b"in/z*").unwrap_err(),
        StoreError::NoMatch { .. }
    ));
}

/// A home folder stands before the pattern and is taken as it is named.
#[test]
fn homes_are_looked_into() {
    let home = sys::names::home_of(b"root").unwrap();
    assert_eq!(expand(b"~root", None), Ok(vec![home.clone()]));
    assert_eq!(expand(b"~root/none", None), Ok(vec![join(&home, b"none")]));
    let error = expand(b"~no-such-user/*", None).unwrap_err();
    assert!(matches!(error, StoreError::NoUser { .. }), "{error}");
}

/// Folders that hold too many are refused with the number.
#[test]
fn matches_are_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let first = dir.path().join("f");
    std::fs::create_dir(dir.path().join("d")).unwrap();
    std::fs::write(&first, "").unwrap();
    // Few folders with few files multiply: links to one folder.
    for number in 0..300 {
        std::fs::hard_link(&first, dir.path().join(format!("d/{number}"))).unwrap();
        symlink("d", dir.path().join(format!("l{number}"))).unwrap();
    }
    let error = found(dir.path(), b"l*/*", None).unwrap_err();
    assert!(
        matches!(error, StoreError::TooManyMatches { .. }),
        "{error}"
    );
    assert_eq!(found(dir.path(), b"l1/*", None).unwrap().len(), 300);
}

/// With roots, a pattern tells nothing of what lies outside them: users, homes, folders and targets of links.
#[test]
fn nothing_outside_roots_is_told() {
    let keep = tempfile::tempdir().unwrap();
    let dir = keep.path().canonicalize().unwrap();
    for path in ["in/good/x", "out/x"] {
        let path = dir.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "").unwrap();
    }
    // Shells skip a link to nothing on the way, with roots or without.
    symlink("nowhere", dir.join("in/dead")).unwrap();
    symlink("/very/secret", dir.join("out/link")).unwrap();
    symlink(dir.join("out"), dir.join("in/away")).unwrap();
    let roots = Roots::new(vec![(dir.join("in/good"), Access::ReadOnly)]).unwrap();
    for pattern in ["~root/*", "~no-such-user/*", "~root"] {
        let error = expand(pattern.as_bytes(), Some(&roots)).unwrap_err();
        assert!(matches!(error, StoreError::OutsideRoot { .. }), "{error}");
    }
    let roots = Roots::new(vec![(dir.join("in"), Access::ReadOnly)]).unwrap();
    let error = roots.resolve_read(&dir.join("in/away/link")).unwrap_err();
    assert!(matches!(error, StoreError::OutsideRoot { .. }), "{error}");
    fs::remove_file(dir.join("in/away")).unwrap();
    for roots in [None, Some(&roots)] {
        let pattern = dir.join("in/*/x");
        let found = expand(pattern.as_os_str().as_bytes(), roots).unwrap();
        assert_eq!(found, [dir.join("in/good/x").as_os_str().as_bytes()]);
    }
    let long = [&b"/*/"[..], &[b'x'; PATH_LEN_MAX]].concat();
    assert!(expand(&long, Some(&roots)).is_err());
}

/// What another host says that a pattern matches is believed where it may be so.
#[test]
fn other_matches_than_the_pattern_s_are_noticed() {
    for (pattern, path) in [
        ("/data/*.h5", "/data/a.h5"),
        ("/data//run?/./x", "/data/run1/x"),
        ("*.txt", "a.txt"),
        ("~ann/run7/*.h5", "/home/ann/run7/b.h5"),
        ("~/[ab]", "/root/a"),
        ("/lit[e", "/lit[e"),
    ] {
        assert!(
            may_match(pattern.as_bytes(), path.as_bytes()),
            "{pattern} {path}"
        );
    }
    for (pattern, path) in [
        ("/data/*.h5", "/data/.ssh"),
        ("/data/*.h5", "/data/.a.h5"),
        ("/data/*.h5", "/other/a.h5"),
        ("/data/*.h5", "/data/x/a.h5"),
        ("/data/*.h5", "data/a.h5"),
        ("*.txt", "/etc/a.txt"),
        ("*", ".."),
        ("~ann/*.h5", "ann/b.h5"),
        ("~ann/*.h5", "/home/ann/.bashrc"),
        ("/a/*", "/a"),
    ] {
        assert!(
            !may_match(pattern.as_bytes(), path.as_bytes()),
            "{pattern} {path}"
        );
    }
}
