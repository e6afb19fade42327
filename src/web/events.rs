//! Server-sent events: tells the page that a run has changed.

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::response::{
    IntoResponse, Response,
    sse::{Event, KeepAlive, Sse},
};
use futures::stream;

use super::site::Site;

/// How often the journal is looked at.
const INTERVAL: Duration = Duration::from_millis(500);

/// An event at the start and whenever what is known of the run changes.
pub(super) fn events(site: Arc<Site>, run: String) -> Response {
    let changes = stream::unfold(None, move |before: Option<String>| {
        let (site, run) = (Arc::clone(&site), run.clone());
        async move {
            loop {
                if before.is_some() {
                    tokio::time::sleep(INTERVAL).await;
                }
                let (site, run) = (Arc::clone(&site), run.clone());
                let now = tokio::task::spawn_blocking(move || site.stamp(&run)).await.ok()?;
                if before.as_ref() != Some(&now) {
                    let event = Event::default().event("changed").data(&now);
                    return Some((Ok::<_, Infallible>(event), Some(now)));
                }
            }
        }
    });
    Sse::new(changes).keep_alive(KeepAlive::default()).into_response()
}
