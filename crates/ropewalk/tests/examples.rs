//! Every example runs to its end.

#[path = "../examples/agent.rs"]
mod agent;
#[path = "../examples/buffers.rs"]
mod buffers;
#[path = "../examples/byte_stream.rs"]
mod byte_stream;
#[path = "../examples/event_loop.rs"]
mod event_loop;
#[path = "../examples/message.rs"]
mod message;
#[path = "../examples/plan.rs"]
mod plan;
#[path = "../examples/region.rs"]
mod region;
#[path = "../examples/rows.rs"]
mod rows;
#[path = "../examples/transfer.rs"]
mod transfer;

use ropewalk::{AgentOptions, ByteRate, Error, ErrorKind, MessageOptions, Place, Transfer};

/// An agent starts and stops.
#[test]
fn agent_runs() {
    agent::main().unwrap();
}

/// A message goes there and back.
#[test]
fn message_runs() {
    message::main().unwrap();
}

/// A text goes there and back.
#[test]
fn byte_stream_runs() {
    byte_stream::main().unwrap();
}

/// A plan is printed.
#[test]
fn plan_runs() {
    plan::main().unwrap();
}

/// A folder is copied.
#[test]
fn transfer_runs() {
    transfer::main().unwrap();
}

/// A region over two nodes is read, written and waited for.
#[test]
fn region_runs() {
    region::main().unwrap();
}

/// The rows of Figure 2 are moved.
#[test]
fn rows_run() {
    rows::main().unwrap();
}

/// An array is written to a file and read back.
#[test]
fn buffers_run() {
    buffers::main().unwrap();
}

/// Two transfers run in one thread.
#[test]
fn event_loop_runs() {
    event_loop::main().unwrap();
}

/// Errors say who must act, and those of transfers carry the report.
#[test]
fn errors_name_who_must_act() {
    let error = ropewalk::plan("writer a:1 /data 0 0-9 up=fast", ByteRate(1)).unwrap_err();
    assert!(matches!(&error, Error::Input(fault) if fault.kind == Some(ErrorKind::Specification)));
    let folder = std::env::temp_dir();
    let options = AgentOptions {
        listen: vec![([192, 0, 2, 1], 0).into()],
        token: [1; 32],
        roots: vec![(folder.clone(), false)],
    };
    let error = ropewalk::Agent::start(options).unwrap_err();
    assert!(matches!(error, Error::Host(_)), "{error}");
    let closed = ([127, 0, 0, 1], 1).into();
    let error = ropewalk::MessageSocket::connect(&[closed], &MessageOptions::default());
    assert!(error.unwrap_err().is_retryable());
    let transfer = Transfer::new()
        .from(Place::at_agent("127.0.0.1", 1, &folder))
        .to(Place::at_agent("127.0.0.1", 2, &folder))
        .token([1; 32]);
    let error = transfer.run().unwrap_err();
    let Error::Network(fault) = &error else {
        panic!("{error:?}");
    };
    assert_eq!(fault.kind, Some(ErrorKind::Unreachable));
    assert!(fault.report.is_some());
}
