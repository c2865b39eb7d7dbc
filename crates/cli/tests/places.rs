//! Nodes that see one file system without saying so, and files that are not what their rows say.

mod common;

use std::path::Path;

use common::{Place, assert_same_tree, bytes, make_tree};

fn count(folder: &Path) -> usize {
    std::fs::read_dir(folder).unwrap().count()
}

/// Rows of one file in two halves, each with its reader.
fn halves(place: &Place, hosts: [&str; 3], paths: [&str; 2], end: &str) -> String {
    let [writer, one, two] = hosts;
    let [first, second] = paths.map(|path| place.text(path));
    let data = place.text("data");
    format!(
        "writer {writer} {data} 0 0-7999999\n\
         reader {one} {first} 0 0-3999999{end}\n\
         reader {two} {second} 4000000 4000000-7999999{end}\n"
    )
}

/// Readers of parts of one path on one file system, without `dest=`: refused from the rows where they name one host, by the
/// agents where they do not; nothing is written. With `dest=` they write one file.
#[test]
fn halves_of_one_file_are_refused_or_shared() {
    let place = Place::new();
    place.make_token();
    std::fs::write(place.path("data"), bytes(8_000_000, 3)).unwrap();
    std::fs::create_dir(place.path("dst")).unwrap();
    std::os::unix::fs::symlink("dst", place.path("link")).unwrap();
    let agents = [0; 3].map(|_| place.agent(place.dir.path()));
    let at = [0, 1, 2].map(|n: usize| format!("127.0.0.1:{}", agents[n].port));
    let at = [at[0].as_str(), &at[1], &at[2]];
    let spec = |text: String| std::fs::write(place.path("spec"), text).unwrap();

    spec(halves(&place, at, ["dst/copy1", "dst/copy1"], ""));
    place
        .run(&["transfer", "spec"])
        .assert_status(4)
        .assert_says("different ranges of one file")
        .assert_says("say dest=NAME");
    // Figure 2 names hosts that do not share a disk; here they do.
    let hosts = ["node1:1", "node5:1", "node7:1"];
    for paths in [["dst/copy1", "dst/copy1"], ["dst/copy1", "link/copy1"]] {
        spec(halves(&place, hosts, paths, ""));
        place
            .run(&["transfer", "--start", "local", "spec"])
            .assert_status(4)
            .assert_says("node5:")
            .assert_says("node7:")
            .assert_says("are one file")
            .assert_says("say dest=NAME");
        assert_eq!(count(&place.path("dst")), 0);
    }
    spec(halves(&place, hosts, ["dst/one", "dst/two"], ""));
    place
        .run(&["transfer", "-q", "--start", "local", "spec"])
        .assert_status(0);
    assert_eq!(count(&place.path("dst")), 2);
    spec(halves(&place, at, ["dst/copy1", "dst/copy1"], " dest=d"));
    place.run(&["transfer", "-q", "spec"]).assert_status(0);
    let copy = std::fs::read(place.path("dst/copy1")).unwrap();
    assert!(copy == bytes(8_000_000, 3));
    assert_eq!(count(&place.path("dst")), 3, "no mark is left");
}

/// Two names of one place for two copies: refused before anything moves, with the option that makes them one; for trees and
/// files, whether they are there or not.
#[test]
fn copies_in_one_place_are_refused() {
    let place = Place::new();
    place.make_token();
    make_tree(&place.path("set"));
    std::fs::write(place.path("file"), bytes(1 << 20, 4)).unwrap();
    std::fs::create_dir_all(place.path("dst/old")).unwrap();
    std::fs::write(place.path("dst/oldfile"), "old").unwrap();
    std::os::unix::fs::symlink("dst", place.path("link")).unwrap();
    let agents = [0; 2].map(|_| place.agent(place.dir.path()));
    for (source, name) in [
        ("set", "rep6"),
        ("set", "old"),
        ("file", "rep6"),
        ("file", "oldfile"),
    ] {
        let near = [format!("dst/{name}"), format!("link/{name}")];
        let far = [0, 1].map(|n: usize| agents[n].at(place.path("dst").join(name)));
        for [one, two] in [&near, &far] {
            place
                .run(&["copy", source, one, "--also-to", two])
                .assert_status(4)
                .assert_says("are one place")
                .assert_says("--destinations shared");
        }
    }
    assert_eq!(count(&place.path("dst")), 2, "nothing is left");
    assert_eq!(count(&place.path("dst/old")), 0);
    let far = [0, 1].map(|n: usize| agents[n].at(place.text("dst/rep6")));
    place
        .run(&[
            "copy",
            "-q",
            "--destinations",
            "shared",
            "set",
            &far[0],
            "--also-to",
            &far[1],
        ])
        .assert_status(0);
    assert_same_tree(&place.path("set"), &place.path("dst/rep6"));
}

/// One reader, one file, two names that a link makes one: refused instead of renamed twice.
#[test]
fn one_file_by_two_names_is_refused() {
    let place = Place::new();
    std::fs::create_dir(place.path("d")).unwrap();
    std::os::unix::fs::symlink(".", place.path("d/self")).unwrap();
    std::fs::write(place.path("data"), bytes(2000, 1)).unwrap();
    let dir = place.text("");
    let spec = format!(
        "writer a:1 {dir}data 0 0-1999\n\
         reader b:1 {dir}d/c4 0 0-999\n\
         reader b:1 {dir}d/self/c4 1000 1000-1999\n"
    );
    std::fs::write(place.path("spec"), spec).unwrap();
    place
        .run(&["transfer", "--start", "local", "spec"])
        .assert_status(4)
        .assert_says("two paths of this node lead to one file");
    assert_eq!(count(&place.path("d")), 1);
}

/// Two files that are said to hold the same bytes at different offsets: refused with both rows where they do not, used
/// where they do, as windows of one set of data are.
#[test]
fn overlapping_rows_of_different_files_must_agree() {
    let place = Place::new();
    let data = bytes(3_000_000, 9);
    std::fs::write(place.path("head"), &data[..2_000_000]).unwrap();
    let dir = place.text("");
    let spec = format!(
        "writer a:1 {dir}head 0 0-1999999\n\
         writer b:1 {dir}tail 0 1000000-2999999\n\
         reader c:1 {dir}out 0 0-2999999\n"
    );
    std::fs::write(place.path("spec"), spec).unwrap();
    let run = || place.run(&["transfer", "--start", "local", "spec"]);
    // A slip: the offset of the second row is that of another layout of the file.
    std::fs::write(place.path("tail"), &data[..2_000_000]).unwrap();
    run()
        .assert_status(4)
        .assert_says(&format!("`writer a {dir}head 0 0-1999999`"))
        .assert_says(&format!("`writer b {dir}tail 0 1000000-2999999`"))
        .assert_says("bytes 1000000-1065535");
    assert!(!place.path("out").exists());
    std::fs::write(place.path("tail"), &data[1_000_000..]).unwrap();
    run().assert_status(0);
    assert!(std::fs::read(place.path("out")).unwrap() == data);
}

/// All below a folder, but for the agents' own: name, inode, links, contents.
fn state(folder: &Path) -> Vec<(String, u64, u64, Vec<u8>)> {
    use std::os::unix::fs::MetadataExt as _;

    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let about = std::fs::symlink_metadata(&path).unwrap();
        let contents = about.is_file().then(|| std::fs::read(&path).unwrap());
        let name = path.to_str().unwrap().to_owned();
        found.push((
            name,
            about.ino(),
            about.nlink(),
            contents.unwrap_or_default(),
        ));
        if about.is_dir() {
            found.extend(state(&path));
        }
    }
    found.sort_unstable();
    found
}

/// A copy does not take the place of its own source, nor lie in it, where another node names that: as on a file system that both hosts see. Nothing
/// is changed, and no mark is left.
#[test]
fn a_source_that_another_node_names_is_not_copied_into_itself() {
    let place = Place::new();
    place.make_token();
    let agent = place.agent(place.dir.path());
    std::fs::create_dir_all(place.path("here/k/sub")).unwrap();
    std::fs::write(place.path("here/k/a"), bytes(3000, 1)).unwrap();
    std::fs::hard_link(place.path("here/k/a"), place.path("here/k/b")).unwrap();
    std::fs::write(place.path("here/file"), bytes(100, 2)).unwrap();
    let there = |name: &str| agent.at(place.path(&format!("here/{name}")));
    let here = |name: &str| format!("here/{name}");
    let before = state(&place.path("here"));
    let (whole, inside) = (
        "would take the place of its own source",
        "would lie in its own source",
    );
    for (sources, destination, why) in [
        (vec![there("k")], here("k"), whole),
        (vec![here("k")], there("k"), whole),
        (vec![there("k")], here("k/sub/inner"), inside),
        (vec![there("k")], here("k/new"), inside),
        (vec![there("file")], here("file"), whole),
        (vec![there("k"), there("file")], here(""), whole),
    ] {
        let arguments = [vec!["copy".to_owned()], sources, vec![destination]].concat();
        place.run(&arguments).assert_status(4).assert_says(why);
        assert_eq!(state(&place.path("here")), before, "{arguments:?}");
    }
    for (source, destination) in [(there("k"), "here".into()), (here("k/sub"), there("k"))] {
        place
            .run(&["copy", "--delete", &source, &destination])
            .assert_status(4)
            .assert_says("would, with --delete, hold its own source");
        assert_eq!(state(&place.path("here")), before);
    }
    // Beside it all is well.
    place
        .run(&["copy", &there("k"), &here("k2")])
        .assert_status(0);
    assert_same_tree(&place.path("here/k"), &place.path("here/k2"));
    place
        .run(&["copy", &there("k/a"), &there("k/b"), &here("k/sub/")])
        .assert_status(0);
    assert_eq!(count(&place.path("here/k/sub")), 2);
}

/// A removal does not remove a source of another node that the folders above it do not show, as behind a mount; here it lies deeper than they are
/// reported. It stays, and is named.
#[test]
fn a_source_of_another_node_is_not_removed() {
    let place = Place::new();
    place.make_token();
    let agent = place.agent(place.dir.path());
    let deep = format!("{}proj", "d/".repeat(70));
    let source = place.path(&format!("export/{deep}"));
    std::fs::create_dir_all(&source).unwrap();
    std::fs::write(source.join("precious"), bytes(3000, 1)).unwrap();
    std::fs::write(place.path("export/old"), "o").unwrap();
    let before = state(&source);
    // The destination has nothing of what the source has, and is meant all the same.
    let mirrored = format!("{}/", agent.at(&source));
    place
        .run(&["copy", "--delete", &mirrored, "export"])
        .assert_status(3)
        .assert_says("by its inode number it may be a source of this copy");
    assert_eq!(state(&source), before);
    assert!(place.path("export/precious").exists() && !place.path("export/old").exists());
}

/// The same where the copy has that folder, too: what is in it alone is extra there.
#[test]
fn a_source_of_another_node_that_the_copy_has_is_not_emptied() {
    let place = Place::new();
    place.make_token();
    let agent = place.agent(place.dir.path());
    let deep = format!("{}proj", "d/".repeat(70));
    let source = place.path(&format!("export/{deep}"));
    std::fs::create_dir_all(source.join(&deep)).unwrap();
    std::fs::write(source.join("precious"), bytes(3000, 1)).unwrap();
    std::fs::write(place.path("export/old"), "o").unwrap();
    place
        .run(&["copy", "--delete", &agent.at(&source), "export"])
        .assert_status(3)
        .assert_says("its folder, or one above, has the inode number of a source of this copy");
    assert_eq!(
        std::fs::read(source.join("precious")).unwrap(),
        bytes(3000, 1)
    );
    assert!(place.path("export/precious").exists() && !place.path("export/old").exists());
}
