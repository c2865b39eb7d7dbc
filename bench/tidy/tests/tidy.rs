//! Rules of the tree that no compiler checks: which crate may depend on which, that each dependency is used, and where unsafe code may be.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// A member of the workspace.
struct Member {
    /// Name without `ropewalk-`.
    name: String,
    folder: PathBuf,
    /// Dependencies by section of the manifest.
    dependencies: BTreeMap<String, BTreeSet<String>>,
}

impl Member {
    fn section(&self, section: &str) -> impl Iterator<Item = &String> {
        self.dependencies.get(section).into_iter().flatten()
    }

    /// The crates of ours in a section.
    fn arrows(&self, section: &str) -> BTreeSet<String> {
        self.section(section).filter_map(|name| own(name)).collect()
    }

    /// Whether it is part of the product.
    fn is_product(&self) -> bool {
        self.folder.parent() == Some(&root().join("crates"))
    }
}

/// The short name of a crate of ours.
fn own(package: &str) -> Option<String> {
    match package.strip_prefix("ropewalk")? {
        "" => Some("ropewalk".into()),
        rest => Some(rest.strip_prefix('-')?.into()),
    }
}

fn root() -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    folder.canonicalize().unwrap()
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// All members, from the folders that the workspace names.
fn members() -> Vec<Member> {
    let root = root();
    let mut folders = vec![root.join("lab")];
    for shelf in ["crates", "bench"] {
        let entries = fs::read_dir(root.join(shelf)).unwrap();
        folders.extend(entries.map(|entry| entry.unwrap().path()));
    }
    folders.retain(|folder| folder.join("Cargo.toml").is_file());
    let mut members: Vec<Member> = folders.into_iter().map(member).collect();
    members.sort_by(|a, b| a.name.cmp(&b.name));
    assert!(members.len() > 20, "the workspace has moved");
    members
}

fn member(folder: PathBuf) -> Member {
    let text = read(&folder.join("Cargo.toml"));
    let mut dependencies: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut section = "";
    let mut name = "";
    for line in text.lines() {
        if let Some(head) = line.strip_prefix('[') {
            section = head.trim_end_matches(']');
        } else if section == "package" {
            if let Some(value) = line.strip_prefix("name = ") {
                name = value.trim_matches('"');
            }
        } else if section.ends_with("dependencies")
            && let Some((key, _)) = line.split_once(['.', ' ', '='])
        {
            let of = dependencies.entry(section.to_owned()).or_default();
            of.insert(key.to_owned());
        }
    }
    let name = own(name).unwrap_or_else(|| panic!("{}: {name}", folder.display()));
    Member {
        name,
        folder,
        dependencies,
    }
}

/// Rust files below a folder, where it is there.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let Ok(entries) = fs::read_dir(folder) else {
        return found;
    };
    for entry in entries {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|end| end == "rs") {
            found.push(path);
        }
    }
    found
}

/// The table of crates in ARCHITECTURE.md: each with those it may use.
fn table() -> BTreeMap<String, BTreeSet<String>> {
    let text = read(&root().join("ARCHITECTURE.md"));
    let (_, after) = text.split_once("\n## Crates\n").expect("a section Crates");
    let section = after.split("\n## ").next().unwrap();
    let mut table = BTreeMap::new();
    for line in section.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let name = |text: &str| text.trim_matches('`').to_owned();
        let used = cells[3].split(',').map(|text| name(text.trim()));
        let used = used.filter(|text| !text.is_empty()).collect();
        assert!(
            table.insert(name(cells[1]), used).is_none(),
            "twice: {line}"
        );
    }
    table
}

/// Each crate uses the crates that ARCHITECTURE.md gives it, no others and no fewer, and the arrows have no circle.
/// Rows of the README's table of figures are rows of the page that is made from runs: none is typed.
#[test]
fn figures_of_the_readme_are_measured() {
    let readme = read(&root().join("README.md"));
    let (_, measured) = readme
        .split_once("## Measured")
        .expect("README has figures");
    let section = measured.split("\n## ").next().unwrap_or_default();
    let rows: Vec<&str> = section
        .lines()
        .filter(|line| line.starts_with("| "))
        .skip(2)
        .collect();
    assert!(rows.len() >= 5, "the table has moved");
    let page = read(&root().join("BENCHMARKS.md"));
    for row in rows {
        assert!(page.contains(row), "not a row of BENCHMARKS.md: {row}");
    }
}

#[test]
fn arrows_are_those_of_the_architecture() {
    let table = table();
    let mut used = BTreeMap::new();
    for member in members() {
        let mut arrows = member.arrows("dependencies");
        if !member.folder.join("src").exists() {
            // Example programs and tests alone.
            arrows.extend(member.arrows("dev-dependencies"));
        }
        used.insert(member.name.clone(), arrows);
    }
    for (name, arrows) in &used {
        assert_eq!(
            Some(arrows),
            table.get(name),
            "{name}: Cargo.toml (left) and the table of crates in ARCHITECTURE.md (right) differ"
        );
    }
    assert_eq!(used.len(), table.len(), "a crate of the table is gone");

    let mut left = used;
    while let Some(free) = left
        .iter()
        .find(|(_, arrows)| arrows.iter().all(|to| !left.contains_key(to)))
        .map(|(name, _)| name.clone())
    {
        left.remove(&free);
    }
    assert!(left.is_empty(), "a circle: {left:?}");
}

/// The product uses nothing of `bench/`; `lab/` in tests only.
#[test]
fn the_product_stands_alone() {
    let members = members();
    let product: BTreeSet<&String> = members
        .iter()
        .filter(|member| member.is_product())
        .map(|member| &member.name)
        .collect();
    for member in members.iter().filter(|member| member.is_product()) {
        for section in ["dependencies", "build-dependencies"] {
            for to in member.arrows(section) {
                assert!(product.contains(&to), "{} uses {to}", member.name);
            }
        }
        for to in member.arrows("dev-dependencies") {
            assert!(
                product.contains(&to) || to == "lab",
                "tests of {} use {to}",
                member.name
            );
        }
    }
}

/// Each dependency of a manifest is named in the code that it is for.
#[test]
fn dependencies_are_used() {
    let mut unused = Vec::new();
    for member in members() {
        let of = |folders: &[&str]| -> String {
            let files = folders
                .iter()
                .flat_map(|folder| sources(&member.folder.join(folder)));
            files.map(|path| read(&path)).collect()
        };
        for (section, code) in [
            ("dependencies", of(&["src"])),
            (
                "dev-dependencies",
                of(&["src", "tests", "examples", "benches"]),
            ),
            (
                "build-dependencies",
                fs::read_to_string(member.folder.join("build.rs")).unwrap_or_default(),
            ),
        ] {
            for dependency in member.section(section) {
                let name = dependency.replace('-', "_");
                if !names(&code, &name) {
                    unused.push(format!("{}: {dependency} in [{section}]", member.name));
                }
            }
        }
    }
    assert!(unused.is_empty(), "not used: {unused:#?}");
}

/// Whether code has the name as a word that a path follows or that is imported.
fn names(code: &str, name: &str) -> bool {
    let is_word = |letter: char| letter.is_alphanumeric() || letter == '_';
    code.match_indices(name).any(|(at, _)| {
        let before = code[..at].chars().next_back();
        let after = &code[at + name.len()..];
        !before.is_some_and(is_word) && ["::", ";", " as "].iter().any(|end| after.starts_with(end))
    })
}

/// Crates without unsafe code forbid it.
#[test]
fn unsafe_code_is_forbidden_where_there_is_none() {
    let mut open = Vec::new();
    for member in members() {
        let files = sources(&member.folder.join("src"));
        let has_unsafe = files.iter().any(|path| {
            let text = read(path);
            let code = text
                .lines()
                .filter(|line| !line.trim_start().starts_with("//"));
            code.flat_map(|line| line.split(|c: char| !c.is_alphanumeric() && c != '_'))
                .any(|word| word == "unsafe")
        });
        let root = ["lib.rs", "main.rs"]
            .map(|name| member.folder.join("src").join(name))
            .into_iter()
            .find(|path| path.exists());
        let Some(root) = root.filter(|_| !has_unsafe) else {
            continue;
        };
        if !read(&root).contains("#![forbid(unsafe_code)]") {
            open.push(member.name);
        }
    }
    assert!(open.is_empty(), "add #![forbid(unsafe_code)] to {open:?}");
}

/// The pure crates ban the same calls.
#[test]
fn pure_crates_ban_the_same_calls() {
    let lists: BTreeSet<String> = members()
        .iter()
        .map(|member| member.folder.join("clippy.toml"))
        .filter(|path| path.exists())
        .map(|path| read(&path))
        .collect();
    assert_eq!(lists.len(), 1, "clippy.toml differ");
    for name in ["model", "sched", "tuner", "proto", "sim", "tcp-sim"] {
        let path = root().join("crates").join(name).join("clippy.toml");
        assert!(path.exists(), "{}", path.display());
    }
}
