//! Rules of the tree that no compiler checks: which crate may depend on which, that each dependency is used, where unsafe code may be, and
//! which files may import each other.

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
    for shelf in ["crates", "bench", "bindings"] {
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

/// Each crate uses the crates that ARCHITECTURE.md gives it, no others and no fewer, and the arrows have no circle.
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

/// How many files of a crate may import each other in a circle, as many as did when this was written. A crate without a row has no
/// circle.
const CIRCLES: &[(&str, usize)] = &[
    ("agent", 3),
    ("cli", 3),
    ("lab", 2),
    ("master", 3),
    ("message", 7),
    ("model", 3),
    ("multisocket", 2),
    ("proto", 2),
    ("reproduce", 2),
    ("sched", 3),
    ("sim", 6),
    ("stage", 6),
    ("store", 4),
    ("tcp-sim", 2),
];

/// A path in a crate: of a module, or of an item in one.
type Names = Vec<String>;

/// The source files of a crate as modules, each with its imports. Tests and generated code are left out.
struct Modules(BTreeMap<Names, Vec<Names>>);

impl Modules {
    fn of(folder: &Path) -> Self {
        let files = sources(folder).into_iter().filter(|path| {
            let name = path.file_name().unwrap().to_string_lossy();
            !name.ends_with("tests.rs") && name != "generated.rs"
        });
        let module = |path: PathBuf| {
            let names = path.strip_prefix(folder).unwrap().with_extension("");
            let names = names.iter().map(|name| name.to_string_lossy().into_owned());
            let mut names: Names = names.collect();
            names.pop_if(|last| ["lib", "main", "mod"].contains(&last.as_str()));
            (names, imports(&read(&path)))
        };
        Self(files.map(module).collect())
    }

    /// The module that an import in `from` leads to, and the item in it; `None` in another crate.
    fn locate(&self, from: &Names, import: &Names) -> Option<(Names, Option<String>)> {
        let supers = import.iter().take_while(|name| *name == "super").count();
        let (mut module, mut rest) = match import.first()?.as_str() {
            "crate" => (Names::new(), &import[1..]),
            "self" => (from.clone(), &import[1..]),
            "super" => (from[..from.len() - supers].to_vec(), &import[supers..]),
            first => {
                let child = [&from[..], &[first.to_owned()]].concat();
                self.0.get(&child)?;
                (from.clone(), &import[..])
            }
        };
        while let Some(name) = rest.first() {
            let inner = [&module[..], std::slice::from_ref(name)].concat();
            if !self.0.contains_key(&inner) {
                break;
            }
            (module, rest) = (inner, &rest[1..]);
        }
        Some((module, rest.first().cloned()))
    }

    /// Which files each file imports by `crate::` or `super::`: what it has from its own submodules is its own. Items that a module
    /// only passes on are followed to their file.
    fn arrows(&self) -> BTreeMap<Names, BTreeSet<Names>> {
        let mut passed_on = BTreeMap::new();
        for (from, imports) in &self.0 {
            for import in imports {
                if let (Some(name), Some(to)) = (import.last(), self.locate(from, import)) {
                    passed_on.insert((from.clone(), Some(name.clone())), to);
                }
            }
        }
        let target = |from: &Names, import: &Names| {
            let mut place = self.locate(from, import)?;
            // A name that is imported under itself leads nowhere else.
            for _ in 0..passed_on.len() {
                match passed_on.get(&place) {
                    Some(next) if *next != place => place = next.clone(),
                    _ => break,
                }
            }
            Some(place.0)
        };
        let arrows = self.0.iter().map(|(from, imports)| {
            let imports = imports
                .iter()
                .filter(|import| ["crate", "super"].contains(&import[0].as_str()));
            let to = imports.filter_map(|import| target(from, import));
            (from.clone(), to.filter(|to| to != from).collect())
        });
        arrows.collect()
    }

    /// The largest set of files each of which leads to all others; empty where there is no circle.
    fn circle(&self) -> Vec<String> {
        let arrows = self.arrows();
        let reached = |from: &Names| {
            let mut reached = BTreeSet::new();
            let mut open = vec![from];
            while let Some(at) = open.pop() {
                open.extend(arrows[at].iter().filter(|to| reached.insert((*to).clone())));
            }
            reached
        };
        let reached: BTreeMap<&Names, BTreeSet<Names>> =
            arrows.keys().map(|from| (from, reached(from))).collect();
        let circles = reached.iter().map(|(from, to)| {
            let back = to.iter().filter(|to| reached[to].contains(*from));
            back.map(|names| names.join("::")).collect()
        });
        circles.max_by_key(Vec::len).unwrap_or_default()
    }
}

/// The paths that a file imports outside of functions and inline modules, those of a list one by one, without the names that they get.
fn imports(code: &str) -> Vec<Names> {
    let mut found = Vec::new();
    let begins = |line: &str| {
        let line = match line.strip_prefix("pub") {
            Some(rest) => rest
                .trim_start_matches(|letter: char| letter != ' ')
                .trim_start(),
            None => line,
        };
        line.starts_with("use ")
    };
    let mut at = 0;
    for line in code.split_inclusive('\n') {
        if begins(line) {
            let tree = code[at..].split(';').next().unwrap_or_default();
            let (_, tree) = tree.split_once("use ").unwrap_or_default();
            expand("", tree, &mut found);
        }
        at += line.len();
    }
    found
}

/// Adds the paths of an import tree, each with what stands before it.
fn expand(before: &str, tree: &str, found: &mut Vec<Names>) {
    let tree = tree.trim();
    let Some((head, list)) = tree.split_once('{') else {
        let path = [before, tree.split(" as ").next().unwrap_or(tree)].concat();
        found.push(
            path.split("::")
                .map(|name| name.trim().to_owned())
                .collect(),
        );
        return;
    };
    let before = [before, head].concat();
    let list = list.rsplit_once('}').map_or(list, |(list, _)| list);
    let mut depth = 0;
    let entries = list.split(|letter| {
        depth += i32::from(letter == '{') - i32::from(letter == '}');
        letter == ',' && depth == 0
    });
    for entry in entries.filter(|entry| !entry.trim().is_empty()) {
        expand(&before, entry, found);
    }
}

/// Files that import each other in a circle can only be read and changed together.
#[test]
fn circles_of_imports_do_not_grow() {
    let mut wrong = Vec::new();
    for member in members() {
        let circle = Modules::of(&member.folder.join("src")).circle();
        let row = CIRCLES.iter().find(|(name, _)| *name == member.name);
        let most = row.map_or(0, |(_, most)| *most);
        if circle.len() > most {
            let (name, files) = (&member.name, circle.join(", "));
            wrong.push(format!(
                "{name}: {} files, {most} may: {files}",
                circle.len()
            ));
        }
    }
    assert!(
        wrong.is_empty(),
        "import each other in a circle; move what they share:\n{}",
        wrong.join("\n")
    );
}

/// Imports as they are written: lists in lists, names, `pub`; circles through two files, through items that are passed on, and none
/// between a module and its own submodules.
#[test]
fn circles_of_imports_are_found() {
    let text = "pub(crate) use a::{b::{C, self as D}, e};\nfn f() {\n    use x::y;\n}\npub use g;\nuse h\n    as i;";
    let joined = |names: Names| names.join("::");
    let found: Vec<String> = imports(text).into_iter().map(joined).collect();
    assert_eq!(found, ["a::b::C", "a::b::self", "a::e", "g", "h"]);
    let circle = |files: &[(&str, &str)]| {
        let module = |(path, code): &(&str, &str)| {
            let names = path.split("::").filter(|name| !name.is_empty());
            (names.map(str::to_owned).collect(), imports(code))
        };
        Modules(files.iter().map(module).collect())
            .circle()
            .join(" ")
    };
    for (files, expected) in [
        (
            &[("a", "use crate::b::B;"), ("b", "use super::a;")][..],
            "a b",
        ),
        (&[("a", "use crate::b::B;"), ("b", "use other::a;")], ""),
        (&[("a", "use self::b::B;"), ("a::b", "use super::A;")], ""),
        (
            &[
                ("", "pub use a::A;"),
                ("a", "use crate::b::B;"),
                ("b", "use crate::A;"),
            ],
            "a b",
        ),
        (
            &[
                ("", "pub use a::A;"),
                ("a", "use crate::b;"),
                ("b", "use crate::C;"),
            ],
            "",
        ),
    ] {
        assert_eq!(circle(files), expected, "{files:?}");
    }
}
