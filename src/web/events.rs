//! Server-sent events: tells the page that a run has changed, and how far its running stages are.

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::response::{
    IntoResponse, Response,
    sse::{Event, KeepAlive, Sse},
};
use futures::stream;
use serde_json::{Value, json};

use super::site::Site;
use crate::progress::{Progress, now_ms};

/// How often the run is looked at.
const INTERVAL: Duration = Duration::from_millis(500);

/// What was last sent.
#[derive(Default)]
struct Sent {
    stamp: Option<String>,
    progress: Vec<Progress>,
}

/// An event `changed` at the start and whenever what is known of the run changes, and an event `progress` whenever its running
/// stages have advanced.
pub(super) fn events(site: Arc<Site>, run: String) -> Response {
    let changes = stream::unfold(Sent::default(), move |mut sent: Sent| {
        let (site, run) = (Arc::clone(&site), run.clone());
        async move {
            loop {
                if sent.stamp.is_some() {
                    tokio::time::sleep(INTERVAL).await;
                }
                let (site, run) = (Arc::clone(&site), run.clone());
                let look = move || (site.stamp(&run), site.progress(&run));
                let (stamp, progress) = tokio::task::spawn_blocking(look).await.ok()?;
                if sent.stamp.as_ref() != Some(&stamp) {
                    let event = Event::default().event("changed").data(&stamp);
                    sent.stamp = Some(stamp);
                    return Some((Ok::<_, Infallible>(event), sent));
                }
                if sent.progress != progress {
                    let shown = Value::from_iter(progress.iter().map(shown));
                    sent.progress = progress;
                    return Some((Ok(Event::default().event("progress").data(shown.to_string())), sent));
                }
            }
        }
    });
    Sse::new(changes).keep_alive(KeepAlive::default()).into_response()
}

fn shown(progress: &Progress) -> Value {
    let Progress { stage, phase, status, .. } = progress;
    json!({
        "stage": stage,
        "phase": phase.name,
        "done": phase.done,
        "units": phase.units,
        "rate": phase.rate(),
        "left": progress.left(now_ms()).map(|left| left.as_secs_f64()),
        "status": status,
    })
}
