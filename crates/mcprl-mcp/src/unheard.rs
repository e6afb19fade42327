//! Requests over HTTP that wait for their answer elsewhere than in the response to them.
//!
//! A server may take a request with an empty 202, or end the response's stream before the answer. The answer can then come by another stream
//! alone. If it does not, the transport has failed, and not the tool: what comes in its place, a timeout or an error of
//! rmcp's making, is no answer.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use rmcp::model::{RequestId, ServerJsonRpcMessage};

use super::{
    correlator::{Correlator, whole},
    message::Incoming,
};

/// Those of one connection. Clones share them.
#[derive(Clone, Default)]
pub(super) struct Unheard(Arc<Mutex<HashMap<RequestId, Waits>>>);

/// Where a request waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Waits {
    /// The response's stream is open.
    Stream,
    /// For another stream: the one that resumes its own behind this event, or that of the connection.
    Elsewhere(Option<String>),
}

impl Unheard {
    pub(super) fn insert(&self, id: RequestId, waits: Waits) {
        self.0.lock().insert(id, waits);
    }

    pub(super) fn remove(&self, id: &RequestId) -> Option<Waits> {
        self.0.lock().remove(id)
    }

    /// The request whose stream is resumed behind this event.
    pub(super) fn resumed(&self, event: &str) -> Option<RequestId> {
        let is_last = |waits: &Waits| matches!(waits, Waits::Elsewhere(Some(last)) if last == event);
        self.0.lock().iter().find(|(_, waits)| is_last(waits)).map(|(id, _)| id.clone())
    }
}

/// An open stream that is to bring an answer.
pub(super) struct Awaited {
    correlator: Correlator,
    pub(super) last_event: Option<String>,
    id: Option<RequestId>,
    unheard: Unheard,
}

impl Awaited {
    /// In the response to a request; behind an event, in place of an earlier one.
    pub(super) fn new(id: Option<RequestId>, last_event: Option<String>, unheard: &Unheard) -> Self {
        if let Some(id) = &id {
            unheard.insert(id.clone(), Waits::Stream);
        }
        let correlator = match (&id, &last_event) {
            (Some(id), None) => Correlator::of_request(id.clone()),
            _ => Correlator::of_resumed(id.clone()),
        };
        Self { correlator, last_event, id, unheard: unheard.clone() }
    }

    /// The message for the client. The request that it answers waits no longer.
    pub(super) fn received(&mut self, incoming: Incoming) -> Option<ServerJsonRpcMessage> {
        let message = self.correlator.received(incoming)?;
        let answered = match &message {
            ServerJsonRpcMessage::Response(response) => Some(&response.id),
            ServerJsonRpcMessage::Error(error) => error.id.as_ref(),
            _ => None,
        };
        if let Some(answered) = answered.map(whole) {
            self.unheard.remove(&answered);
            self.id.take_if(|id| *id == answered);
        }
        Some(message)
    }

    /// The stream has ended. Returns the request that waits for it, if nothing can take its place.
    pub(super) fn end(&mut self) -> Option<RequestId> {
        let id = self.id.take()?;
        if self.last_event.is_none() {
            return Some(id);
        }
        self.unheard.insert(id, Waits::Elsewhere(self.last_event.take()));
        None
    }
}
