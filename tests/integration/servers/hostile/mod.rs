//! Servers that do everything wrong: `mcprl connect` ends in bounded time and memory, says the right cause, shows no
//! control characters and leaves no process.
//!
//! Each case is one run of the program. Over stdio its server is this test binary (`serve` below), so every case starts
//! with the lines that the test harness prints; over HTTP it is a thread that writes raw bytes.

#![expect(clippy::print_stdout, reason = "`HOSTILE_SHOW=1` prints time and memory of each run")]

mod run;
mod stdio;
mod web;

use std::{collections::BTreeMap, time::Duration};

use mcprl::mcp::{Limits, ServerSpec, Session, State, Transport};
use run::{Bounds, check_all};
use serde_json::{Map, json};

/// Runs that wait at the same time. Most of them wait for a timeout.
const AT_ONCE: usize = 6;

/// How a run must end.
#[derive(Clone, Copy, Debug)]
enum Ends {
    /// The call returns a result, and the report has this text.
    Result(&'static str),
    /// The call returns an error that the model would see.
    CallError(&'static str),
    /// There is no answer: an error message with this text.
    Fails(&'static str),
}

use Ends::{CallError, Fails, Result as Fine};

#[test]
fn no_server_over_stdio_hangs_the_client_exhausts_memory_or_is_misreported() {
    let bounds = Bounds::measure();
    check_all(AT_ONCE, stdio::CASES, |case| case.name, |case, tag| case.run(&bounds, tag));
}

#[test]
fn no_server_over_http_hangs_the_client_exhausts_memory_or_is_misreported() {
    let bounds = Bounds::measure();
    check_all(AT_ONCE, web::CASES, |case| case.name, |case, tag| case.run(&bounds, tag));
}

#[test]
#[ignore = "a server of the tests above"]
fn serve() {
    stdio::serve();
}

#[tokio::test]
async fn answers_out_of_order_reach_the_calls_that_they_answer() {
    let session = Session::connect(&spec("late answers")).await.unwrap();
    let calls = (0..20).map(|number| {
        let arguments: Map<_, _> = [("number".to_owned(), json!(number))].into_iter().collect();
        session.call("t", arguments)
    });
    for (number, outcome) in futures::future::join_all(calls).await.into_iter().enumerate() {
        assert_eq!(outcome.unwrap().text, number.to_string());
    }
    session.close().await;
}

fn spec(case: &str) -> ServerSpec {
    let env = BTreeMap::from([(stdio::CASE.to_owned(), case.to_owned())]);
    let transport = Transport::Stdio { command: stdio::command("-"), env, cwd: None, files: Vec::new() };
    let limits = Limits { call_timeout: Duration::from_secs(20), ..Limits::default() };
    ServerSpec { limits, ..ServerSpec::new(transport, State::ReadOnly) }
}
