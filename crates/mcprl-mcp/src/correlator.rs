//! Matches what a server sends with the requests that wait for it, on every transport.
//!
//! | message | on a connection | in the response to one request | on a stream that is resumed |
//! |---|---|---|---|
//! | an answer that names a request under way | passed on | passed on | passed on |
//! | an answer that names another | passed on: rmcp refuses it | dropped | passed on |
//! | an error without an id | is for the only request under way, if there is one | the same | the same |
//! | an unreadable answer | is for the request that it names, or the only one under way | is for that request, if it still waits | is for the request that it names |
//! | a request | passed on, up to [`REQUESTS_PER_SECOND`]: rmcp keeps every request that it has not answered yet | the same | the same |
//! | a notification | passed on | passed on | passed on |

use std::{
    collections::HashSet,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use rmcp::model::{
    ClientJsonRpcMessage, ClientNotification, JsonRpcNotification, RequestId, ServerJsonRpcMessage,
};

use super::message::{Incoming, unreadable};

/// Requests of the server that are passed on within a second; more could not be replied to in time.
const REQUESTS_PER_SECOND: u32 = 100;

/// The requests that wait for an answer. Clones share them.
#[derive(Clone)]
pub(super) struct Correlator(Arc<Mutex<Waiting>>);

struct Waiting {
    requests: HashSet<RequestId>,
    carries: Carries,
    rate: RequestRate,
}

/// What may arrive.
#[derive(PartialEq, Eq)]
enum Carries {
    /// The answers to all requests that are sent.
    All,
    /// The answer to one request.
    One,
    /// Answers to requests that were sent before.
    Earlier,
}

impl Correlator {
    /// Of a connection.
    pub(super) fn of_connection() -> Self {
        Self::new(Carries::All, None)
    }

    /// Of the response to a request.
    pub(super) fn of_request(id: RequestId) -> Self {
        Self::new(Carries::One, Some(id))
    }

    /// Of a stream that is resumed, for the answer to this request if one is known.
    pub(super) fn of_resumed(id: Option<RequestId>) -> Self {
        Self::new(Carries::Earlier, id)
    }

    fn new(carries: Carries, id: Option<RequestId>) -> Self {
        let waiting = Waiting { requests: id.into_iter().collect(), carries, rate: RequestRate::default() };
        Self(Arc::new(Mutex::new(waiting)))
    }

    pub(super) fn sent(&self, message: &ClientJsonRpcMessage) {
        match message {
            ClientJsonRpcMessage::Request(request) => _ = self.0.lock().requests.insert(request.id.clone()),
            ClientJsonRpcMessage::Notification(JsonRpcNotification {
                notification: ClientNotification::CancelledNotification(cancelled),
                ..
            }) => {
                if let Some(id) = &cancelled.params.request_id {
                    self.0.lock().requests.remove(id);
                }
            }
            _ => {}
        }
    }

    /// The message for the client.
    pub(super) fn received(&self, incoming: Incoming) -> Option<ServerJsonRpcMessage> {
        let waiting = &mut *self.0.lock();
        match incoming {
            Incoming::Message(ServerJsonRpcMessage::Request(_)) if !waiting.rate.allows() => None,
            Incoming::Message(ServerJsonRpcMessage::Response(response)) => {
                let is_passed =
                    waiting.answered(Some(&response.id)).is_some() || waiting.carries == Carries::All;
                is_passed.then_some(ServerJsonRpcMessage::Response(response))
            }
            Incoming::Message(ServerJsonRpcMessage::Error(mut error)) => {
                let id = waiting.answered(error.id.as_ref());
                let is_of_another = id.is_none() && error.id.is_some() && waiting.carries == Carries::One;
                error.id = id.or(error.id);
                (!is_of_another).then_some(ServerJsonRpcMessage::Error(error))
            }
            Incoming::Message(message) => Some(message),
            Incoming::Unreadable { id, reason } => {
                // What stands for an id may be of the content that was cut.
                let id = id.filter(|_| waiting.carries != Carries::One);
                waiting.answered(id.as_ref()).map(|id| unreadable(id, &reason))
            }
            Incoming::Noise => None,
        }
    }
}

impl Waiting {
    /// The request that an answer is for: the one it names, or the only one under way.
    fn answered(&mut self, named: Option<&RequestId>) -> Option<RequestId> {
        let id = match named {
            None if self.requests.len() == 1 => self.requests.iter().next().cloned()?,
            None => return None,
            Some(id) if self.carries == Carries::Earlier => {
                self.requests.remove(&whole(id));
                return Some(id.clone());
            }
            Some(id) => whole(id),
        };
        self.requests.remove(&id).then_some(id)
    }
}

/// The id, of which some servers make a text.
pub(super) fn whole(id: &RequestId) -> RequestId {
    match id {
        RequestId::String(text) => {
            text.parse().map_or_else(|_| RequestId::String(text.clone()), RequestId::Number)
        }
        id => id.clone(),
    }
}

/// Limits how many requests of a server are passed on.
#[derive(Default)]
struct RequestRate {
    requests: u32,
    /// Since when they are counted.
    since: Option<Instant>,
}

impl RequestRate {
    /// Counts a request. Whether it is within the rate.
    fn allows(&mut self) -> bool {
        let is_over = |since: Instant| since.elapsed() >= Duration::from_secs(1);
        if self.since.is_none_or(is_over) {
            (self.since, self.requests) = (Some(Instant::now()), 0);
        }
        self.requests += 1;
        self.requests <= REQUESTS_PER_SECOND
    }
}

#[cfg(test)]
mod tests {
    use rmcp::model::ErrorData;
    use serde_json::{Value, json};

    use super::*;
    use crate::message::Buffer;

    fn read(message: &Value) -> Incoming {
        let mut buffer = Buffer::default();
        buffer.push(message.to_string().as_bytes());
        buffer.read()
    }

    fn request(id: i64) -> ClientJsonRpcMessage {
        serde_json::from_value(json!({"jsonrpc": "2.0", "id": id, "method": "ping"})).unwrap()
    }

    fn connection(requests: &[i64]) -> Correlator {
        let connection = Correlator::of_connection();
        requests.iter().for_each(|id| connection.sent(&request(*id)));
        connection
    }

    /// The request that the client gets an answer to: `?` for an answer to none, `-` for no answer.
    fn check(correlator: &Correlator, incoming: Incoming, expected: &str) {
        let id = match correlator.received(incoming) {
            Some(ServerJsonRpcMessage::Response(response)) => response.id.to_string(),
            Some(ServerJsonRpcMessage::Error(error)) => error.id.map_or("?".to_owned(), |id| id.to_string()),
            Some(other) => panic!("{other:?}"),
            None => "-".to_owned(),
        };
        assert_eq!(id, expected);
    }

    fn result(id: Value) -> Incoming {
        read(&json!({"jsonrpc": "2.0", "id": id, "result": {}}))
    }

    fn error(id: Option<i64>) -> Incoming {
        let error = ErrorData::internal_error("no", None);
        Incoming::Message(ServerJsonRpcMessage::error(error, id.map(RequestId::Number)))
    }

    fn broken(id: Option<i64>) -> Incoming {
        Incoming::Unreadable { id: id.map(RequestId::Number), reason: "it is not JSON".into() }
    }

    #[test]
    fn an_answer_without_an_id_is_for_the_only_request_under_way() {
        check(&connection(&[1]), error(None), "1");
        check(&connection(&[1]), broken(None), "1");
        check(&connection(&[1, 2]), error(None), "?");
        check(&connection(&[1, 2]), broken(None), "-");
        check(&Correlator::of_request(RequestId::Number(1)), error(None), "1");
        check(&Correlator::of_resumed(None), error(None), "?");
        check(&Correlator::of_resumed(None), broken(None), "-");
        let connection = connection(&[1, 2]);
        check(&connection, result(json!("2")), "2");
        check(&connection, broken(None), "1");
        check(&connection, broken(None), "-");
    }

    #[test]
    fn an_answer_to_another_request_is_dropped_where_one_is_waited_for() {
        let other = RequestId::Number(1);
        check(&Correlator::of_request(other.clone()), result(json!(2)), "-");
        check(&Correlator::of_request(other.clone()), error(Some(2)), "-");
        check(&Correlator::of_request(other.clone()), broken(Some(2)), "1");
        let response = Correlator::of_request(other);
        check(&response, result(json!(1)), "1");
        check(&response, result(json!(1)), "-");
        check(&connection(&[1]), result(json!(2)), "2");
        check(&connection(&[1]), broken(Some(2)), "-");
        check(&Correlator::of_resumed(None), broken(Some(2)), "2");
    }

    #[test]
    fn a_cancelled_request_waits_no_longer() {
        let connection = connection(&[1, 2]);
        let params = json!({"requestId": 1});
        let cancel = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params});
        connection.sent(&serde_json::from_value(cancel).unwrap());
        check(&connection, broken(None), "2");
    }

    #[test]
    fn requests_of_a_server_that_never_stops_asking_are_dropped() {
        let connection = connection(&[]);
        let ping = json!({"jsonrpc": "2.0", "id": 1, "method": "ping"});
        let passed = (0..10_000).filter(|_| connection.received(read(&ping)).is_some()).count();
        assert!((REQUESTS_PER_SECOND as usize..10_000).contains(&passed), "{passed}");
    }
}
