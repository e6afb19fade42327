//! Server-sent events that carry messages, with a limit on their size.

use std::borrow::Cow;

use futures::{Stream, StreamExt, future, stream};
use rmcp::{
    model::{RequestId, ServerJsonRpcMessage},
    transport::streamable_http_client::SseError,
};
use sse_stream::Sse;

use super::message::{self, Buffer, Incoming, RequestRate};

/// Bounds of the time after which a server wants its stream to be resumed, in milliseconds.
const RETRY_MS: (u64, u64) = (100, 10_000);

/// The events of a response to the request `id`. An answer that cannot be read, or does not arrive, becomes one that says
/// so.
pub(super) fn of_response(
    response: reqwest::Response,
    id: Option<RequestId>,
) -> impl Stream<Item = Result<Sse, SseError>> + Send + 'static {
    let state = (Box::pin(of(response)), Answers { id, ..Answers::default() });
    let events = stream::unfold(Some(state), |state| async {
        let (mut events, mut answers) = state?;
        Some(match events.next().await {
            Some(Ok(event)) => (answers.read(event).map(Ok), Some((events, answers))),
            None => (answers.broken_off().map(Ok), None),
            Some(Err(error)) => match answers.broken_off() {
                Some(event) => (Some(Ok(event)), None),
                None => (Some(Err(SseError::Body(Box::new(error)))), None),
            },
        })
    });
    events.filter_map(future::ready)
}

/// The events of a response.
pub(super) fn of(
    response: reqwest::Response,
) -> impl Stream<Item = Result<Event, reqwest::Error>> + Send + 'static {
    let events = stream::unfold(Some((response, Parser::default())), |state| async {
        let (mut response, mut parser) = state?;
        Some(match response.chunk().await {
            Ok(Some(bytes)) => {
                parser.push(&bytes);
                let events = std::mem::take(&mut parser.events);
                (events.into_iter().map(Ok).collect(), Some((response, parser)))
            }
            Ok(None) => (Vec::new(), None),
            Err(error) => (vec![Err(error)], None),
        })
    });
    events.map(stream::iter).flatten()
}

#[derive(Default)]
pub(super) struct Event {
    /// All but the data.
    fields: Sse,
    data: Option<Buffer>,
}

impl Event {
    /// The data, if the event is of another kind than `message`.
    pub(super) fn other(&self, kind: &str) -> Option<Cow<'_, str>> {
        let data = self.data.as_ref().filter(|_| self.fields.event.as_deref() == Some(kind))?;
        Some(String::from_utf8_lossy(data.bytes()))
    }

    pub(super) fn message(&self) -> Incoming {
        match (&self.data, self.fields.event.as_deref()) {
            (Some(data), None | Some("" | "message")) => data.read(),
            _ => Incoming::Noise,
        }
    }
}

/// What the response to one request has told.
#[derive(Default)]
struct Answers {
    /// The request, until it is answered.
    id: Option<RequestId>,
    is_resumable: bool,
    rate: RequestRate,
}

impl Answers {
    /// The event as rmcp reads it.
    fn read(&mut self, event: Event) -> Option<Sse> {
        self.is_resumable |= event.fields.id.is_some();
        let data = self.data(event.message());
        let event = Sse { data, ..event.fields };
        (event != Sse::default()).then_some(event)
    }

    fn data(&mut self, message: Incoming) -> Option<String> {
        let message = match message {
            Incoming::Message(ServerJsonRpcMessage::Request(_)) if !self.rate.allows() => return None,
            Incoming::Message(ServerJsonRpcMessage::Response(response))
                if self.is_of_another(&response.id) =>
            {
                return None;
            }
            Incoming::Message(ServerJsonRpcMessage::Error(error))
                if error.id.as_ref().is_some_and(|id| self.is_of_another(id)) =>
            {
                return None;
            }
            Incoming::Message(ServerJsonRpcMessage::Error(mut error)) => {
                error.id = error.id.or_else(|| self.id.clone());
                ServerJsonRpcMessage::Error(error)
            }
            Incoming::Message(message) => message,
            Incoming::Unreadable { id, reason } => {
                message::unreadable(id.or_else(|| self.id.clone())?, &reason)
            }
            Incoming::Noise => return None,
        };
        if matches!(message, ServerJsonRpcMessage::Response(_) | ServerJsonRpcMessage::Error(_)) {
            self.id = None;
        }
        serde_json::to_string(&message).ok()
    }

    /// Whether an answer is not the one that the response is for.
    fn is_of_another(&self, id: &RequestId) -> bool {
        self.id.as_ref().is_some_and(|asked| asked.to_string() != id.to_string())
    }

    /// Takes the place of an answer that can no longer arrive.
    fn broken_off(&mut self) -> Option<Sse> {
        let id = self.id.take().filter(|_| !self.is_resumable)?;
        Some(Sse::default().data(serde_json::to_string(&message::broken_off(id)).ok()?))
    }
}

/// See <https://html.spec.whatwg.org/multipage/server-sent-events.html>.
#[derive(Default)]
struct Parser {
    line: Buffer,
    /// The last byte was a carriage return, which ended a line.
    after_return: bool,
    event: Event,
    events: Vec<Event>,
}

impl Parser {
    fn push(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if std::mem::take(&mut self.after_return) && bytes[0] == b'\n' {
                bytes = &bytes[1..];
                continue;
            }
            let end = bytes.iter().position(|byte| matches!(byte, b'\n' | b'\r'));
            self.line.push(&bytes[..end.unwrap_or(bytes.len())]);
            let Some(end) = end else { return };
            self.after_return = bytes[end] == b'\r';
            bytes = &bytes[end + 1..];
            let line = std::mem::take(&mut self.line);
            self.end_line(&line);
        }
    }

    fn end_line(&mut self, line: &Buffer) {
        let text = line.bytes();
        if text.is_empty() {
            self.end_event();
            return;
        }
        let colon = text.iter().position(|byte| *byte == b':').unwrap_or(text.len());
        let start = colon + 1 + usize::from(text.get(colon + 1) == Some(&b' '));
        let value = || String::from_utf8_lossy(text.get(start..).unwrap_or_default()).into_owned();
        match &text[..colon] {
            b"data" => match &mut self.event.data {
                Some(data) => {
                    data.push(b"\n");
                    data.append(line, start);
                }
                None => self.event.data.insert(Buffer::default()).append(line, start),
            },
            b"event" => self.event.fields.event = Some(value()),
            b"id" => self.event.fields.id = Some(value()),
            b"retry" => {
                let asked = value().parse::<u64>().ok();
                self.event.fields.retry = asked.map(|retry| retry.clamp(RETRY_MS.0, RETRY_MS.1));
            }
            _ => {}
        }
    }

    fn end_event(&mut self) {
        let event = std::mem::take(&mut self.event);
        if event.data.is_some() || event.fields != Sse::default() {
            self.events.push(event);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The data of each event, whatever the sizes of the pieces in which it arrives.
    fn check(text: &[u8], expected: &[Option<&str>]) {
        for size in [1, 2, 7, text.len()] {
            let mut parser = Parser::default();
            text.chunks(size).for_each(|piece| parser.push(piece));
            let mut answers = Answers { id: Some(RequestId::Number(5)), ..Answers::default() };
            let found: Vec<Sse> = parser.events.into_iter().filter_map(|event| answers.read(event)).collect();
            let found: Vec<Option<&str>> = found.iter().map(|event| event.data.as_deref()).collect();
            assert_eq!(found, expected, "{}", String::from_utf8_lossy(text));
        }
    }

    #[test]
    fn messages_arrive_whole_in_any_line_style() {
        let note = r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#;
        for end in ["\n", "\r\n", "\r"] {
            let text = format!(": hello{end}event: message{end}data: {note}{end}{end}data:{note}{end}{end}x");
            check(text.as_bytes(), &[Some(note), Some(note)]);
        }
        check(
            b"data: {\"jsonrpc\":\"2.0\",\ndata: \"method\":\"ping\",\"id\":1}\n\n",
            &[Some(r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#)],
        );
        check(b"id: 7\nretry: 50\n\ndata: {\"jsonrpc\":\"2.0\"", &[None]);
    }

    #[test]
    fn a_stream_is_not_resumed_at_once_or_hours_later() {
        let mut parser = Parser::default();
        parser.push(b"retry: 0\n\nretry: 99999999\n\nretry: 3000\n\n");
        let waits: Vec<_> = parser.events.iter().map(|event| event.fields.retry.unwrap()).collect();
        assert_eq!(waits, [100, 10_000, 3000]);
    }

    #[test]
    fn requests_of_a_server_that_never_stops_asking_are_dropped() {
        let mut parser = Parser::default();
        let ping = b"data: {\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}\n\n";
        (0..10_000).for_each(|_| parser.push(ping));
        let mut answers = Answers { id: Some(RequestId::Number(5)), ..Answers::default() };
        let passed = parser.events.into_iter().filter_map(|event| answers.read(event)).count();
        assert!((message::REQUESTS_PER_SECOND as usize..10_000).contains(&passed), "{passed}");
    }

    #[test]
    fn an_unreadable_answer_is_one_to_the_request() {
        check(
            b"data: {\"jsonrpc\":\"2.0\",\"result\":{\n\n",
            &[Some(
                r#"{"jsonrpc":"2.0","id":5,"error":{"code":-2147483648,"message":"the server's answer cannot be read: it is not JSON: it ends in the middle at byte 27"}}"#,
            )],
        );
        check(
            b"data: {\"jsonrpc\":\"2.0\",\"id\":5,\"result\":{\"content\":\"\xFF\"}}\n\n",
            &[Some(
                "{\"jsonrpc\":\"2.0\",\"id\":5,\"result\":{\"content\":\"\u{FFFD}\",\"mcprl/unreadable\":\"a text is not UTF-8\"}}",
            )],
        );
        check(b"data: hello\n\n", &[]);
        check(b"data: {\"jsonrpc\":\"2.0\",\"id\":6,\"result\":{}}\n\n", &[]);
    }
}
