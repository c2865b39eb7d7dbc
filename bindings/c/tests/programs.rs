//! C programs that use the library: compiled by each C compiler of this host, warnings as errors, and run, also under valgrind.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use ropewalk::{Agent, AgentOptions};

/// The secret of the agents.
const TOKEN: [u8; 32] = [0x5a; 32];

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Where the shared library is: beside the test's own program, or one above it.
fn library() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let places = own.ancestors().skip(1).take(2);
    let found = places.map(|place| place.join("libropewalk_c.so"));
    found.into_iter().find(|path| path.exists()).unwrap()
}

fn is_there(program: &str) -> bool {
    let found = Command::new(program).arg("--version").output();
    if found.is_err() {
        eprintln!("{program} is not installed: that part is skipped");
    }
    found.is_ok()
}

fn success(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {said}", output.status);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

struct Scene {
    folder: tempfile::TempDir,
    agents: Vec<Agent>,
}

impl Scene {
    fn new(agents: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().canonicalize().unwrap();
        let token = path.join("token");
        fs::write(&token, "5a".repeat(32)).unwrap();
        fs::set_permissions(&token, fs::Permissions::from_mode(0o600)).unwrap();
        let start = |_| {
            Agent::start(AgentOptions {
                listen: vec![([127, 0, 0, 1], 0).into()],
                token: TOKEN,
                roots: vec![(path.clone(), true)],
            })
            .unwrap()
        };
        Self {
            agents: (0..agents).map(start).collect(),
            folder,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().canonicalize().unwrap().join(name)
    }

    fn compile(&self, compiler: &str, name: &str) -> PathBuf {
        let library = library();
        // The name that programs look for.
        let link = self.path("libropewalk_c.so.0");
        if !link.exists() {
            std::os::unix::fs::symlink(&library, &link).unwrap();
        }
        let program = self.path(&format!("{name}-{compiler}"));
        let output = Command::new(compiler)
            .args(
                "-std=c99 -D_POSIX_C_SOURCE=200809L -pedantic -Wall -Wextra -Werror -g".split(' '),
            )
            .arg("-I")
            .arg(here("include"))
            .arg(here(&format!("tests/{name}.c")))
            .arg("-o")
            .arg(&program)
            .arg(&library)
            .output();
        success(&output.unwrap());
        program
    }

    /// * `under`: words before the program's.
    fn run(&self, under: &[&str], program: &Path) -> String {
        let mut words = under.to_vec();
        words.push(program.to_str().unwrap());
        let output = Command::new(words[0])
            .args(&words[1..])
            .arg(self.path("token"))
            .arg(self.path(""))
            .args(
                self.agents
                    .iter()
                    .map(|agent| agent.addresses()[0].port().to_string()),
            )
            .env("LD_LIBRARY_PATH", self.path(""))
            .output();
        success(&output.unwrap())
    }
}

/// Errors of memory, and memory that is lost, make the program fail.
const VALGRIND: [&str; 5] = [
    "valgrind",
    "--quiet",
    "--error-exitcode=9",
    "--leak-check=full",
    "--errors-for-leak-kinds=definite",
];

fn compilers() -> Vec<&'static str> {
    let all = ["gcc", "clang"].into_iter();
    let found: Vec<&str> = all.filter(|compiler| is_there(compiler)).collect();
    assert!(!found.is_empty(), "no C compiler");
    found
}

/// The program of CEP Table 1 moves the data of Figure 2.
#[test]
fn table_1_moves_figure_2() {
    let scene = Scene::new(7);
    let data: Vec<u8> = (0..4096_u32).map(|at| (at / 9) as u8).collect();
    fs::write(scene.path("half1"), &data[..2048]).unwrap();
    fs::write(scene.path("half2"), &data[2048..]).unwrap();
    for compiler in compilers() {
        let program = scene.compile(compiler, "table1");
        assert_eq!(scene.run(&[], &program), "8192\n");
        assert_eq!(fs::read(scene.path("copy1")).unwrap(), data[..2048]);
        assert_eq!(fs::read(scene.path("copy2")).unwrap()[2048..], data[2048..]);
        assert_eq!(fs::read(scene.path("copy3")).unwrap(), data);
    }
    if is_there("valgrind") {
        let program = scene.compile("gcc", "table1");
        assert_eq!(scene.run(&VALGRIND, &program), "8192\n");
    }
}

/// Handles are independent, `poll` sees their progress, and what is wrong is refused with a reason.
#[test]
fn handles_run_in_an_event_loop() {
    let scene = Scene::new(2);
    let data: Vec<u8> = (0..2_000_000_u32).map(|at| (at / 5) as u8).collect();
    fs::write(scene.path("data"), &data).unwrap();
    let mut unders: Vec<&[&str]> = vec![&[]];
    if is_there("valgrind") {
        unders.push(&VALGRIND);
    }
    for compiler in compilers() {
        let program = scene.compile(compiler, "handles");
        for under in &unders {
            assert_eq!(scene.run(under, &program), "ok\n");
            let read = |name: &str| fs::read(scene.path(name)).unwrap();
            assert_eq!([read("head"), read("tail")].concat(), data);
            assert!(!scene.path("cancelled").exists());
            fs::remove_file(scene.path("head")).unwrap();
            fs::remove_file(scene.path("tail")).unwrap();
        }
    }
}

/// Without the marks of documentation in Rust.
fn in_words_of_c(header: &str) -> String {
    let mut text = header.replace("# Safety", "The caller ensures:");
    for (mark, plain) in [
        ("[`", ""),
        ("`](crate::ropewalk_string_free)", ""),
        ("`]", ""),
        ("`", ""),
    ] {
        text = text.replace(mark, plain);
    }
    text
}

/// The header is what the source says; `ROPEWALK_UPDATE_GOLDEN=1` writes it.
#[test]
fn the_header_is_the_source() {
    let config = cbindgen::Config::from_file(here("cbindgen.toml")).unwrap();
    let sources = ["error", "transfer", "cep"];
    let mut builder = cbindgen::Builder::new().with_config(config);
    for source in sources {
        builder = builder.with_src(here(&format!("src/{source}.rs")));
    }
    let mut made = Vec::new();
    builder.generate().unwrap().write(&mut made);
    let made = String::from_utf8(made).unwrap();
    let made = in_words_of_c(&made);
    let path = here("include/ropewalk.h");
    if std::env::var_os("ROPEWALK_UPDATE_GOLDEN").is_some() {
        fs::write(&path, &made).unwrap();
    }
    assert!(
        fs::read_to_string(&path).unwrap_or_default() == made,
        "{} is not what the source says; run this test with ROPEWALK_UPDATE_GOLDEN=1",
        path.display()
    );
}
