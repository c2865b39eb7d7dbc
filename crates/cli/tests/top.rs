//! `top`: transfers of this host on a terminal, as text and as JSON; those of agents and of hosts over ssh.

mod common;

use std::path::Path;

use common::terminal::Terminal;
use common::{Moving, Place, Ran, make_ssh, wait_for};
use serde_json::Value;

const PROGRAM: &str = env!("CARGO_BIN_EXE_ropewalk");

const SLOW: [&str; 5] = ["copy", "mem:1GiB", "null:", "--limit", "4MB/s"];

/// A slow copy whose first bytes have moved, and its id.
fn moving(place: &Place, args: &[&str]) -> (Moving, String) {
    moving_as(place.command(), args)
}

fn moving_as(command: std::process::Command, args: &[&str]) -> (Moving, String) {
    let mut moving = Moving::start_as(command, args);
    let id = moving.event("planned")["transfer"]
        .as_str()
        .unwrap()
        .to_owned();
    moving.until_delivered(1);
    (moving, id)
}

fn report(ran: &Ran) -> Value {
    serde_json::from_str(&ran.out()).unwrap()
}

/// The row of a transfer, when it is there.
fn row(report: &Value, id: &str) -> Option<Value> {
    let rows = report["transfers"].as_array().unwrap();
    rows.iter().find(|row| row["transfer"] == id).cloned()
}

/// The row of a transfer once `is_right` of it.
fn until(place: &Place, args: &[&str], id: &str, is_right: impl Fn(&Value) -> bool) -> Value {
    let args = [&["top", "--json", "--once"], args].concat();
    wait_for("a row of the transfer", || {
        row(&report(&place.run(&args)), id).filter(&is_right)
    })
}

/// Each name of the JSON is documented.
fn assert_documented(report: &Value) {
    let documented = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/json.md");
    let documented = std::fs::read_to_string(documented).unwrap();
    let (_, section) = documented.split_once("## `ropewalk top --json`").unwrap();
    let section = section.split("\n## ").next().unwrap();
    let mut open = vec![report.clone()];
    while let Some(value) = open.pop() {
        match value {
            Value::Array(values) => open.extend(values),
            Value::Object(fields) => {
                for (name, value) in fields {
                    assert!(section.contains(&format!("`{name}`")), "{name}");
                    open.push(value);
                }
            }
            _ => {}
        }
    }
}

/// A local copy, whose agents are threads of the command: its bytes, rate and nodes, and what holds it back; after `kill -9` it is gone.
#[test]
fn a_local_copy_is_shown_until_it_is_killed() {
    let place = Place::new();
    let (mut moving, id) = moving(&place, &SLOW);
    let row = until(&place, &[], &id, |row| {
        row["bottlenecks"] != Value::Array(Vec::new())
    });
    assert_eq!(
        (&row["kind"], row["process"].as_u64()),
        (&"copy".into(), Some(moving.child.id().into()))
    );
    assert_eq!(row["total_bytes"], 1 << 30, "{row:#}");
    assert!(row["received_bytes"].as_u64() > Some(0), "{row:#}");
    assert!(row["bits_per_second"].as_f64() > Some(0.0), "{row:#}");
    assert_eq!(row["bottlenecks"][0]["cause"], "limit", "{row:#}");
    let nodes = row["nodes"].as_array().unwrap();
    let sides: Vec<_> = nodes.iter().map(|node| node["sends"].as_bool()).collect();
    assert_eq!(sides, [Some(false), Some(true)], "{row:#}");
    assert_documented(&report(&place.run(&["top", "--json", "--once"])));
    let said = place.run(&["top"]).assert_status(0);
    let short = &id[id.len() - 8..];
    said.assert_says(&format!("{short}  copy"))
        .assert_says("of 1.07 GB")
        .assert_says("held back by --limit");
    moving.child.kill().unwrap();
    moving.child.wait().unwrap();
    let gone = report(&place.run(&["top", "--json", "--once"]));
    assert_eq!(self::row(&gone, &id), None, "{gone:#}");
    let left = std::fs::read_dir(place.path("runtime/ropewalk")).unwrap();
    let names: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
    let sockets = names
        .iter()
        .filter(|name| name.to_string_lossy().contains('.'));
    assert_eq!(sockets.count(), 0, "{names:?}");
}

/// A command whose place has another runtime folder, as another host has: what its `ssh` starts is in `far`.
fn far_ssh(place: &Place) -> String {
    std::fs::create_dir(place.path("far")).unwrap();
    let far = place.text("far");
    make_ssh(
        place,
        &format!(
            "far) XDG_RUNTIME_DIR={far}; export XDG_RUNTIME_DIR ;;\naway) echo 'ssh: connect to host away port 22: Connection refused' >&2; exit 255 ;;"
        ),
    )
}

/// A command of the far host.
fn on_far(place: &Place) -> std::process::Command {
    let mut command = place.command();
    command.env("XDG_RUNTIME_DIR", place.path("far"));
    command
}

/// What an agent does that another host's command has started over ssh is shown on its host, with its rate; after `kill -9` of that
/// agent nothing is left there.
#[test]
fn an_agent_that_ssh_started_is_shown_on_its_host() {
    let place = Place::new();
    let ssh = far_ssh(&place);
    let target = format!("far:{}", place.text("copy"));
    let args = [
        "copy",
        "--ssh",
        &ssh,
        "--remote-path",
        PROGRAM,
        "--limit",
        "4MB/s",
        "mem:1GiB",
        &target,
    ];
    let (_moving, id) = moving(&place, &args);
    let look = || {
        let mut command = on_far(&place);
        let ran = Ran(command.args(["top", "--json", "--once"]).output().unwrap());
        row(&report(&ran.assert_status(0)), &id)
    };
    let row = wait_for("the agent's row", || {
        look().filter(|row| row["bits_per_second"].as_f64() > Some(0.0))
    });
    assert_eq!(
        (&row["kind"], &row["process"]),
        (&"transfer".into(), &Value::Null)
    );
    assert_eq!(row["to"], Value::from(vec![place.text("copy")]), "{row:#}");
    assert_eq!(row["total_bytes"], 1 << 30, "{row:#}");
    let socket = wait_for("the agent's socket", || {
        let entries = std::fs::read_dir(place.path("far/ropewalk")).unwrap();
        let mut paths = entries.map(|entry| entry.unwrap().path());
        paths.find(|path| path.extension().is_some_and(|end| end == "agent"))
    });
    let process = socket.file_stem().unwrap().to_str().unwrap();
    let killed = std::process::Command::new("kill")
        .args(["-9", process])
        .status();
    assert!(killed.unwrap().success());
    wait_for("the socket to go", || {
        look();
        (!socket.exists()).then_some(())
    });
}

/// Named places: a standing agent by its port, a host over ssh, which shows its user's commands, and ones that do not answer, which are
/// named with what to do.
#[test]
fn named_hosts_are_shown() {
    let place = Place::new();
    place.make_token();
    let ssh = far_ssh(&place);
    let agent = place.agent(place.dir.path());
    let target = agent.at(place.path("copy"));
    let (_near, attached) = moving(&place, &["copy", "--limit", "4MB/s", "mem:1GiB", &target]);
    let (_far, on_host) = moving_as(on_far(&place), &SLOW);
    let port = format!("127.0.0.1:{}", agent.port);
    let shared = ["--ssh", &ssh, "--remote-path", PROGRAM];
    let args = |hosts: &[&'static str]| [&shared[..], hosts].concat();
    let with_port: Vec<&str> = [&args(&["far"])[..], &[&port[..]]].concat();
    let row = until(&place, &with_port, &attached, |row| {
        row["bits_per_second"].as_f64() > Some(0.0)
            && row["bottlenecks"] != Value::Array(Vec::new())
    });
    assert_eq!(row["places"], Value::from(vec![port.clone()]));
    let nodes = row["nodes"].as_array().unwrap();
    assert_eq!(
        (nodes.len(), &nodes[0]["node"]),
        (1, &Value::from(port.clone())),
        "{row:#}"
    );
    let row = until(&place, &with_port, &on_host, |_| true);
    assert_eq!(
        (&row["kind"], &row["places"][0]),
        (&"copy".into(), &"far".into())
    );
    let with_away = [
        &["top", "--once"],
        &args(&["far", "away", "127.0.0.1:1"])[..],
    ]
    .concat();
    place
        .run(&with_away)
        .assert_status(3)
        .assert_says(&format!("{}  copy", &on_host[on_host.len() - 8..]))
        .assert_says("away: no answer: ssh: connect to host away port 22: Connection refused")
        .assert_says("start `ropewalk agent` there");
    place
        .run(&[&["top", "--once"], &args(&["away"])[..]].concat())
        .assert_status(1)
        .assert_says("away: no answer: ");
    let nothing_listens = place.run(&[&["top", "--once"], &args(&["127.0.0.1:1"])[..]].concat());
    let said = nothing_listens.assert_status(1).out();
    assert!(
        said.starts_with("127.0.0.1:1: no answer: Connection refused"),
        "{said}"
    );
    assert_eq!(
        (said.lines().count(), said.matches(":1").count()),
        (1, 1),
        "{said}"
    );
}

/// A terminal whose output is stopped (Ctrl-S) does not hold SIGTERM.
#[test]
fn a_stopped_terminal_does_not_hold_it() {
    let place = Place::new();
    let mut terminal = Terminal::run(&place, &["top"]);
    terminal.until("this host: ");
    terminal.press("\u{13}");
    let pid = terminal.child.id().to_string();
    let sent = std::process::Command::new("kill").arg(pid).status();
    assert!(sent.unwrap().success());
    let status = wait_for("its end", || terminal.child.try_wait().unwrap());
    assert_eq!(status.code(), Some(0));
}

/// On a terminal: drawn until q, again when the size changes, within 80 columns; and the terminal is as it was.
#[test]
fn a_terminal_is_drawn_and_left_as_it_was() {
    let place = Place::new();
    let evil = "bad\u{1b}[31mname";
    let (_moving, id) = moving(&place, &["copy", "--limit", "4MB/s", "mem:1GiB", evil]);
    let short = &id[id.len() - 8..];
    let mut terminal = Terminal::run(&place, &["top"]);
    terminal.until("\u{1b}[?1049h");
    // Whatever else this user runs on this host is shown, too.
    terminal.resize(100, 400);
    terminal.until(short);
    terminal.until("bad\\x1b[31mname");
    terminal.until("held back by --limit");
    terminal.resize(30, 4);
    // A narrow line is cut.
    terminal.until("\u{2026}\u{1b}[K");
    terminal.press("q");
    let (status, rest) = terminal.end();
    assert_eq!(status, 0);
    assert!(rest.ends_with("\u{1b}[?1049l"), "{rest:?}");
    assert!(!rest.contains("[31m"), "{rest:?}");
}

/// Ctrl-C leaves, too.
#[test]
fn the_key_of_interrupts_leaves() {
    let place = Place::new();
    let mut terminal = Terminal::run(&place, &["top"]);
    terminal.until("this host: ");
    terminal.press("\u{3}");
    let (status, rest) = terminal.end();
    assert_eq!(status, 0);
    assert!(rest.ends_with("\u{1b}[?1049l"), "{rest:?}");
}

/// A reader that has gone ends it quietly, as other programs of a pipeline.
#[test]
fn a_closed_pipe_ends_it_quietly() {
    use std::io::{BufRead as _, BufReader, Read as _};
    use std::os::unix::process::ExitStatusExt as _;
    let place = Place::new();
    let mut command = place.command();
    command.args(["top", "--json"]);
    command.stdout(std::process::Stdio::piped());
    command.stderr(std::process::Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    out.read_line(&mut String::new()).unwrap();
    drop(out);
    let mut said = String::new();
    let mut errors = child.stderr.take().unwrap();
    errors.read_to_string(&mut said).unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(13));
    assert_eq!(said, "");
}

/// Slips say what to write.
#[test]
fn slips_of_top_are_explained() {
    let place = Place::new();
    place
        .run(&["top", "a:/x"])
        .assert_status(2)
        .assert_says("HOST:PORT");
    place.run(&["top", "--once", "--web"]).assert_status(2);
    place
        .run(&["top", "a:7"])
        .assert_status(2)
        .assert_says("no token");
    place
        .run(&["top", "--web=0.0.0.0:0"])
        .assert_status(2)
        .assert_says("ssh -L");
}
