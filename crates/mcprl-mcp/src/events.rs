//! Server-sent events that carry messages, with a limit on their size.

use std::borrow::Cow;

use futures::{Stream, StreamExt, future, stream};
use rmcp::{model::ServerJsonRpcMessage, transport::streamable_http_client::SseError};
use sse_stream::Sse;

use super::{
    message::{self, Buffer, Incoming},
    unheard::Awaited,
};

/// Bounds of the time after which a server wants its stream to be resumed, in milliseconds.
const RETRY_MS: (u64, u64) = (100, 10_000);

/// The events of the response to a request, or of a resumed stream. An answer that cannot be read, or does not arrive,
/// becomes one that says so.
pub(super) fn of_response(
    response: reqwest::Response,
    awaited: Awaited,
) -> impl Stream<Item = Result<Sse, SseError>> + Send + 'static {
    let state = (Box::pin(of(response)), awaited);
    let events = stream::unfold(Some(state), |state| async {
        let (mut events, mut awaited) = state?;
        let error = match events.next().await {
            Some(Ok(event)) => {
                if let Some(id) = &event.fields.id {
                    awaited.last_event = Some(id.clone());
                }
                let message = awaited.received(event.message());
                let event = event.with(message.as_ref());
                return Some((event.map(Ok), Some((events, awaited))));
            }
            Some(Err(error)) => Some(Err(SseError::Body(Box::new(error)))),
            None => None,
        };
        // Takes the place of an answer that can no longer arrive.
        let broken_off = awaited.end().map(message::broken_off);
        Some((broken_off.map(|message| Ok(Sse::default().data(text(&message)))).or(error), None))
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

    /// The event as rmcp reads it, with this message.
    fn with(self, message: Option<&ServerJsonRpcMessage>) -> Option<Sse> {
        let event = Sse { data: message.map(text), ..self.fields };
        (event != Sse::default()).then_some(event)
    }
}

fn text(message: &ServerJsonRpcMessage) -> String {
    serde_json::to_string(message).unwrap_or_default()
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
    use rmcp::model::RequestId;

    use super::*;
    use crate::correlator::Correlator;

    /// The data of each event, whatever the sizes of the pieces in which it arrives.
    fn check(text: &[u8], expected: &[Option<&str>]) {
        for size in [1, 2, 7, text.len()] {
            let mut parser = Parser::default();
            text.chunks(size).for_each(|piece| parser.push(piece));
            let correlator = Correlator::of_request(RequestId::Number(5));
            let events = parser.events.into_iter();
            let read = |event: Event| {
                let message = correlator.received(event.message());
                event.with(message.as_ref())
            };
            let found: Vec<Sse> = events.filter_map(read).collect();
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
        // What stands behind the last `"id":` is not its id.
        check(
            b"data: {\"jsonrpc\":\"2.0\",\"result\":{\"row\":{\"id\":7\n\n",
            &[Some(
                r#"{"jsonrpc":"2.0","id":5,"error":{"code":-2147483648,"message":"the server's answer cannot be read: it is not JSON: it ends in the middle at byte 40"}}"#,
            )],
        );
        check(b"data: hello\n\n", &[]);
        check(b"data: {\"jsonrpc\":\"2.0\",\"id\":6,\"result\":{}}\n\n", &[]);
    }
}
