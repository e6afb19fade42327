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
/// What a reader takes at least, once it has made an answer wait.
const SLOWEST_BYTES_PER_S: u64 = 16 << 10;

/// How long a client may take.
#[derive(Clone, Copy)]
struct Patience {
    /// From the beginning of a connection, or the end of an answer, to the end of the headers of the next request.
    headers: Duration,
    /// How long an answer waits for its reader.
    writing: Duration,
}

const PATIENCE: Patience = Patience { headers: Duration::from_secs(30), writing: Duration::from_secs(30) };

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
    patience: Patience,
}

impl Connections {
    pub fn new(listener: TcpListener) -> Self {
        let descriptors = getrlimit(Resource::Nofile).current.and_then(|most| usize::try_from(most / 2).ok());
        let most = descriptors.map_or(MOST, |half| half.clamp(8, MOST));
        Self::with(listener, most, PATIENCE)
    }

    fn with(listener: TcpListener, most: usize, patience: Patience) -> Self {
        let places = Arc::new(Semaphore::new(most));
        Self { listener, places, open: Arc::default(), next: 0, patience }
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
                    // An event leaves as it comes, and not when the one before has been acknowledged.
                    let _ = stream.set_nodelay(true);
                    let (flow, number) = (Flow::new(), self.next);
                    self.next += 1;
                    self.open.lock().insert(number, flow.clone());
                    let connection = Connection {
                        stream,
                        flow,
                        reading: Box::pin(sleep(self.patience.headers)),
                        writing: Box::pin(sleep(self.patience.writing)),
                        patience: self.patience,
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
    patience: Patience,
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
                let deadline =
                    since + self.patience.writing + Duration::from_secs(bytes / SLOWEST_BYTES_PER_S);
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
                Some(since) => {
                    let deadline = since + self.patience.headers;
                    is_over(&mut self.reading, deadline, context)
                }
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
pub struct AnswerPermit(#[expect(dead_code, reason = "is held")] pub Arc<dyn Send + Sync>);

/// An answer that ends when it has left.
pub fn held(response: Response, flow: Flow, request: InRequest, gone: &Gone) -> Response {
    let (mut parts, body) = response.into_parts();
    let place = parts.extensions.remove::<AnswerPermit>();
    if place.is_some() {
        // With its length, the body would be over before it is sent.
        parts.headers.remove(header::CONTENT_LENGTH);
    }
    let gone = gone.0.clone().drop_guard();
    let held = HeldResponse {
        body: body.into_data_stream(),
        flow,
        place,
        end: None,
        _gone: gone,
        _request: request,
    };
    Response::from_parts(parts, Body::from_stream(held))
}

struct HeldResponse {
    body: BodyDataStream,
    flow: Flow,
    place: Option<AnswerPermit>,
    /// At its end: how many times everything had left by then.
    end: Option<u64>,
    _gone: DropGuard,
    _request: InRequest,
}

impl Stream for HeldResponse {
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use axum::{
        Router,
        extract::{ConnectInfo, Request},
    };
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// Counts answers in progress.
    struct Counted(Arc<AtomicUsize>);

    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// A server that answers `/N` with so many bytes: its address, and the answers in progress.
    async fn served(most: usize, milliseconds: u64) -> (SocketAddr, Arc<AtomicUsize>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let patience = Duration::from_millis(milliseconds);
        let patience = Patience { headers: patience, writing: patience };
        let progress: Arc<AtomicUsize> = Arc::default();
        let counted = progress.clone();
        let answer = move |ConnectInfo(flow): ConnectInfo<Flow>, request: Request| {
            let in_request = flow.begin();
            counted.fetch_add(1, Ordering::SeqCst);
            let place = AnswerPermit(Arc::new(Counted(counted.clone())));
            let bytes: usize = request.uri().path()[1..].parse().unwrap();
            async move {
                let mut response = Response::new(Body::from(vec![b'x'; bytes]));
                response.extensions_mut().insert(place);
                held(response, flow, in_request, &Gone::default())
            }
        };
        let service = Router::new().fallback(answer).into_make_service_with_connect_info::<Flow>();
        let connections = Connections::with(listener, most, patience);
        tokio::spawn(async move { axum::serve(connections, service).await.unwrap() });
        (address, progress)
    }

    async fn ask(address: SocketAddr, text: &str) -> TcpStream {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(text.as_bytes()).await.unwrap();
        stream
    }

    async fn rest(stream: &mut TcpStream) -> usize {
        let mut bytes = Vec::new();
        _ = stream.read_to_end(&mut bytes).await;
        bytes.len()
    }

    const LARGE: usize = 64 << 20;

    #[tokio::test]
    async fn half_a_request_and_an_idle_connection_end() {
        let (address, _) = served(100, 200).await;
        for text in ["", "GET /1 HTTP/1.1\r\nHos", "GET /1 HTTP/1.1\r\nHost: x\r\n\r\n"] {
            let mut stream = ask(address, text).await;
            let ended = tokio::time::timeout(Duration::from_secs(20), rest(&mut stream)).await;
            assert!(ended.is_ok(), "{text:?}");
        }
        // Byte by byte is no faster.
        let mut stream = ask(address, "GET /1 HTTP/1.1\r\nX: ").await;
        let mut sent = 0;
        while stream.write_all(b"x").await.is_ok() {
            sent += 1;
            assert!(sent < 1000, "it goes on");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    #[tokio::test]
    async fn an_answer_has_its_place_until_it_has_left_or_nobody_reads_it() {
        let (address, progress) = served(100, 2000).await;
        let request = |bytes: usize| format!("GET /{bytes} HTTP/1.1\r\nHost: x\r\n\r\n");
        let mut reads = ask(address, &request(LARGE)).await;
        let mut stalls = ask(address, &request(LARGE)).await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert_eq!(progress.load(Ordering::SeqCst), 2, "nobody has read");
        assert!(rest(&mut reads).await >= LARGE);
        let freed = async {
            while progress.load(Ordering::SeqCst) > 0 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), freed)
            .await
            .expect("a client that reads nothing is left");
        assert!(rest(&mut stalls).await < LARGE);
    }

    #[tokio::test]
    async fn a_new_connection_takes_the_place_of_an_idle_one() {
        let (address, _) = served(4, 600_000).await;
        let mut idle = Vec::new();
        for _ in 0..20 {
            idle.push(ask(address, "GET /1 HT").await);
        }
        let mut stream = ask(address, "GET /7 HTTP/1.0\r\nHost: x\r\n\r\n").await;
        let answered = tokio::time::timeout(Duration::from_secs(60), rest(&mut stream)).await;
        assert!(answered.unwrap() > 7);
    }
}
