//! Connections of clients: how many there are, and how long each may take.
//!
//! A client that sends nothing, or half a request, is disconnected, and so is one that does not read its answer. An answer has its
//! place until its last byte has left.

use std::{
    collections::BTreeMap,
    io,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::{
    body::{Body, BodyDataStream, Bytes},
    extract::connect_info::Connected,
    http::header,
    response::Response,
    serve::{IncomingStream, Listener},
};
use futures::{Stream, StreamExt, task::AtomicWaker};
use parking_lot::Mutex;
use rustix::process::{Resource, getrlimit};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, Sleep, sleep},
};
use tokio_util::sync::{CancellationToken, DropGuard};

/// Connections at once, if half of the process's file descriptors are not fewer.
const MOST: usize = 1024;
/// From the beginning of a connection, or the end of an answer, to the end of the headers of the next request.
const HEADERS: Duration = Duration::from_secs(30);
/// How long an answer waits for its reader, and what a reader takes at least after that.
const WRITING: Duration = Duration::from_secs(30);
const SLOWEST_BYTES_PER_S: u64 = 16 << 10;

/// What a connection and its answers know of each other.
#[derive(Clone)]
pub struct Flow(Arc<State>);

struct State {
    /// Requests whose answer has not left.
    requests: AtomicUsize,
    /// When that began to be none.
    idle: Mutex<Instant>,
    is_evicted: AtomicBool,
    reader: AtomicWaker,
    /// How many times everything that was written has left.
    flushes: AtomicU64,
    flushed: AtomicWaker,
}

impl Flow {
    fn new() -> Self {
        Self(Arc::new(State {
            requests: AtomicUsize::new(0),
            idle: Mutex::new(Instant::now()),
            is_evicted: AtomicBool::new(false),
            reader: AtomicWaker::new(),
            flushes: AtomicU64::new(0),
            flushed: AtomicWaker::new(),
        }))
    }

    /// A request has come.
    pub fn begin(&self) -> InRequest {
        self.0.requests.fetch_add(1, Ordering::Relaxed);
        InRequest(self.clone())
    }

    /// Since when there is no request.
    fn idle(&self) -> Option<Instant> {
        (self.0.requests.load(Ordering::Relaxed) == 0).then(|| *self.0.idle.lock())
    }

    fn evict(&self) {
        self.0.is_evicted.store(true, Ordering::Relaxed);
        self.0.reader.wake();
    }

    fn flushes(&self) -> u64 {
        self.0.flushes.load(Ordering::Relaxed)
    }
}

/// A request whose answer has not left.
pub struct InRequest(Flow);

impl Drop for InRequest {
    fn drop(&mut self) {
        let Flow(state) = &self.0;
        *state.idle.lock() = Instant::now();
        state.requests.fetch_sub(1, Ordering::Relaxed);
        // The time for the next request begins.
        state.reader.wake();
    }
}

impl Connected<IncomingStream<'_, Connections>> for Flow {
    fn connect_info(stream: IncomingStream<'_, Connections>) -> Self {
        stream.io().flow.clone()
    }
}

/// Accepts connections. If there are too many, the one that has been without a request for longest makes room.
pub struct Connections {
    listener: TcpListener,
    places: Arc<Semaphore>,
    open: Arc<Mutex<BTreeMap<u64, Flow>>>,
    next: u64,
}

impl Connections {
    pub fn new(listener: TcpListener) -> Self {
        let descriptors = getrlimit(Resource::Nofile).current.and_then(|most| usize::try_from(most / 2).ok());
        let most = descriptors.map_or(MOST, |half| half.clamp(8, MOST));
        Self { listener, places: Arc::new(Semaphore::new(most)), open: Arc::default(), next: 0 }
    }

    fn make_room(&self) {
        let open = self.open.lock();
        let evicted = |flow: &&Flow| !flow.0.is_evicted.load(Ordering::Relaxed);
        let idle = open.values().filter(evicted).filter_map(|flow| Some((flow.idle()?, flow)));
        if let Some((_, flow)) = idle.min_by_key(|(since, _)| *since) {
            flow.evict();
        }
    }

    async fn place(&self) -> OwnedSemaphorePermit {
        loop {
            if let Ok(place) = self.places.clone().try_acquire_owned() {
                return place;
            }
            self.make_room();
            // Another one may become idle.
            let next = tokio::time::timeout(Duration::from_secs(1), self.places.clone().acquire_owned());
            if let Ok(Ok(place)) = next.await {
                return place;
            }
        }
    }
}

impl Listener for Connections {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        loop {
            let place = self.place().await;
            match self.listener.accept().await {
                Ok((stream, address)) => {
                    let (flow, number) = (Flow::new(), self.next);
                    self.next += 1;
                    self.open.lock().insert(number, flow.clone());
                    let connection = Connection {
                        stream,
                        flow,
                        reading: Box::pin(sleep(HEADERS)),
                        writing: Box::pin(sleep(WRITING)),
                        stalled: None,
                        entry: (number, self.open.clone()),
                        _place: place,
                    };
                    return (connection, address);
                }
                // The client has gone, or the process has no descriptor left.
                Err(_) => {
                    self.make_room();
                    sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection with its limits of time.
pub struct Connection {
    stream: TcpStream,
    flow: Flow,
    reading: Pin<Box<Sleep>>,
    writing: Pin<Box<Sleep>>,
    /// Since when something waits to be written, and how much has left since.
    stalled: Option<(Instant, u64)>,
    entry: (u64, Arc<Mutex<BTreeMap<u64, Flow>>>),
    _place: OwnedSemaphorePermit,
}

impl Drop for Connection {
    fn drop(&mut self) {
        let (number, open) = &self.entry;
        open.lock().remove(number);
    }
}

/// Whether it is later than this.
fn is_over(timer: &mut Pin<Box<Sleep>>, deadline: Instant, context: &mut Context<'_>) -> bool {
    if timer.deadline() != deadline {
        timer.as_mut().reset(deadline);
    }
    timer.as_mut().poll(context).is_ready()
}

impl Connection {
    fn wrote(
        &mut self,
        written: Poll<io::Result<usize>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        match written {
            Poll::Ready(Ok(bytes)) => {
                self.stalled = self.stalled.map(|(since, before)| (since, before + bytes as u64));
                written
            }
            Poll::Ready(Err(_)) => written,
            Poll::Pending => {
                let (since, bytes) = *self.stalled.get_or_insert_with(|| (Instant::now(), 0));
                let deadline = since + WRITING + Duration::from_secs(bytes / SLOWEST_BYTES_PER_S);
                match is_over(&mut self.writing, deadline, context) {
                    true => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
                    false => Poll::Pending,
                }
            }
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if read.is_pending() {
            self.flow.0.reader.register(context.waker());
            let is_late = match self.flow.idle() {
                Some(since) => is_over(&mut self.reading, since + HEADERS, context),
                None => false,
            };
            if is_late || self.flow.0.is_evicted.load(Ordering::Relaxed) {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
        }
        read
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.wrote(written, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.wrote(written, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// Everything was written.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stalled = None;
        self.flow.0.flushes.fetch_add(1, Ordering::Relaxed);
        self.flow.0.flushed.wake();
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// What a request's handler can see: whether its client has gone, or has its answer.
#[derive(Clone, Default)]
pub struct Gone(pub CancellationToken);

/// What an answer has until its last byte has left, as an extension of its response.
#[derive(Clone)]
pub struct Place(#[expect(dead_code, reason = "is held")] pub Arc<dyn Send + Sync>);

/// An answer that ends when it has left.
pub fn held(response: Response, flow: Flow, request: InRequest, gone: &Gone) -> Response {
    let (mut parts, body) = response.into_parts();
    let place = parts.extensions.remove::<Place>();
    if place.is_some() {
        // With its length, the body would be over before it is sent.
        parts.headers.remove(header::CONTENT_LENGTH);
    }
    let gone = gone.0.clone().drop_guard();
    let held = Held { body: body.into_data_stream(), flow, place, end: None, _gone: gone, _request: request };
    Response::from_parts(parts, Body::from_stream(held))
}

struct Held {
    body: BodyDataStream,
    flow: Flow,
    place: Option<Place>,
    /// At its end: how many times everything had left by then.
    end: Option<u64>,
    _gone: DropGuard,
    _request: InRequest,
}

impl Stream for Held {
    type Item = Result<Bytes, axum::Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let end = match self.end {
            Some(end) => end,
            None => match ready!(self.body.poll_next_unpin(context)) {
                Some(bytes) => return Poll::Ready(Some(bytes)),
                None if self.place.is_none() => return Poll::Ready(None),
                None => self.flow.flushes(),
            },
        };
        self.end = Some(end);
        let state = &self.flow.0;
        state.flushed.register(context.waker());
        match self.flow.flushes() > end {
            true => Poll::Ready(None),
            false => Poll::Pending,
        }
    }
}
