//! Ctrl-C: the first one stops the stages, the second one ends the process.

use std::sync::Arc;

use rustix::process::{Pid, Signal, getpgrp, kill_process, kill_process_group};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::{Event, Listener};

const INTERRUPTED: i32 = 130;

/// Listens until the runtime ends. SIGTERM counts as Ctrl-C, since batch systems send it.
pub fn listen(cancel: CancellationToken, listener: Arc<dyn Listener>) {
    tokio::spawn(async move {
        let (Ok(mut interrupt), Ok(mut terminate)) =
            (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
        else {
            return;
        };
        loop {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            if cancel.is_cancelled() {
                // Exiting loses nothing: only published results count, and rows are appended whole.
                kill_children();
                std::process::exit(INTERRUPTED);
            }
            cancel.cancel();
            listener.event(&Event::Stopping);
        }
    });
}

/// Kills the programs that this process started, with their children: they may ignore gentler signals.
fn kill_children() {
    let items = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    for id in items.filter_map(|item| item.file_name().to_str()?.parse().ok()).filter_map(Pid::from_raw) {
        // Either signal fails only if the process is gone already.
        match group_of_child(id) {
            Some(group) if group != getpgrp() => _ = kill_process_group(group, Signal::KILL),
            Some(_) => _ = kill_process(id, Signal::KILL),
            None => {}
        }
    }
}

/// The process group of a process, if this one is its parent.
fn group_of_child(id: Pid) -> Option<Pid> {
    let text = std::fs::read_to_string(format!("/proc/{}/stat", id.as_raw_nonzero())).ok()?;
    // Fields after the name, which may contain anything: state, parent, group.
    let (_, fields) = text.rsplit_once(')')?;
    let mut fields = fields.split_whitespace().skip(1);
    let parent: u32 = fields.next()?.parse().ok()?;
    let group = fields.next()?.parse().ok().and_then(Pid::from_raw)?;
    (parent == std::process::id()).then_some(group)
}
