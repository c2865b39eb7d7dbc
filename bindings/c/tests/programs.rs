//! C programs that use the library: compiled by each C compiler of this host, warnings as errors, and run, also under valgrind.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use ropewalk::{Agent, AgentOptions};

/// The secret of the agents.
const TOKEN: [u8; 32] = [0x5a; 32];

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// What cargo has built: beside the test's own program, or one above it.
fn built(name: &str) -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let places = own.ancestors().skip(1).take(2);
    let mut found = places.map(|place| place.join(name));
    let found = found.find(|path| path.exists());
    found.unwrap_or_else(|| panic!("{name} is not built; test the whole workspace"))
}

/// The shared library.
fn library() -> PathBuf {
    built("libropewalk_c.so")
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
        success(&self.command(under, program).output().unwrap())
    }

    fn command(&self, under: &[&str], program: &Path) -> Command {
        let mut words = under.to_vec();
        words.push(program.to_str().unwrap());
        let mut command = Command::new(words[0]);
        command
            .args(&words[1..])
            .arg(self.path("token"))
            .arg(self.path(""))
            .args(
                self.agents
                    .iter()
                    .map(|agent| agent.addresses()[0].port().to_string()),
            )
            .env("LD_LIBRARY_PATH", self.path(""));
        command
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

/// Each compiler with what its programs run under.
fn ways() -> Vec<(&'static str, Vec<&'static [&'static str]>)> {
    let mut unders: Vec<&[&str]> = vec![&[]];
    if is_there("valgrind") {
        unders.push(&VALGRIND);
    }
    let all = compilers().into_iter();
    all.map(|compiler| (compiler, unders.clone())).collect()
}

/// Memory of a program is written to files, and files are read into memory.
#[test]
fn buffers_are_sources_and_destinations() {
    let scene = Scene::new(1);
    let data: Vec<u8> = (0..3_000_000_u32).map(|at| (at / 7) as u8).collect();
    // Not under valgrind: an agent asks for processor time, and rustix reads the kernel's vDSO for that, which valgrind has unmapped.
    for compiler in compilers() {
        let program = scene.compile(compiler, "buffers");
        assert_eq!(scene.run(&[], &program), "ok\n");
        for name in ["rows", "places"] {
            assert!(fs::read(scene.path(name)).unwrap() == data, "{name}");
            fs::remove_file(scene.path(name)).unwrap();
        }
    }
}

/// The most memory of a process that sends 1 GiB from memory that it lent, and of one that receives into it, is that and little more.
#[test]
fn lent_memory_is_not_copied() {
    const GIB: u64 = 1 << 30;
    /// The library, and what lanes have under way; far below what a copy would take.
    const BESIDE: u64 = 64 << 20;
    let scene = Scene::new(1);
    let file = fs::File::create(scene.path("from")).unwrap();
    file.write_all_at(b"the end", GIB - 7).unwrap();
    let program = scene.compile(compilers()[0], "peak");
    for role in ["send", "receive"] {
        let said = success(&scene.command(&[], &program).arg(role).output().unwrap());
        let peak: u64 = said.trim().parse().unwrap();
        eprintln!("{role}: 1 GiB and {} KiB", peak.saturating_sub(GIB) >> 10);
        assert!((GIB..GIB + BESIDE).contains(&peak), "{role}: {peak}");
    }
}

/// A tree is copied with options of the command.
#[test]
fn trees_are_copied() {
    let scene = Scene::new(2);
    fs::create_dir_all(scene.path("tree/b")).unwrap();
    fs::write(scene.path("tree/a"), "first").unwrap();
    fs::write(scene.path("tree/b/c"), "last").unwrap();
    for (compiler, unders) in ways() {
        let program = scene.compile(compiler, "copies");
        for under in unders {
            assert_eq!(scene.run(under, &program), "ok\n");
            assert_eq!(fs::read(scene.path("copy/a")).unwrap(), b"first");
            assert_eq!(fs::read(scene.path("copy/b/c")).unwrap(), b"last");
            fs::remove_dir_all(scene.path("copy")).unwrap();
        }
    }
}

/// Messages go over two interfaces, and event loops see them.
#[test]
fn messages_go_over_interfaces() {
    let scene = Scene::new(0);
    for (compiler, unders) in ways() {
        let program = scene.compile(compiler, "messages");
        for under in unders {
            assert_eq!(scene.run(under, &program), "ok\n");
        }
    }
}

/// Byte streams go over two interfaces, to programs that wait and to event loops.
#[test]
fn byte_streams_go_over_interfaces() {
    let scene = Scene::new(0);
    for (compiler, unders) in ways() {
        let program = scene.compile(compiler, "streams");
        for under in unders {
            assert_eq!(scene.run(under, &program), "ok\n");
        }
    }
}

/// A region over two nodes is read, written and waited for.
#[test]
fn regions_are_read_and_written() {
    let scene = Scene::new(0);
    for (compiler, unders) in ways() {
        let program = scene.compile(compiler, "regions");
        for under in unders {
            assert_eq!(scene.run(under, &program), "ok\n");
        }
    }
}

/// What `scripts/install-c` installs is found by pkg-config, and programs are linked with the shared and with the static library.
#[test]
fn programs_use_what_is_installed() {
    let (compiler, scene) = (compilers()[0], Scene::new(1));
    if !is_there("pkg-config") {
        return;
    }
    // The libraries of this build stand for those of a release.
    let built = library();
    let built = built.parent().unwrap();
    let install = Command::new(here("../../scripts/install-c"))
        .arg("--built")
        .arg(built)
        .arg(scene.path("installed"))
        .output();
    success(&install.unwrap());
    let packed = Command::new(here("../../scripts/install-c"))
        .env("DESTDIR", scene.path("package"))
        .arg("--built")
        .arg(built)
        .arg("/usr")
        .output();
    success(&packed.unwrap());
    let found = fs::read_to_string(scene.path("package/usr/lib/pkgconfig/ropewalk.pc")).unwrap();
    assert!(found.starts_with("prefix=/usr\n"), "{found}");
    let lib = scene.path("installed/lib");
    assert!(scene.path("installed/share/man/man3/ropewalk.3").exists());
    for is_static in [false, true] {
        let mut flags = Command::new("pkg-config");
        flags.env("PKG_CONFIG_PATH", lib.join("pkgconfig"));
        flags.args(["--cflags", "--libs", "ropewalk"]);
        if is_static {
            flags.arg("--static");
        }
        let flags = success(&flags.output().unwrap());
        let mut flags: Vec<&str> = flags.split_whitespace().collect();
        let archive = lib.join("libropewalk_c.a");
        if is_static {
            let named = flags.iter_mut().find(|flag| **flag == "-lropewalk_c");
            *named.unwrap() = archive.to_str().unwrap();
        }
        let program = scene.path(&format!("installed-{is_static}"));
        let output = Command::new(compiler)
            .args("-std=c99 -D_POSIX_C_SOURCE=200809L -Wall -Werror".split(' '))
            .arg(here("tests/buffers.c"))
            .arg("-o")
            .arg(&program)
            .args(&flags)
            .output();
        success(&output.unwrap());
        let mut run = Command::new(&program);
        run.arg(scene.path("token")).arg(scene.path(""));
        run.arg(scene.agents[0].addresses()[0].port().to_string());
        if !is_static {
            run.env("LD_LIBRARY_PATH", &lib);
        }
        assert_eq!(success(&run.output().unwrap()), "ok\n");
    }
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

/// A process that ends with its test.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The same program, where a running `ropewalk serve` is the master.
#[test]
fn a_standing_master_moves_figure_2() {
    let scene = Scene::new(7);
    let data: Vec<u8> = (0..4096_u32).map(|at| (at / 7) as u8).collect();
    fs::write(scene.path("half1"), &data[..2048]).unwrap();
    fs::write(scene.path("half2"), &data[2048..]).unwrap();
    let serve = Command::new(built("ropewalk"))
        .args(["serve", "--listen", "127.0.0.1:0", "--token-file"])
        .arg(scene.path("token"))
        .env("HOME", scene.path(""))
        .env("XDG_STATE_HOME", scene.path("state"))
        .env("XDG_RUNTIME_DIR", scene.path(""))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut serve = Ended(serve);
    let lines = BufReader::new(serve.0.stdout.take().unwrap()).lines();
    let said: Vec<String> = lines.take(2).map(Result::unwrap).collect();
    let at = said[1].strip_prefix("listening on ").unwrap();
    let program = scene.compile("cc", "table1");
    let mut run = scene.command(&[], &program);
    let said = success(&run.arg(at).output().unwrap());
    // With another token it is refused, and nothing has moved.
    fs::remove_file(scene.path("copy3")).unwrap();
    fs::write(scene.path("token"), "6b".repeat(32)).unwrap();
    let refused = scene.command(&[], &program).arg(at).output().unwrap();
    assert_eq!(said, "8192\n");
    assert_eq!(fs::read(scene.path("copy1")).unwrap(), data[..2048]);
    assert_eq!(fs::read(scene.path("copy2")).unwrap()[2048..], data[2048..]);
    assert!(!refused.status.success() && !scene.path("copy3").exists());
    let text = String::from_utf8_lossy(&refused.stderr);
    assert!(text.contains("another token"), "{text}");
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

/// A child of a program releases what it has a copy of, and its parent's goes on.
#[test]
fn children_release_copies_of_handles() {
    let scene = Scene::new(2);
    fs::write(scene.path("from"), vec![7; 1 << 20]).unwrap();
    for compiler in compilers() {
        let program = scene.compile(compiler, "children");
        assert_eq!(scene.run(&[], &program), "ok\n");
        assert_eq!(fs::read(scene.path("to")).unwrap(), vec![7; 1 << 20]);
        fs::remove_file(scene.path("to")).unwrap();
    }
}

/// Each header compiles with no other one before it, as C and as C++.
#[test]
fn headers_compile_alone() {
    let scene = Scene::new(0);
    let mut all = compilers();
    all.extend(["g++", "clang++"].into_iter().filter(|one| is_there(one)));
    for header in ["ropewalk.h", "cep.h"] {
        for compiler in &all {
            let (ending, standard) = match compiler.ends_with("++") {
                true => ("cpp", "-std=c++11"),
                false => ("c", "-std=c99"),
            };
            let source = scene.path(&format!("{header}.{ending}"));
            fs::write(&source, format!("#include <{header}>\n")).unwrap();
            let output = Command::new(compiler)
                .arg(standard)
                .args("-pedantic -Wall -Wextra -Werror -fsyntax-only".split(' '))
                .arg("-I")
                .arg(here("include"))
                .arg(&source)
                .output();
            success(&output.unwrap());
        }
    }
}

/// Without the marks of documentation in Rust.
fn in_words_of_c(header: &str) -> String {
    let mut text = header.replace("# Safety", "The caller ensures:");
    // Where a link leads is said by its name.
    while let Some((before, after)) = text.split_once("](crate::") {
        let (_, after) = after.split_once(')').unwrap();
        text = format!("{before}]{after}");
    }
    for mark in ["[`", "`]", "`"] {
        text = text.replace(mark, "");
    }
    text
}

/// The header is what the source says; `ROPEWALK_UPDATE_GOLDEN=1` writes it.
#[test]
fn the_header_is_the_source() {
    let config = cbindgen::Config::from_file(here("cbindgen.toml")).unwrap();
    let sources = [
        "error", "transfer", "agent", "message", "stream", "region", "cep",
    ];
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
