//! `top` on a terminal: draws once a second, and when its size changes, until a key or a signal ends it.

use std::process::ExitCode;

use anyhow::{Context as _, Result};
use ropewalk_proto::top::TopReport;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use super::gather::Gatherer;
use super::terminal::Terminal;
use super::{EVERY, layout};
use crate::screen::Signals;

/// The last line of the screen.
const HELP: &str = "q leaves";

/// Shows what the gatherer finds until q, Ctrl-C or the end of the input.
pub(super) async fn show(gatherer: Gatherer) -> Result<ExitCode> {
    let mut signals = Signals::listen()?;
    let resized = signal(SignalKind::window_change());
    let mut resized = resized.context("cannot listen for changes of the window")?;
    // Looking may take long, where a process does not answer; keys and signals do not wait for that.
    let (found, mut looks) = mpsc::channel(1);
    let looking = tokio::spawn(look_on(gatherer, found));
    let terminal = Terminal::enter()?;
    let mut keys = terminal.keys();
    let mut report = None;
    loop {
        tokio::select! {
            look = looks.recv() => match look {
                Some(look) => report = Some(look),
                None => break,
            },
            _ = resized.recv() => {}
            key = keys.recv() => match key {
                Some(b'q' | b'Q') | None => break,
                // Drawn again, as by any key.
                Some(_) => {}
            },
            _ = signals.next() => break,
        }
        if let Some(report) = &report {
            draw(&terminal, report)?;
        }
    }
    looking.abort();
    Ok(ExitCode::SUCCESS)
}

async fn look_on(mut gatherer: Gatherer, found: mpsc::Sender<TopReport>) {
    loop {
        let report = gatherer.look().await;
        if found.send(report).await.is_err() {
            return;
        }
        tokio::time::sleep(EVERY).await;
    }
}

fn draw(terminal: &Terminal, report: &TopReport) -> Result<()> {
    let (width, height) = terminal.size();
    let mut lines = layout::lines(report, width, height.saturating_sub(1));
    if height > 1 {
        lines.resize(height - 1, String::new());
        lines.push(HELP.chars().take(width).collect());
    }
    terminal.draw(&lines)
}
