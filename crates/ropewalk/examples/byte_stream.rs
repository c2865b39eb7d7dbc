//! A program that knows sockets, over two rails at once: what goes there comes back in upper case.

use std::io::{Read as _, Write as _};

use ropewalk::{ByteStream, ByteStreamListener, MessageOptions};

/// Sends a text there and back.
pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    let options = MessageOptions::default();
    let addresses = [([127, 0, 0, 1], 0).into(), ([127, 0, 0, 2], 0).into()];
    let listener = ByteStreamListener::bind(&addresses, &options)?;
    let addresses = listener.addresses();
    let server = std::thread::spawn(move || -> std::io::Result<()> {
        let mut stream = listener.accept().map_err(std::io::Error::other)?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        stream.write_all(text.to_uppercase().as_bytes())?;
        stream.close()
    });
    let mut stream = ByteStream::connect(&addresses, &options)?;
    stream.write_all(b"around and back")?;
    stream.shutdown()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    println!("{answer}");
    server.join().expect("the server does not panic")?;
    Ok(())
}
