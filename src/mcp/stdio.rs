//! Messages over a child process's stdin and stdout, one per line.
//!
//! An answer that cannot be read ([`message`]) goes to the request that it names, or to the only one under way.
//! While [`UNREAD_REPLIES`] replies wait for the server to read them, its further requests are ignored.

use std::{
    collections::HashSet,
    future::Future,
    io,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use rmcp::{
    RoleClient,
    model::{ClientJsonRpcMessage, ClientNotification, RequestId, ServerJsonRpcMessage},
    transport::Transport,
};
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader},
    sync::Mutex as AsyncMutex,
};
use tokio_util::sync::CancellationToken;

use super::{
    descendants::Descendants,
    message::{self, Buffer, Incoming},
    process::Process,
};

/// Replies to the server that may wait to be written; its further requests are ignored.
const UNREAD_REPLIES: usize = 256;
/// How long a server's stdout is read after its process has ended: something that it started may keep it open.
const LAST_LINES: Duration = Duration::from_millis(500);

/// A transport over two byte streams. Dropping it closes the child's stdin.
pub(super) struct Lines<R, W> {
    /// Declared first: what the server started is listed before its stdin is closed.
    mark: Option<MarkOnDrop>,
    output: BufReader<R>,
    line: Buffer,
    /// `None` once closed. rmcp drops an unfinished write only when it closes the connection, so no line is broken off before.
    input: Option<Arc<AsyncMutex<W>>>,
    pending: Arc<Mutex<HashSet<RequestId>>>,
    replies: Arc<AtomicUsize>,
    /// Cancelled [`LAST_LINES`] after the process has ended.
    over: CancellationToken,
}

struct MarkOnDrop(Descendants);

impl Drop for MarkOnDrop {
    fn drop(&mut self) {
        self.0.mark();
    }
}

impl<R: AsyncRead + Unpin, W> Lines<R, W> {
    pub(super) fn new(output: R, input: W, process: &Process) -> Self {
        let over = CancellationToken::new();
        let (ended, end) = (process.ended(), over.clone());
        tokio::spawn(async move {
            ended.await;
            tokio::time::sleep(LAST_LINES).await;
            end.cancel();
        });
        Self {
            mark: Some(MarkOnDrop(process.descendants())),
            output: BufReader::new(output),
            line: Buffer::default(),
            input: Some(Arc::new(AsyncMutex::new(input))),
            pending: Arc::default(),
            replies: Arc::default(),
            over,
        }
    }

    /// Reads to the end of a line; `None` at the end of the stream. Continues where a dropped call ended.
    async fn read_line(&mut self) -> Option<()> {
        loop {
            let available = self.output.fill_buf().await.ok().filter(|available| !available.is_empty())?;
            let end = available.iter().position(|byte| *byte == b'\n');
            let taken = end.map_or(available.len(), |end| end + 1);
            self.line.push(&available[..taken]);
            self.output.consume(taken);
            if end.is_some() {
                return Some(());
            }
        }
    }
}

fn locked(pending: &Mutex<HashSet<RequestId>>) -> MutexGuard<'_, HashSet<RequestId>> {
    pending.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The request that an answer is for: the one it names, or the only one under way.
fn answered(pending: &mut HashSet<RequestId>, named: Option<&RequestId>) -> Option<RequestId> {
    let id = match named {
        None if pending.len() == 1 => pending.iter().next().cloned()?,
        None => return None,
        Some(RequestId::String(text)) => {
            text.parse().map_or_else(|_| RequestId::String(text.clone()), RequestId::Number)
        }
        Some(id) => id.clone(),
    };
    pending.remove(&id).then_some(id)
}

impl<R, W> Transport<RoleClient> for Lines<R, W>
where
    R: AsyncRead + Unpin + Send + 'static,
    W: AsyncWrite + Unpin + Send + 'static,
{
    type Error = io::Error;

    fn send(
        &mut self,
        message: ClientJsonRpcMessage,
    ) -> impl Future<Output = io::Result<()>> + Send + 'static {
        let (input, pending, replies) =
            (self.input.clone(), Arc::clone(&self.pending), Arc::clone(&self.replies));
        let is_reply = matches!(&message, ClientJsonRpcMessage::Response(_) | ClientJsonRpcMessage::Error(_));
        if is_reply {
            replies.fetch_add(1, Ordering::Relaxed);
        }
        let sent = async move {
            let closed = || io::Error::new(io::ErrorKind::BrokenPipe, "the connection is closed");
            let mut line = serde_json::to_vec(&message)?;
            line.push(b'\n');
            match &message {
                ClientJsonRpcMessage::Request(request) => {
                    locked(&pending).insert(request.id.clone());
                }
                ClientJsonRpcMessage::Notification(notification) => {
                    if let ClientNotification::CancelledNotification(cancelled) = &notification.notification
                        && let Some(id) = &cancelled.params.request_id
                    {
                        locked(&pending).remove(id);
                    }
                }
                _ => {}
            }
            let input = input.ok_or_else(closed)?;
            let mut input = input.lock().await;
            input.write_all(&line).await?;
            input.flush().await
        };
        async move {
            let result = sent.await;
            if is_reply {
                replies.fetch_sub(1, Ordering::Relaxed);
            }
            result
        }
    }

    async fn receive(&mut self) -> Option<ServerJsonRpcMessage> {
        loop {
            let over = self.over.clone();
            tokio::select! {
                biased;
                line = self.read_line() => line?,
                () = over.cancelled() => return None,
            }
            let incoming = std::mem::take(&mut self.line).read();
            let mut pending = locked(&self.pending);
            match incoming {
                Incoming::Message(ServerJsonRpcMessage::Response(response)) => {
                    answered(&mut pending, Some(&response.id));
                    return Some(ServerJsonRpcMessage::Response(response));
                }
                Incoming::Message(ServerJsonRpcMessage::Error(mut error)) => {
                    let id = answered(&mut pending, error.id.as_ref());
                    error.id = error.id.or(id);
                    return Some(ServerJsonRpcMessage::Error(error));
                }
                Incoming::Message(ServerJsonRpcMessage::Request(_))
                    if self.replies.load(Ordering::Relaxed) >= UNREAD_REPLIES => {}
                Incoming::Message(message) => return Some(message),
                Incoming::Unreadable { id, reason } => {
                    if let Some(id) = answered(&mut pending, id.as_ref()) {
                        return Some(message::unreadable(id, &reason));
                    }
                }
                Incoming::Noise => {}
            }
        }
    }

    async fn close(&mut self) -> io::Result<()> {
        self.mark = None;
        self.input = None;
        Ok(())
    }
}
