//! Messages over a child process's stdin and stdout, one per line.
//!
//! A server's further requests are ignored while [`UNREAD_REPLIES`] replies wait for it to read them.

use std::{
    future::Future,
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use rmcp::{
    RoleClient,
    model::{ClientJsonRpcMessage, ServerJsonRpcMessage},
    transport::Transport,
};
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader},
    sync::Mutex,
};
use tokio_util::sync::CancellationToken;

use super::{
    correlator::Correlator,
    descendants::Descendants,
    message::{Buffer, Incoming},
    process::Process,
};

/// Replies to the server that may wait to be written; its further requests are ignored.
const UNREAD_REPLIES: usize = 256;
/// How long a server's stdout is read after its process has ended: something that it started may keep it open.
const LAST_LINES: Duration = Duration::from_millis(500);

/// A transport over two byte streams. Dropping it closes the child's stdin.
pub(super) struct Lines<R, W> {
    /// Declared first: what the server started is listed before its stdin is closed.
    mark: Option<Arc<MarkOnDrop>>,
    output: Arc<Mutex<Output<R>>>,
    /// `None` once closed. rmcp drops an unfinished write only when it closes the connection, so no line is broken off before.
    input: Option<Arc<Mutex<W>>>,
    correlator: Correlator,
    replies: Arc<AtomicUsize>,
    /// Cancelled [`LAST_LINES`] after the process has ended.
    over: CancellationToken,
}

struct Output<R> {
    reader: BufReader<R>,
    line: Buffer,
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
            mark: Some(Arc::new(MarkOnDrop(process.descendants()))),
            output: Arc::new(Mutex::new(Output { reader: BufReader::new(output), line: Buffer::default() })),
            input: Some(Arc::new(Mutex::new(input))),
            correlator: Correlator::of_connection(),
            replies: Arc::default(),
            over,
        }
    }

    /// The same streams for another handshake, after this one has failed.
    pub(super) fn again(&self) -> Self {
        let Self { mark, output, input, correlator, replies, over } = self;
        Self {
            mark: mark.clone(),
            output: Arc::clone(output),
            input: input.clone(),
            correlator: correlator.clone(),
            replies: Arc::clone(replies),
            over: over.clone(),
        }
    }
}

impl<R: AsyncRead + Unpin> Output<R> {
    /// Reads to the end of a line; `None` at the end of the stream. Continues where a dropped call ended.
    async fn read_line(&mut self) -> Option<()> {
        loop {
            let available = self.reader.fill_buf().await.ok().filter(|available| !available.is_empty())?;
            let end = available.iter().position(|byte| *byte == b'\n');
            let taken = end.map_or(available.len(), |end| end + 1);
            self.line.push(&available[..taken]);
            self.reader.consume(taken);
            if end.is_some() {
                return Some(());
            }
        }
    }
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
        let (input, correlator, replies) =
            (self.input.clone(), self.correlator.clone(), Arc::clone(&self.replies));
        let is_reply = matches!(&message, ClientJsonRpcMessage::Response(_) | ClientJsonRpcMessage::Error(_));
        if is_reply {
            replies.fetch_add(1, Ordering::Relaxed);
        }
        let sent = async move {
            let closed = || io::Error::new(io::ErrorKind::BrokenPipe, "the connection is closed");
            let mut line = serde_json::to_vec(&message)?;
            line.push(b'\n');
            correlator.sent(&message);
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
        let mut output = self.output.lock().await;
        loop {
            tokio::select! {
                biased;
                line = output.read_line() => line?,
                () = self.over.cancelled() => return None,
            }
            let incoming = std::mem::take(&mut output.line).read();
            let is_request = matches!(incoming, Incoming::Message(ServerJsonRpcMessage::Request(_)));
            if is_request && self.replies.load(Ordering::Relaxed) >= UNREAD_REPLIES {
                continue;
            }
            if let Some(message) = self.correlator.received(incoming) {
                return Some(message);
            }
        }
    }

    async fn close(&mut self) -> io::Result<()> {
        self.mark = None;
        self.input = None;
        Ok(())
    }
}
