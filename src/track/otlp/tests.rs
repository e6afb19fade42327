use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpListener,
    sync::{Arc, Mutex},
};

use super::*;
use crate::{
    error::Diagnostic,
    track::{LogReader, proto::Message},
    view::synthetic::{self, HOSTILE, RUN, Size},
};

/// An endpoint on loopback that answers with these statuses and bodies, then with 200, and keeps what it gets.
struct Collector {
    url: String,
    bodies: Arc<Mutex<Vec<Vec<u8>>>>,
    heads: Arc<Mutex<Vec<String>>>,
}

impl Collector {
    fn start(answers: Vec<(u16, Vec<u8>)>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (bodies, heads) = (Arc::<Mutex<Vec<Vec<u8>>>>::default(), Arc::<Mutex<Vec<String>>>::default());
        let (to, to_heads) = (Arc::clone(&bodies), Arc::clone(&heads));
        std::thread::spawn(move || {
            let mut answers = answers.into_iter();
            for stream in listener.incoming() {
                let mut reader = BufReader::new(stream.unwrap());
                let (mut head, mut length) = (String::new(), 0);
                loop {
                    let mut line = String::new();
                    reader.read_line(&mut line).unwrap();
                    if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
                        length = value.trim().parse().unwrap();
                    }
                    head += &line;
                    if line.trim().is_empty() {
                        break;
                    }
                }
                let mut body = vec![0; length];
                reader.read_exact(&mut body).unwrap();
                to.lock().unwrap().push(body);
                to_heads.lock().unwrap().push(head);
                let (status, answer) = answers.next().unwrap_or((200, Vec::new()));
                let mut answer_head = format!("HTTP/1.1 {status} x\r\nconnection: close\r\n").into_bytes();
                answer_head.extend(format!("content-length: {}\r\n\r\n", answer.len()).bytes());
                let stream = reader.get_mut();
                stream.write_all(&answer_head).unwrap();
                stream.write_all(&answer).unwrap();
            }
        });
        Self { url, bodies, heads }
    }

    fn all(&self) -> Vec<u8> {
        self.bodies.lock().unwrap().concat()
    }

    fn requests(&self) -> usize {
        self.bodies.lock().unwrap().len()
    }
}

struct Made {
    folder: tempfile::TempDir,
    run: Run,
    log: Log,
}

fn made(size: Size) -> Made {
    let folder = tempfile::tempdir().unwrap();
    let store = synthetic::write(&folder.path().join("cache"), size);
    let (run, log) = LogReader::new(&store, RUN, true).read().unwrap();
    Made { folder, run, log }
}

impl Made {
    fn update(&self, spec: &OtlpSpec) -> Result<(), TrackError> {
        Otlp::new(spec, true, self.folder.path()).update(&self.run, &self.log)
    }
}

fn contains(body: &[u8], text: &str) -> bool {
    body.windows(text.len()).any(|part| part == text.as_bytes())
}

fn count(body: &[u8], text: &str) -> usize {
    body.windows(text.len()).filter(|part| *part == text.as_bytes()).count()
}

#[test]
fn what_was_accepted_is_not_sent_again() {
    let (made, collector) = (made(Size::SMALL), Collector::start(vec![]));
    made.update(&OtlpSpec::new(&collector.url)).unwrap();
    let first = collector.requests();
    assert!(first > 0);
    made.update(&OtlpSpec::new(&collector.url)).unwrap();
    assert_eq!(collector.requests(), first);
    let other = Collector::start(vec![]);
    made.update(&OtlpSpec::new(&other.url)).unwrap();
    assert_eq!(other.all(), collector.all(), "the same run is the same bytes for every endpoint");
    assert!(collector.heads.lock().unwrap()[0].starts_with("POST /v1/traces HTTP/1.1\r\n"));
}

#[test]
fn the_run_its_stages_and_episodes_have_spans() {
    let (made, collector) = (made(Size::SMALL), Collector::start(vec![]));
    made.update(&OtlpSpec::new(&collector.url)).unwrap();
    let body = collector.all();
    for name in ["train[0002]/rollout", "exam", "invoke_agent trained", "chat base", "execute_tool run_query"]
    {
        assert!(contains(&body, name), "{name}");
    }
    // 16 episodes of each of three rollouts, and 8 of the exam.
    assert_eq!(count(&body, "invoke_agent "), 3 * 16 + 8);
    assert!(contains(&body, "tool_error") && contains(&body, "select 3"));
    assert!(
        !body.contains(&0) || !contains(&body, HOSTILE),
        "databases behind back ends refuse zero characters"
    );
}

#[test]
fn the_number_of_episodes_is_bounded_except_for_exams() {
    let made = made(Size::SMALL);
    for (episodes, expected) in
        [(OtlpEpisodes::Exam, 8), (OtlpEpisodes::PerStage(5), 23), (OtlpEpisodes::All, 56)]
    {
        let collector = Collector::start(vec![]);
        made.update(&OtlpSpec { episodes, ..OtlpSpec::new(&collector.url) }).unwrap();
        assert_eq!(count(&collector.all(), "invoke_agent "), expected, "{episodes:?}");
    }
}

#[test]
fn without_content_no_text_leaves_the_machine() {
    let (made, collector) = (made(Size::SMALL), Collector::start(vec![]));
    made.update(&OtlpSpec { content: false, ..OtlpSpec::new(&collector.url) }).unwrap();
    let body = collector.all();
    for text in ["select", "needle", "What is number", "Does things", "Answer with the tools"] {
        assert!(!contains(&body, text), "{text}");
    }
    assert!(contains(&body, "execute_tool run_query") && contains(&body, "tool_error"));
}

#[test]
fn long_texts_are_cut_and_requests_are_bounded() {
    let (made, collector) = (made(Size { result: 200_000, ..Size::SMALL }), Collector::start(vec![]));
    made.update(&OtlpSpec::new(&collector.url)).unwrap();
    assert!(contains(&collector.all(), "bytes in all]"));
    assert!(collector.requests() > 5);
    let largest = collector.bodies.lock().unwrap().iter().map(Vec::len).max().unwrap();
    assert!(largest < BATCH + 100_000, "{largest}");
}

#[test]
fn a_busy_endpoint_is_asked_again() {
    let (made, collector) = (made(Size::SMALL), Collector::start(vec![(503, vec![]), (429, vec![])]));
    made.update(&OtlpSpec::new(&collector.url)).unwrap();
    let bodies = collector.bodies.lock().unwrap();
    assert!(bodies[0] == bodies[1] && bodies[1] == bodies[2] && bodies[2] != bodies[3]);
}

/// An answer that this many spans are rejected.
fn rejecting(spans: u64, problem: &str) -> (u16, Vec<u8>) {
    let partial = Message::new().varint(1, spans).bytes(2, problem);
    (200, Message::new().message(1, partial).into_bytes())
}

#[test]
fn rejected_spans_are_reported_once_and_neither_sent_again_nor_in_the_way_of_others() {
    let made = made(Size::SMALL);
    let accepting = Collector::start(vec![]);
    made.update(&OtlpSpec::new(&accepting.url)).unwrap();
    let answers = vec![rejecting(2, "no \u{1b}[31mroom"), (200, vec![]), rejecting(3, "too old")];
    let collector = Collector::start(answers);
    let mut sink = Otlp::new(&OtlpSpec::new(&collector.url), true, made.folder.path());
    sink.update(&made.run, &made.log).unwrap();
    assert_eq!(collector.all(), accepting.all(), "later parts are sent");
    let error = sink.refused().unwrap();
    assert_eq!(error.code(), "track::rejected");
    assert!(error.to_string().contains("rejected 5 spans: no ") && !error.to_string().contains('\u{1b}'));
    let sent = collector.requests();
    sink.update(&made.run, &made.log).unwrap();
    assert!(sink.refused().is_none());
    made.update(&OtlpSpec::new(&collector.url)).unwrap();
    assert_eq!(collector.requests(), sent);
}

#[test]
fn an_endpoint_that_keeps_rejecting_is_reported_once() {
    let mut made = made(Size::SMALL);
    let collector = Collector::start((0..100).map(|at| rejecting(1, &format!("span {at}"))).collect());
    let mut sink = Otlp::new(&OtlpSpec::new(&collector.url), true, made.folder.path());
    let whole = made.run.clone();
    made.run.stages.truncate(4);
    let mut reported = Vec::new();
    for run in [&made.run, &whole] {
        sink.update(run, &made.log).unwrap();
        reported.extend(sink.refused());
    }
    assert_eq!(reported.len(), 1);
}

#[test]
fn what_is_rejected_is_reported_even_if_a_later_request_fails() {
    let made = made(Size::SMALL);
    let collector = Collector::start(vec![rejecting(2, "no room"), (401, b"who?".to_vec())]);
    let mut sink = Otlp::new(&OtlpSpec::new(&collector.url), true, made.folder.path());
    let error = sink.update(&made.run, &made.log).unwrap_err();
    assert!(error.to_string().ends_with("status 401: who?"));
    assert_eq!(sink.refused().unwrap().code(), "track::rejected");
    sink.update(&made.run, &made.log).unwrap();
    let bodies = collector.bodies.lock().unwrap();
    assert!(bodies[0] != bodies[1] && bodies[1] == bodies[2], "what was refused as a whole is sent again");
}

#[test]
fn what_cannot_be_sent_is_an_error_with_a_code() {
    let made = made(Size::SMALL);
    let code = |spec: &OtlpSpec| made.update(spec).unwrap_err().code();
    assert_eq!(code(&OtlpSpec::new("http://127.0.0.1:9")), "track::unreachable");
    let with = |url: &str, value: &str| OtlpSpec {
        headers: BTreeMap::from([("Authorization".to_owned(), value.to_owned())]),
        ..OtlpSpec::new(url)
    };
    assert_eq!(code(&with("http://example.com", "Bearer x")), "track::unencrypted");
    assert_eq!(code(&with("http://127.0.0.1:9", "Bearer ${MCPRL_NO_SUCH_VARIABLE}")), "track::header");
    assert_eq!(code(&with("http://127.0.0.1:9", "a\nb")), "track::header");
}

#[test]
fn a_run_that_goes_on_is_sent_as_far_as_it_is_complete() {
    let mut made = made(Size::SMALL);
    let collector = Collector::start(vec![]);
    let spec = OtlpSpec::new(&collector.url);
    let whole = made.run.clone();
    // The first rollout has ended, and is neither judged nor trained on.
    made.run.stages.truncate(4);
    made.log.state = crate::exec::RunState::Running;
    made.update(&spec).unwrap();
    assert_eq!(count(&collector.all(), "invoke_agent "), 0);
    assert!(!contains(&collector.all(), "run pets"));
    made.run = whole;
    made.log.state = crate::exec::RunState::Finished;
    made.update(&spec).unwrap();
    assert_eq!(count(&collector.all(), "invoke_agent "), 3 * 16 + 8);
    assert!(made.folder.path().join("otlp.json").is_file());
}
