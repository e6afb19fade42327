//! Places where a test can have the process die.
//!
//! `MCPRL_FAILPOINT=publish::renamed` makes the process kill itself, as `kill -9` would, when it first comes to that
//! place; `publish::renamed:3` when it comes there for the third time. Without the variable a place costs one load.
//!
//! | place | what is on disk |
//! |---|---|
//! | `run::folder` | a run's empty folder |
//! | `run::described` | its description, no journal |
//! | `journal::torn` | half of a journal's line |
//! | `work::begun` | the lease, an empty attempt |
//! | `rows::torn` | half of a row's frame |
//! | `rows::recorded` | one more row |
//! | `work::performed` | outputs as the stage wrote them |
//! | `publish::hashed` | one output, read-only, not yet in place |
//! | `publish::renamed` | one artifact without its seal |
//! | `commit::before` | all artifacts, no record |
//! | `commit::after` | the record; no word of it in the journal, rows not forgotten, newest key not noted |
//! | `work::linked` | everything; what waits for it not begun |
//! | `sync::synced` | a durable artifact without its seal |
//! | `fetch::published` | artifacts of another machine, no record |
//! | `push::torn` | half of a file beside the objects of a remote folder |
//! | `push::stored` | all blobs of a result in the remote, no record |

use std::sync::{
    OnceLock,
    atomic::{AtomicU32, Ordering},
};

struct Armed {
    place: String,
    left: AtomicU32,
}

/// Comes to a place. Dies there, if asked to.
pub fn failpoint(place: &str) {
    if reached(place) {
        die();
    }
}

/// Whether it is time to die at this place; for places that leave something half done first, and then [`die`].
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

/// Ends the process without a word to anyone.
pub fn die() {
    _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
}
