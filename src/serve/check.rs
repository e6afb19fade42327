//! Plays an exam's tasks by the served agent, as a client does, and compares with the exam.

use std::{collections::BTreeMap, path::Path};

use futures::{StreamExt, stream};
use reqwest::StatusCode;
use serde::Serialize;
use serde_json::{Value, json};

use super::{AGENT, ServeError, about::is_decided};
use crate::{
    data::{self, OutcomeRow, Scenario},
    error::Result,
    hash::Digest,
    judge::truth::{self, Evidence},
    net,
};

/// Tasks at once.
const AT_ONCE: usize = 16;

/// The greedy episodes of a policy in an exam, beside its answers at an endpoint.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Comparison {
    /// Tasks that an answer alone decides; the others need the calls or the server's state.
    pub tasks: usize,
    pub left_out: usize,
    /// Tasks solved by the exam's episodes, and at the endpoint.
    pub exam: usize,
    pub served: usize,
    /// Tasks with the same answer.
    pub same_answers: usize,
}

/// The tasks that a policy answered greedily in an exam, each with its answer there.
///
/// # Errors
/// If a table cannot be read.
pub fn exam(scenarios: &Path, episodes: &Path, policy: &Digest) -> Result<Vec<(Scenario, OutcomeRow)>> {
    let scenarios: Vec<Scenario> = data::read(scenarios)?;
    let scenarios: BTreeMap<&str, &Scenario> =
        scenarios.iter().map(|scenario| (scenario.id.as_str(), scenario)).collect();
    let policy = policy.to_string();
    let rows: Vec<OutcomeRow> = data::read(episodes)?;
    let greedy = rows.into_iter().filter(|row| row.policy == policy && row.sample == 0);
    let with_task = |row: OutcomeRow| Some(((*scenarios.get(row.scenario_id.as_str())?).clone(), row));
    Ok(greedy.filter_map(with_task).collect())
}

/// Plays these tasks at the endpoint with this URL.
///
/// # Errors
/// If it does not answer.
pub async fn check(url: &str, key: Option<&str>, exam: Vec<(Scenario, OutcomeRow)>) -> Result<Comparison> {
    let failed = |reason: String| ServeError::Check { reason };
    let client = net::client().no_proxy().build().map_err(|cause| failed(cause.to_string()))?;
    let all = exam.len();
    let exam: Vec<_> = exam.into_iter().filter(|(scenario, _)| is_decided(scenario)).collect();
    let answers = stream::iter(&exam).map(async |(scenario, _)| {
        let body = json!({"model": AGENT, "messages": [{"role": "user", "content": scenario.task}]});
        let request = client.post(format!("{url}/v1/chat/completions")).json(&body);
        let request = key.into_iter().fold(request, |request, key| request.bearer_auth(key));
        let response = request.send().await.map_err(|cause| failed(cause.to_string()))?;
        let status = response.status();
        let body: Value = response.json().await.map_err(|cause| failed(cause.to_string()))?;
        match status == StatusCode::OK {
            true => Ok(body["choices"][0]["message"]["content"].as_str().unwrap_or_default().to_owned()),
            false => Err(failed(body["error"]["message"].as_str().unwrap_or_default().to_owned())),
        }
    });
    let answers: Vec<Result<String, ServeError>> = answers.buffered(AT_ONCE).collect().await;
    let mut comparison =
        Comparison { tasks: exam.len(), left_out: all - exam.len(), ..Comparison::default() };
    for ((scenario, row), answer) in exam.iter().zip(answers) {
        let answer = Some(answer?).filter(|answer| !answer.is_empty());
        let evidence = Evidence { answer: answer.as_deref(), ..Evidence::default() };
        comparison.served += usize::from(truth::correct(scenario, evidence) == Some(true));
        comparison.exam += usize::from(row.correct == Some(true));
        comparison.same_answers +=
            usize::from(row.answer.clone().filter(|answer| !answer.is_empty()) == answer);
    }
    Ok(comparison)
}
