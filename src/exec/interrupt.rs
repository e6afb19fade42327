//! Ctrl-C and SIGTERM: the first one stops what is going on in order, the next one ends the process.

use std::sync::Arc;

use parking_lot::Mutex;
use rustix::process::{Pid, Signal, getpgrp, getpid, kill_process, kill_process_group};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::child;

/// The exit code of a program that a person or the system stopped.
pub const INTERRUPTED: i32 = 130;

/// What a signal stops. Without it, a signal ends the process.
type Stop = Box<dyn FnOnce() + Send>;

/// Receives Ctrl-C and SIGTERM on a thread of its own. SIGTERM counts as Ctrl-C, since batch systems send it.
///
/// Once this is dropped, a signal ends the process.
pub struct Signals(Arc<Mutex<Option<Stop>>>);

impl Signals {
    /// Receives signals from now on. If that fails, they end the process, as they do by default.
    pub fn listen() -> Self {
        let current = Arc::<Mutex<Option<Stop>>>::default();
        let receive = receiver(Arc::clone(&current));
        _ = receive.and_then(|receive| std::thread::Builder::new().name("signals".into()).spawn(receive));
        Self(current)
    }

    /// The next signal calls `report` and cancels the token. The one after it ends the process.
    pub fn stop(&self, report: impl FnOnce() + Send + 'static) -> CancellationToken {
        let cancel = CancellationToken::new();
        let stopped = cancel.clone();
        let stop = move || {
            stopped.cancel();
            report();
        };
        *self.0.lock() = Some(Box::new(stop));
        cancel
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        *self.0.lock() = None;
    }
}

/// Registers for the signals, and returns the loop that receives them.
fn receiver(current: Arc<Mutex<Option<Stop>>>) -> std::io::Result<impl FnOnce()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let context = runtime.enter();
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    drop(context);
    Ok(move || {
        runtime.block_on(async {
            loop {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                }
                let stop = current.lock().take();
                match stop {
                    Some(stop) => stop(),
                    None => {
                        // Exiting loses nothing: only published results count, and rows are appended whole.
                        kill_children();
                        std::process::exit(INTERRUPTED);
                    }
                }
            }
        });
    })
}

/// Kills the programs that this process started, with their children: they may ignore gentler signals.
pub fn kill_children() {
    let items = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    for id in items.filter_map(|item| item.file_name().to_str()?.parse().ok()).filter_map(Pid::from_raw) {
        let process = child::stat(id.as_raw_pid()).filter(|process| process.parent == getpid().as_raw_pid());
        let Some(process) = process else { continue };
        // Either signal fails only if the process is gone already.
        match Pid::from_raw(process.group) {
            Some(group) if group != getpgrp() => _ = kill_process_group(group, Signal::KILL),
            _ => _ = kill_process(id, Signal::KILL),
        }
    }
}
