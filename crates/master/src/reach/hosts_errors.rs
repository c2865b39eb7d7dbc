//! What hosts write to their standard error, on that of this program: by a thread of its own, so that a reader that stops reading holds up
//! nothing else, and one that is gone, or a full disk, ends nothing.

use std::io::Write;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// Bytes that wait at most; what is beyond is left out.
const WAITING_MAX: usize = 256 << 10;

/// A caller waits for so long until its lines are written, so that they are where they belong among others; not while a reader is late.
const WRITE_TIME: Duration = Duration::from_millis(200);

/// At the end of the program a reader has so long for the rest.
const LAST_TIME: Duration = Duration::from_secs(1);

#[derive(Default)]
struct Waiting {
    text: String,
    /// Lines that were left out since.
    left_out: u64,
    /// How often something was added, and of these how many are written.
    added: u64,
    written: u64,
    /// Writing takes long: no caller waits for it.
    is_late: bool,
}

#[derive(Default)]
struct Writer {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

impl Writer {
    /// Takes lines, and waits a moment until they are written.
    fn put(&self, text: &str) {
        let mut waiting = self.waiting.lock();
        if waiting.text.len() + text.len() > WAITING_MAX {
            waiting.left_out += text.lines().count() as u64;
            return;
        }
        waiting.text.push_str(text);
        waiting.added += 1;
        let number = waiting.added;
        self.changed.notify_all();
        let until = Instant::now() + WRITE_TIME;
        while waiting.written < number && !waiting.is_late {
            waiting.is_late = self.changed.wait_until(&mut waiting, until).timed_out();
        }
    }

    /// Waits until all is written, or until then.
    fn flush(&self, until: Instant) {
        let mut waiting = self.waiting.lock();
        while waiting.written < waiting.added {
            if self.changed.wait_until(&mut waiting, until).timed_out() {
                return;
            }
        }
    }

    /// Writes what there is, once there is something.
    fn write_next(&self, out: &mut impl Write) {
        let mut waiting = self.waiting.lock();
        while waiting.text.is_empty() {
            self.changed.wait(&mut waiting);
        }
        let mut text = std::mem::take(&mut waiting.text);
        let number = waiting.added;
        match std::mem::take(&mut waiting.left_out) {
            0 => {}
            lines => text.push_str(&format!("{lines} lines of hosts were left out here\n")),
        }
        drop(waiting);
        // Without a reader, or space for them, lines are lost, and nothing else.
        let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
        let mut waiting = self.waiting.lock();
        waiting.written = number;
        waiting.is_late &= !waiting.text.is_empty();
        self.changed.notify_all();
    }
}

/// The writer to standard error, once something was shown; none where the system has no thread for it.
static WRITER: OnceLock<Option<Arc<Writer>>> = OnceLock::new();

fn start() -> Option<Arc<Writer>> {
    let writer = Arc::new(Writer::default());
    let own = writer.clone();
    let write = move || {
        loop {
            own.write_next(&mut std::io::stderr());
        }
    };
    let thread = thread::Builder::new().name("hosts' errors".into());
    thread.spawn(write).is_ok().then_some(writer)
}

/// Waits a moment until all that hosts wrote is shown: a program calls it before it ends.
pub fn flush_hosts_errors() {
    if let Some(writer) = WRITER.get().and_then(Option::as_ref) {
        writer.flush(Instant::now() + LAST_TIME);
    }
}

/// Shows what a host says, line by line; what would act on the terminal is written out.
pub(super) fn show(text: &[u8]) {
    let text = harmless(text);
    match WRITER.get_or_init(start) {
        Some(writer) => writer.put(&text),
        None => drop(std::io::stderr().write_all(text.as_bytes())),
    }
}

fn harmless(text: &[u8]) -> String {
    let is_harmful = |letter: char| letter.is_control() && letter != '\t';
    let mut shown = String::new();
    for line in String::from_utf8_lossy(text).lines() {
        for letter in line.trim_end_matches('\r').chars() {
            match is_harmful(letter) {
                true => shown.extend(letter.escape_default()),
                false => shown.push(letter),
            }
        }
        shown.push('\n');
    }
    shown
}

#[cfg(test)]
mod tests {
    use std::io::{Error, Result};
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    /// Takes text only when it may.
    struct Slow {
        may: Receiver<()>,
        text: Sender<String>,
    }

    impl Write for Slow {
        fn write(&mut self, text: &[u8]) -> Result<usize> {
            let _ = self.may.recv();
            let _ = self.text.send(String::from_utf8_lossy(text).into_owned());
            Ok(text.len())
        }

        fn flush(&mut self) -> Result<()> {
            Ok(())
        }
    }

    fn start(mut out: impl Write + Send + 'static) -> Arc<Writer> {
        let writer = Arc::new(Writer::default());
        let own = writer.clone();
        thread::spawn(move || {
            loop {
                own.write_next(&mut out);
            }
        });
        writer
    }

    /// A reader that takes nothing holds up no caller; what has no space is left out and counted, and the rest is shown in order.
    #[test]
    fn a_reader_that_stops_holds_up_nothing() {
        let (allow, may) = channel();
        let (text, shown) = channel();
        let writer = start(Slow { may, text });
        writer.put("first\n");
        let line = format!("{}\n", "x".repeat(999));
        for _ in 0..WAITING_MAX / 1000 + 7 {
            writer.put(&line);
        }
        assert!(writer.waiting.lock().text.len() <= WAITING_MAX);
        drop(allow);
        assert_eq!(shown.recv().unwrap(), "first\n");
        let rest = shown.recv().unwrap();
        assert!(rest.starts_with("xxx"), "{rest:.20}");
        let end = rest.lines().last().unwrap();
        assert!(end.ends_with("lines of hosts were left out here"), "{end}");
        writer.put("last\n");
        writer.flush(Instant::now() + LAST_TIME);
        assert_eq!(shown.try_recv().unwrap(), "last\n");
    }

    /// Where nothing can be written callers go on.
    #[test]
    fn an_error_is_no_end() {
        struct Full(Sender<()>);
        impl Write for Full {
            fn write(&mut self, _: &[u8]) -> Result<usize> {
                let _ = self.0.send(());
                Err(Error::other("no space"))
            }
            fn flush(&mut self) -> Result<()> {
                Ok(())
            }
        }
        let (tried, tries) = channel();
        let writer = start(Full(tried));
        for _ in 0..2 {
            writer.put("lost\n");
            tries.recv().unwrap();
        }
    }

    #[test]
    fn what_acts_on_the_terminal_is_written_out() {
        assert_eq!(harmless(b"a\tb\x1b[2J\r\nc"), "a\tb\\u{1b}[2J\nc\n");
    }
}
