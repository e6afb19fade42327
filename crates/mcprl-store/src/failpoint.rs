//! Points where a test can kill the process.
//!
//! `MCPRL_FAILPOINT=publish::renamed` makes the process kill itself, as `kill -9` would, when it first
//! reaches that point. `publish::renamed:3` kills it the third time. Without the variable a failpoint costs
//! one load.
//!
//! | failpoint | what is on disk |
//! |---|---|
//! | `run::folder` | a run's empty folder |
//! | `run::described` | its description, no journal |
//! | `journal::torn` | half of a journal's line |
//! | `runner::begun` | the lease, an empty work folder |
//! | `rows::torn` | half of a row's frame |
//! | `rows::recorded` | one more row |
//! | `rows::checkpoint` | another checkpoint |
//! | `runner::performed` | outputs as the stage wrote them |
//! | `publish::hashed` | one output, read-only, not yet in place |
//! | `publish::renamed` | one artifact without its seal |
//! | `commit::before` | all artifacts, no record |
//! | `commit::after` | the record; no journal entry, rows not deleted, newest key not saved |
//! | `runner::linked` | everything; dependent stages not started |
//! | `sync::synced` | a durable artifact without its seal |
//! | `fetch::published` | artifacts of another machine, no record |
//! | `push::torn` | the beginning of a temporary file in a remote folder |
//! | `push::stored` | all blobs of a result in the remote, no record |

use std::sync::{
    OnceLock,
    atomic::{AtomicU32, Ordering},
};

struct Armed {
    place: String,
    left: AtomicU32,
}

/// Kills the process if this failpoint is armed and due.
pub fn failpoint(place: &str) {
    if reached(place) {
        die();
    }
}

/// Whether this failpoint is due. For callers that leave something half done first, and then call [`die`].
pub fn reached(place: &str) -> bool {
    static ARMED: OnceLock<Option<Armed>> = OnceLock::new();
    let armed = ARMED.get_or_init(|| {
        let text = std::env::var("MCPRL_FAILPOINT").ok()?;
        let counted = text.rsplit_once(':').and_then(|(place, count)| Some((place, count.parse().ok()?)));
        let (place, count) = counted.unwrap_or((text.as_str(), 1));
        Some(Armed { place: place.to_owned(), left: AtomicU32::new(count) })
    });
    let Some(armed) = armed.as_ref().filter(|armed| armed.place == place) else { return false };
    armed.left.fetch_sub(1, Ordering::Relaxed) == 1
}

/// Kills the process without cleanup.
pub fn die() {
    _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
}
