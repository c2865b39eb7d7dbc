//! The terminal of `top`: a screen of its own, keys one by one, and everything as it was before at the end.

use std::io::{IsTerminal as _, Read as _, Write as _};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetwinsize, tcsetattr,
};
use tokio::sync::mpsc;

/// Another screen than the shell's, no cursor, no line that goes on in the next.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[?7l";

/// The opposite of it.
const LEAVE: &str = "\x1b[?7h\x1b[?25h\x1b[?1049l";

/// What a terminal has that does not say its size.
const SIZE: (usize, usize) = (80, 24);

/// What is shown last may wait so long for a terminal that is not read.
const LEAVE_MAX: Duration = Duration::from_secs(1);

/// The terminal on standard output, until this is dropped. A thread writes to it: one that is not read holds neither keys nor signals.
pub(super) struct Terminal {
    // None while it is dropped.
    screens: Option<SyncSender<String>>,
    // Nothing is said on it: it ends with the thread.
    left: Receiver<()>,
    // Of standard input, where it is a terminal.
    before: Option<Termios>,
}

impl Terminal {
    /// Takes the screen, and has keys read one by one, without showing them. Ctrl-C stays a signal; Ctrl-Z does nothing, since a stopped
    /// command would leave its screen behind.
    pub fn enter() -> Result<Self> {
        let input = std::io::stdin();
        let before = match input.is_terminal() {
            true => Some(tcgetattr(&input).context("the terminal cannot be used")?),
            false => None,
        };
        if let Some(before) = &before {
            let mut now = before.clone();
            now.local_modes
                .remove(LocalModes::ICANON | LocalModes::ECHO);
            now.special_codes[SpecialCodeIndex::VSUSP] = 0;
            now.special_codes[SpecialCodeIndex::VMIN] = 1;
            now.special_codes[SpecialCodeIndex::VTIME] = 0;
            let set = tcsetattr(&input, OptionalActions::Now, &now);
            set.context("the terminal cannot be used")?;
        }
        // From here on it is left as it was found.
        let (screens, shown) = sync_channel(1);
        let (leaving, left) = sync_channel(0);
        let terminal = Self {
            screens: Some(screens),
            left,
            before,
        };
        let show = move || {
            // Dropped when all is written.
            let _leaving: SyncSender<()> = leaving;
            let written =
                write(ENTER).and_then(|()| shown.iter().try_for_each(|text: String| write(&text)));
            if written.is_ok() {
                let _ = write(LEAVE);
            }
        };
        let thread = std::thread::Builder::new().name("screen".into());
        thread.spawn(show).context("cannot start a thread")?;
        Ok(terminal)
    }

    /// Columns and lines.
    pub fn size(&self) -> (usize, usize) {
        let size = tcgetwinsize(std::io::stdout());
        let size = size.map(|size| (usize::from(size.ws_col), usize::from(size.ws_row)));
        size.ok()
            .filter(|(width, height)| *width > 0 && *height > 0)
            .unwrap_or(SIZE)
    }

    /// Shows these lines and nothing else; not where the terminal has not taken those before: the next ones are newer.
    pub fn draw(&self, lines: &[String]) -> Result<()> {
        let mut text = String::from("\x1b[H");
        for (at, line) in lines.iter().enumerate() {
            text += if at == 0 { "" } else { "\r\n" };
            text += line;
            // What is left of the line that was there.
            text += "\x1b[K";
        }
        text += "\x1b[J";
        let sent = self.screens.as_ref().map(|screens| screens.try_send(text));
        if matches!(sent, Some(Err(TrySendError::Disconnected(_)))) {
            bail!("cannot write to the terminal");
        }
        Ok(())
    }

    /// Keys as they are pressed; the end of input is the end of them. Without a terminal to read there are none.
    pub fn keys(&self) -> mpsc::UnboundedReceiver<u8> {
        let (pressed, keys) = mpsc::unbounded_channel();
        if self.before.is_none() {
            // Kept for good, so that the end of the keys is not that of the input.
            std::mem::forget(pressed);
            return keys;
        }
        let read = move || {
            let mut input = std::io::stdin().lock();
            let mut key = [0];
            while let Ok(1) = input.read(&mut key) {
                if pressed.send(key[0]).is_err() {
                    break;
                }
            }
        };
        // Without it Ctrl-C leaves. It ends with the process.
        let _ = std::thread::Builder::new().name("keys".into()).spawn(read);
        keys
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.screens = None;
        let _ = self.left.recv_timeout(LEAVE_MAX);
        if let Some(before) = &self.before {
            let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, before);
        }
    }
}

fn write(text: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}
