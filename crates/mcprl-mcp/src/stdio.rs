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
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    process::{ChildStdin, ChildStdout},
    sync::Mutex,
};
use tokio_util::sync::CancellationToken;

use super::{
    correlator::Correlator,
    descendants::Descendants,
    message::{Buffer, Incoming},
    noise::{self, Noise},
    process::{Pipes, Process},
};

/// Replies to the server that may wait to be written; its further requests are ignored.
const UNREAD_REPLIES: usize = 256;
/// How long a server's stdout is read after its process has ended: something that it started may keep it open.
const LAST_LINES: Duration = Duration::from_millis(500);

/// Dropping it closes the child's stdin. A clone has the same streams for another handshake, after the first has failed.
#[derive(Clone)]
pub(super) struct Lines {
    /// Declared first: what the server started is listed before its stdin is closed.
    mark: Option<Arc<MarkOnDrop>>,
    output: Arc<Mutex<Output>>,
    /// `None` once closed. rmcp drops an unfinished write only when it closes the connection, so no line is broken off before.
    input: Option<Arc<Mutex<ChildStdin>>>,
    correlator: Correlator,
    replies: Arc<AtomicUsize>,
    noise: Arc<parking_lot::Mutex<Noise>>,
    /// Cancelled [`LAST_LINES`] after the process has ended.
    over: CancellationToken,
}

struct Output {
    reader: BufReader<ChildStdout>,
    line: Buffer,
    noise: Arc<parking_lot::Mutex<Noise>>,
}

struct MarkOnDrop(Descendants);

impl Drop for MarkOnDrop {
    fn drop(&mut self) {
        self.0.mark();
    }
}

impl Lines {
    pub(super) fn new((output, input): Pipes, process: &Process) -> Self {
        let over = CancellationToken::new();
        let (ended, end) = (process.ended(), over.clone());
        tokio::spawn(async move {
            ended.await;
            tokio::time::sleep(LAST_LINES).await;
            end.cancel();
        });
        Self {
            mark: Some(Arc::new(MarkOnDrop(process.descendants.clone()))),
            output: Arc::new(Mutex::new(Output {
                reader: BufReader::new(output),
                line: Buffer::default(),
                noise: Arc::clone(&process.noise),
            })),
            input: Some(Arc::new(Mutex::new(input))),
            correlator: Correlator::of_connection(),
            replies: Arc::default(),
            noise: Arc::clone(&process.noise),
            over,
        }
    }
}

impl Output {
    /// Reads to the end of a line; `None` at the end of the stream. Continues where a dropped call ended.
    async fn read_line(&mut self) -> Option<()> {
        loop {
            let available = self.reader.fill_buf().await.ok().filter(|available| !available.is_empty())?;
            let end = available.iter().position(|byte| *byte == b'\n');
            let taken = end.map_or(available.len(), |end| end + 1);
            self.line.push(&available[..taken]);
            self.reader.consume(taken);
            let mut noise = self.noise.lock();
            noise.rest.clear();
            if end.is_some() {
                return Some(());
            }
            noise.rest = noise::start(self.line.bytes());
        }
    }
}

impl Transport<RoleClient> for Lines {
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
            let line = std::mem::take(&mut output.line);
            let incoming = line.read();
            if let (Incoming::Noise, [_, ..]) = (&incoming, line.bytes().trim_ascii()) {
                self.noise.lock().add(line.bytes());
            }
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
