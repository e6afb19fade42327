//! Messages over a child process's stdin and stdout, one per line.
//!
//! An answer that cannot be read goes to the request that it names, or to the only one under way ([`Pending`]).

use std::{future::Future, io, sync::Arc};

use rmcp::{
    RoleClient,
    model::{ClientJsonRpcMessage, ServerJsonRpcMessage},
    transport::Transport,
};
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader},
    sync::{Mutex, mpsc, oneshot},
};

use super::{
    descendants::Descendants,
    message::{Buffer, Pending},
};

/// Lines that wait to be written.
const WAITING_LINES: usize = 16;

/// A transport over two byte streams. Dropping it closes the child's stdin.
pub(super) struct Lines<R> {
    /// Declared first: what the server started is listed before its stdin is closed.
    mark: Option<Arc<MarkOnDrop>>,
    output: Arc<Mutex<Output<R>>>,
    /// `None` once closed.
    input: Option<mpsc::Sender<Outgoing>>,
    pending: Pending,
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

struct Outgoing {
    line: Vec<u8>,
    written: oneshot::Sender<io::Result<()>>,
}

impl<R: AsyncRead + Unpin> Lines<R> {
    pub(super) fn new(
        output: R,
        input: impl AsyncWrite + Unpin + Send + 'static,
        descendants: Descendants,
    ) -> Self {
        let (sender, lines) = mpsc::channel(WAITING_LINES);
        tokio::spawn(write(input, lines));
        Self {
            mark: Some(Arc::new(MarkOnDrop(descendants))),
            output: Arc::new(Mutex::new(Output { reader: BufReader::new(output), line: Buffer::default() })),
            input: Some(sender),
            pending: Pending::default(),
        }
    }

    /// The same streams for another handshake, after this one has failed.
    pub(super) fn again(&self) -> Self {
        let Self { mark, output, input, pending } = self;
        Self { mark: mark.clone(), output: output.clone(), input: input.clone(), pending: pending.clone() }
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

/// Writes whole lines, whether or not their senders still wait. A task of its own, so that no line is written in part.
async fn write(mut input: impl AsyncWrite + Unpin, mut lines: mpsc::Receiver<Outgoing>) {
    while let Some(Outgoing { line, written }) = lines.recv().await {
        let result = async {
            input.write_all(&line).await?;
            input.flush().await
        };
        let _ = written.send(result.await);
    }
}

impl<R: AsyncRead + Unpin + Send + 'static> Transport<RoleClient> for Lines<R> {
    type Error = io::Error;

    fn send(
        &mut self,
        message: ClientJsonRpcMessage,
    ) -> impl Future<Output = io::Result<()>> + Send + 'static {
        let (input, pending) = (self.input.clone(), self.pending.clone());
        async move {
            let closed = || io::Error::new(io::ErrorKind::BrokenPipe, "the connection is closed");
            let mut line = serde_json::to_vec(&message)?;
            line.push(b'\n');
            pending.sent(&message);
            let (written, result) = oneshot::channel();
            let input = input.ok_or_else(closed)?;
            input.send(Outgoing { line, written }).await.map_err(|_| closed())?;
            result.await.map_err(|_| closed())?
        }
    }

    async fn receive(&mut self) -> Option<ServerJsonRpcMessage> {
        let mut output = self.output.lock().await;
        loop {
            output.read_line().await?;
            if let Some(message) = self.pending.received(std::mem::take(&mut output.line).read()) {
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
