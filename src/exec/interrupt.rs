//! Ctrl-C: the first asks the stages to end, the second ends the process.

use std::sync::Arc;

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::{Event, Listener};

const INTERRUPTED: i32 = 130;

/// Listens until the runtime ends. SIGTERM counts as Ctrl-C, for that is what batch systems send.
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
                // Nothing is lost by it: only what is published counts, and rows are appended whole.
                std::process::exit(INTERRUPTED);
            }
            cancel.cancel();
            listener.event(&Event::Stopping);
        }
    });
}
