//! A question and an answer over two rails at once.

use ropewalk::{Error, MessageListener, MessageOptions, MessageSocket};

/// Sends a message there and back.
pub fn main() -> Result<(), Error> {
    let options = MessageOptions::default();
    let addresses = [([127, 0, 0, 1], 0).into(), ([127, 0, 0, 2], 0).into()];
    let listener = MessageListener::bind(&addresses, &options)?;
    let addresses = listener.addresses();
    let server = std::thread::spawn(move || -> Result<(), Error> {
        let socket = listener.accept()?;
        while let Some(message) = socket.receive(1 << 20)? {
            socket.send(&message)?;
        }
        Ok(())
    });
    let socket = MessageSocket::connect(&addresses, &options)?;
    socket.send(b"around and back")?;
    let answer = socket.receive(1 << 20)?.unwrap_or_default();
    println!("{}", String::from_utf8_lossy(&answer));
    socket.finish_sending()?;
    server.join().expect("the server does not panic")
}
