//! Message sockets in event loops.

use std::os::fd::AsFd;
use std::task::Poll;
use std::time::Duration;

use ropewalk::{Error, MessageListener, MessageOptions, MessageSocket};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Waits until it is readable.
fn wait(descriptor: &impl AsFd) {
    let mut polled = [PollFd::new(descriptor, PollFlags::IN)];
    let most = Timespec {
        tv_sec: 60,
        tv_nsec: 0,
    };
    assert_eq!(poll(&mut polled, Some(&most)).unwrap(), 1);
}

fn is_readable(descriptor: &impl AsFd) -> bool {
    let mut polled = [PollFd::new(descriptor, PollFlags::IN)];
    poll(&mut polled, Some(&Timespec::default())).unwrap() == 1
}

fn pair(options: &MessageOptions) -> (MessageSocket, MessageSocket) {
    let ends = [([127, 0, 0, 1], 0).into(), ([127, 0, 0, 2], 0).into()];
    let listener = MessageListener::bind(&ends, options).unwrap();
    assert!(!is_readable(&listener));
    assert!(listener.accept_for(Duration::ZERO).unwrap().is_none());
    let near = MessageSocket::connect(&listener.addresses(), options).unwrap();
    wait(&listener);
    let far = listener
        .accept_for(Duration::from_secs(60))
        .unwrap()
        .unwrap();
    assert!(listener.accept_for(Duration::ZERO).unwrap().is_none());
    assert!(!is_readable(&listener));
    (near, far)
}

/// The descriptor is readable while there is something to do, also for messages that are longer than the window, and at the end.
#[test]
fn a_descriptor_announces_messages() {
    let options = MessageOptions {
        window: 64 << 10,
        ..MessageOptions::default()
    };
    let (near, far) = pair(&options);
    assert!(far.poll_receive(100).unwrap().is_pending());
    let messages: Vec<Vec<u8>> = [0, 5, 3_000_000, 70_000]
        .iter()
        .map(|len| (0..*len).map(|at: u32| (at / 3) as u8).collect())
        .collect();
    let numbers: Vec<u64> = messages
        .iter()
        .map(|message| near.send_start(message.clone()).unwrap())
        .collect();
    for message in &messages {
        let received = loop {
            wait(&far);
            match far.poll_receive(3_000_000).unwrap() {
                Poll::Ready(received) => break received.unwrap(),
                Poll::Pending => {}
            }
        };
        assert!(received == *message);
    }
    near.finish_sending().unwrap();
    assert!(numbers.iter().all(|number| near.is_sent(*number)));
    loop {
        wait(&far);
        match far.poll_receive(1).unwrap() {
            Poll::Ready(end) => break assert!(end.is_none()),
            Poll::Pending => {}
        }
    }
    // It stays so.
    assert!(is_readable(&far));
    drop(near);
    assert!(matches!(far.send(b"x"), Err(Error::Peer(_))));
}

/// Threads receive into memory of their own, and wait as long as they say.
#[test]
fn memory_of_the_caller_takes_messages() {
    let (near, far) = pair(&MessageOptions::default());
    let mut space = [0; 10];
    let none = far.receive_into_for(&mut space, Duration::from_millis(1));
    assert!(none.unwrap().is_pending());
    near.send_start(vec![7; 4]).unwrap();
    let received = far.receive_into_for(&mut space, Duration::from_secs(60));
    assert_eq!(received.unwrap(), Poll::Ready(Some(4)));
    assert_eq!(space[..5], [7, 7, 7, 7, 0]);
    near.send_start(vec![8; 11]).unwrap();
    let error = far.receive_into(&mut space).unwrap_err();
    assert!(matches!(error, Error::Input(_)), "{error}");
    assert_eq!(far.receive(11).unwrap().unwrap(), [8; 11]);
    // A deadline of one call is none of the others.
    near.send_start(vec![9; 3]).unwrap();
    assert_eq!(far.receive_into(&mut space).unwrap(), Some(3));
}
