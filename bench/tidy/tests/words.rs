//! Words that pages, help, messages and public documentation do not use: each has a plain technical term beside it.

use std::fs;
use std::path::{Path, PathBuf};

/// What is refused, in lower case, and what to write instead. Spaces match any white space.
const WORDS: &[(&str, &str)] = &[
    ("told", "reported, notified, given"),
    ("tell", "report, notify, show"),
    ("tells", "reports, shows"),
    ("word of", "message, report"),
    ("last word", "final report"),
    ("came", "was received, arrived, returned"),
    ("has come", "was received, arrived"),
    ("have come", "were received, arrived"),
    ("did not come", "is missing, did not arrive"),
    ("come back", "return"),
    ("comes back", "returns"),
    ("comes twice", "is received twice, is duplicated"),
    ("anew", "again"),
    ("whoever", "the node, peer or process that"),
    ("whom", "which node, which peer"),
    ("nobody", "no node, no process, none"),
    ("somebody", "a node, another process"),
    ("turned away", "rejected"),
    ("sent away", "rejected"),
    ("taken in", "admitted"),
    ("let go", "released"),
    ("in vain", "useless"),
    ("of late", "lately, over the last second"),
    ("learnt", "measured, recorded"),
    ("who", "which node, which user; a node that"),
    ("come", "arrive, be received, follow"),
    ("comes", "arrives, is received, follows"),
    ("coming", "arriving, incoming"),
    ("bring", "return, deliver, have"),
    ("brings", "returns, delivers, has"),
    ("brought", "returned, delivered"),
    ("stand", "be, be in place of"),
    ("stands", "is, is in place of"),
    ("stranger", "unauthenticated peer"),
    ("strangers", "unauthenticated peers"),
    ("travels", "is sent"),
    ("room", "space"),
    ("word", "field, message"),
    ("mishap", "failure"),
    ("mishaps", "failures"),
];

/// Where a word is meant as it stands: the end of the file's path, and the word.
const EXCEPTIONS: &[(&str, &str)] = &[
    // A file's name.
    ("ARCHITECTURE.md", "room"),
    // A mark in a script.
    ("crates/master/src/reach/upload.rs", "word"),
];

/// A text and its place.
struct Text {
    path: PathBuf,
    line: usize,
    text: String,
}

fn root() -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    folder.canonicalize().unwrap()
}

/// Files below a folder, in order, that `wanted` accepts.
fn files(folder: &Path, wanted: &dyn Fn(&Path) -> bool) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let entries = fs::read_dir(folder).unwrap();
    let mut entries: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            if !path.ends_with("target") && !path.ends_with(".git") {
                found.extend(files(&path, wanted));
            }
        } else if wanted(&path) {
            found.push(path);
        }
    }
    found
}

/// Source files of all members; tests and generated code are left out.
fn sources() -> Vec<PathBuf> {
    let is_source = |path: &Path| {
        let name = path.file_name().unwrap().to_string_lossy();
        let folders: Vec<_> = path.parent().unwrap().iter().collect();
        name.ends_with(".rs")
            && !name.ends_with("tests.rs")
            && name != "generated.rs"
            && folders.iter().any(|folder| *folder == "src")
            && !folders.iter().any(|folder| *folder == "tests")
    };
    let shelves = ["crates", "bench", "bindings", "lab"].map(|shelf| root().join(shelf));
    let found: Vec<PathBuf> = shelves
        .iter()
        .flat_map(|shelf| files(shelf, &is_source))
        .collect();
    assert!(found.len() > 200, "the sources have moved");
    found
}

/// Source code up to the tests at its end.
fn code(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap();
    match text.find("#[cfg(test)]\nmod tests {") {
        Some(end) => text[..end].to_owned(),
        None => text,
    }
}

/// Refuses the words in these texts. Names in code (`tell_all`, `{came}`) are other words.
fn assert_plain(texts: &[Text]) {
    assert!(texts.len() > 10, "no texts were found");
    let mut found = Vec::new();
    for text in texts {
        let plain: String = text
            .text
            .to_lowercase()
            .split(|letter: char| !letter.is_alphanumeric() && !"_{".contains(letter))
            .filter(|word| !word.is_empty())
            .flat_map(|word| [" ", word])
            .chain([" "])
            .collect();
        for (word, instead) in WORDS {
            let place = text.path.strip_prefix(root()).unwrap();
            let is_meant = EXCEPTIONS
                .iter()
                .any(|(file, meant)| place.ends_with(file) && meant == word);
            if !is_meant && plain.contains(&format!(" {word} ")) {
                found.push(format!(
                    "{}:{}: \"{word}\"; write: {instead}",
                    place.display(),
                    text.line
                ));
            }
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// Paragraphs, rows of tables and points of lists.
fn paragraphs(path: PathBuf) -> Vec<Text> {
    let mut found: Vec<Text> = Vec::new();
    let mut is_open = false;
    for (at, line) in fs::read_to_string(&path).unwrap().lines().enumerate() {
        let begins = ["* ", "- ", "|", "#"]
            .iter()
            .any(|start| line.trim_start().starts_with(start));
        if line.trim().is_empty() {
            is_open = false;
        } else if is_open && !begins {
            let last = found.last_mut().unwrap();
            last.text.push(' ');
            last.text.push_str(line);
        } else {
            is_open = true;
            found.push(Text {
                path: path.clone(),
                line: at + 1,
                text: line.to_owned(),
            });
        }
    }
    found
}

#[test]
fn pages_are_plain() {
    let is_page = |path: &Path| path.extension().is_some_and(|end| end == "md");
    let pages = files(&root(), &is_page);
    let texts: Vec<Text> = pages.into_iter().flat_map(paragraphs).collect();
    assert_plain(&texts);
}

#[test]
fn help_is_plain() {
    let is_help = |path: &Path| {
        let name = path.file_name().unwrap().to_string_lossy();
        path.parent().unwrap().ends_with("golden") && name.contains("help-")
    };
    let mut found = files(&root().join("crates/cli/tests"), &is_help);
    found.extend(files(&root().join("bench/program/tests"), &is_help));
    assert!(found.len() > 15, "the help texts have moved");
    let texts: Vec<Text> = found.into_iter().flat_map(paragraphs).collect();
    assert_plain(&texts);
}

/// Texts in code, by a reading that knows comments, characters and raw strings. A text has a space.
fn texts_of(path: &Path) -> Vec<Text> {
    let code = code(path);
    let letters: Vec<char> = code.chars().collect();
    let mut found = Vec::new();
    let (mut at, mut line) = (0, 1);
    while at < letters.len() {
        match letters[at] {
            '\n' => line += 1,
            '/' if letters.get(at + 1) == Some(&'/') => {
                while at + 1 < letters.len() && letters[at + 1] != '\n' {
                    at += 1;
                }
            }
            // A character, not a lifetime.
            '\'' if letters.get(at + 1) == Some(&'\\') => at += 3,
            '\'' if letters.get(at + 2) == Some(&'\'') => at += 2,
            '"' => {
                let hashes = letters[..at]
                    .iter()
                    .rev()
                    .take_while(|letter| **letter == '#')
                    .count();
                let is_raw = at > hashes && letters[at - hashes - 1] == 'r';
                let (begin, mut text) = (line, String::new());
                at += 1;
                while at < letters.len() {
                    let closes = letters[at] == '"'
                        && (!is_raw
                            || letters[at + 1..]
                                .iter()
                                .take_while(|letter| **letter == '#')
                                .count()
                                >= hashes);
                    if closes {
                        break;
                    }
                    if letters[at] == '\\' && !is_raw {
                        at += 1;
                        text.push(' ');
                    } else {
                        text.push(letters[at]);
                    }
                    if letters.get(at) == Some(&'\n') {
                        line += 1;
                    }
                    at += 1;
                }
                if text.contains(' ') {
                    found.push(Text {
                        path: path.to_owned(),
                        line: begin,
                        text,
                    });
                }
            }
            _ => {}
        }
        at += 1;
    }
    found
}

/// Errors, notes, reports: all texts in the code of the product and of its measuring programs.
#[test]
fn messages_are_plain() {
    let texts: Vec<Text> = sources().iter().flat_map(|path| texts_of(path)).collect();
    assert_plain(&texts);
}

/// Documentation without its code: names in backticks and examples. Pictures stay.
fn prose<'l>(lines: impl Iterator<Item = &'l str>) -> String {
    let mut text = String::new();
    let (mut is_fenced, mut is_example) = (false, false);
    for line in lines {
        if let Some(kind) = line.trim().strip_prefix("```") {
            is_fenced = !is_fenced;
            is_example = is_fenced && kind != "text";
        } else if !is_example {
            text.push_str(line);
            text.push(' ');
        }
    }
    text.split('`').step_by(2).collect::<Vec<_>>().join("_")
}

/// The documentation of modules, of items that begin with `pub`, and of variants.
fn documentation(path: &Path) -> Vec<Text> {
    let code = code(path);
    let lines: Vec<&str> = code.lines().map(str::trim).collect();
    let mut found = Vec::new();
    let mut at = 0;
    while at < lines.len() {
        let begin = at;
        let marks = ["//!", "///"].into_iter();
        let Some(mark) = marks.clone().find(|mark| lines[at].starts_with(mark)) else {
            at += 1;
            continue;
        };
        while at < lines.len() && lines[at].starts_with(mark) {
            at += 1;
        }
        let text = prose(lines[begin..at].iter().map(|line| &line[mark.len()..]));
        let item = lines[at..].iter().find(|line| !line.starts_with("#["));
        let is_public =
            |item: &&str| item.starts_with("pub ") || item.starts_with(char::is_uppercase);
        if mark == "//!" || item.is_some_and(is_public) {
            found.push(Text {
                path: path.to_owned(),
                line: begin + 1,
                text,
            });
        }
    }
    found
}

#[test]
fn public_documentation_is_plain() {
    let texts: Vec<Text> = sources()
        .iter()
        .flat_map(|path| documentation(path))
        .collect();
    assert_plain(&texts);
}
