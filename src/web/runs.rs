//! What the live page of runs asks for and changes.

use std::sync::Arc;

use axum::response::Response;
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

use super::{
    Page, WebError,
    answers::text,
    events::events,
    exams::{exams, pairs},
    overview::overview,
    query::Query,
    site::Site,
    tasks::{decide, task, tasks},
};
use crate::{
    data::Label,
    error::Result,
    exec::{history::RunHistory, labels},
    progress::now_ms,
    report::sweeps,
    view::{
        Run,
        curves::curves,
        episode::{TextPart, episode, offered_tools, part},
        episodes::{EpisodeTable, Filter, IndexedEpisode, PageSpec},
        judge::judges,
        neighbours::neighbours,
        tokens::tokens,
    },
};

/// Most rows of a page.
const MOST_ROWS: usize = 500;
/// Most tokens of a part.
const MOST_TOKENS: usize = 20_000;

impl Page for Site {
    fn index(&self) -> &'static str {
        "/index.html"
    }

    fn start(&self) -> String {
        let is_plain =
            |run: &String| run.chars().all(|letter| letter.is_ascii_alphanumeric() || "-_.".contains(letter));
        match self.first() {
            Some((run, others)) if std::iter::once(&run).chain(&others).all(is_plain) => {
                let with =
                    if others.is_empty() { String::new() } else { format!("?with={}", others.join(",")) };
                format!("/#/{run}/run{with}")
            }
            _ => "/".into(),
        }
    }

    fn warm(&self) {
        if let Some((run, _)) = self.first() {
            // The page reports what is wrong.
            _ = self.answer(&run);
        }
    }

    fn read(&self, name: &str, query: &Query) -> Result<String> {
        let run = || query.required("run");
        match name {
            "runs" => {
                let runs: Vec<Value> = self.runs().iter().map(listed).collect();
                text(&json!({ "runs": runs, "chosen": self.chosen }))
            }
            "sweeps" => {
                let runs = query.required("runs")?.split(',');
                let runs = runs.filter_map(|run| Run::open(self.store(run).ok()?, run).ok());
                text(&sweeps(&runs.collect::<Vec<_>>()))
            }
            "run" => {
                let (mut shown, planned) = (Run::clone(&*self.run(run()?)?), self.planned(run()?));
                if let Some(planned) = &planned {
                    planned.complete(&mut shown);
                }
                let progress = self.progress(run()?);
                text(&overview(&shown, planned.as_deref(), &progress, now_ms()))
            }
            "answer" => text(&*self.answer(run()?)?),
            "curves" => text(&curves(&*self.run(run()?)?)),
            "exams" => text(&exams(&*self.run(run()?)?)),
            "pairs" => pairs(self, run()?, query),
            "episodes" => {
                let episodes = self.loaded(run()?)?;
                let labels = self.labels(run()?)?;
                let found = text(&episodes.page(&filter(query)?, &page(query)?, &labels)?);
                std::thread::spawn(move || episodes.read_ahead());
                found
            }
            "episode" => {
                let named = Named::new(self, query)?;
                let labels = self.labels(run()?)?;
                text(&episode(&named.table, named.row, named.episode(), &labels)?)
            }
            "neighbours" => {
                // The parameters `stage` and `scenario` are those of the filter.
                let (stage, id) = (query.required("of_stage")?, query.required("of_id")?);
                let named = Named::find(self, run()?, (stage, id), query.parsed("of_row")?)?;
                let (episodes, labels) = (self.loaded(run()?)?, self.labels(run()?)?);
                let at = (stage, named.row);
                text(&neighbours(&episodes, &filter(query)?, &page(query)?, &labels, at)?)
            }
            "text" => {
                let named = Named::new(self, query)?;
                let message = query.parsed("message")?.unwrap_or(0);
                let which = query.named("part", TextPart::named)?.unwrap_or(TextPart::Content);
                let from = query.parsed("from")?.unwrap_or(0);
                let found = part(&named.table, named.row, message, &which, from)?;
                text(&found.ok_or_else(WebError::no_text)?)
            }
            "tools" => text(&offered_tools(&Named::new(self, query)?.table)),
            "tokens" => {
                let named = Named::new(self, query)?;
                let found = named.episode();
                let policy = named.table.writer_of(&found.summary.policy);
                let vocabulary = self.vocabulary(self.store(run()?)?, policy);
                let vocabulary = vocabulary.as_deref().map_err(Clone::clone);
                let from = query.parsed("from")?.unwrap_or(0);
                let limit = query.parsed("limit")?.unwrap_or(4000).min(MOST_TOKENS);
                text(&tokens(&named.table, named.row, found, vocabulary, from, limit)?)
            }
            "tasks" => tasks(self, run()?, query),
            "task" => task(self, run()?, query),
            "judges" => {
                let episodes = self.loaded(run()?)?;
                text(&judges(&episodes, &self.labels(run()?)?))
            }
            _ => Err(WebError::nothing(name).into()),
        }
    }

    fn change(&self, name: &str, body: &[u8]) -> Result<String> {
        match name {
            "label" => label(self, body),
            "decision" => decide(self, body),
            _ => Err(WebError::nothing(name).into()),
        }
    }

    fn events(self: Arc<Self>, query: &Query) -> Option<Result<Response, WebError>> {
        Some(query.required("run").map(|run| events(Arc::clone(&self), run.to_owned())))
    }
}

/// A run in the list.
fn listed(run: &RunHistory) -> Value {
    let mut value = json!(run);
    value["curve"] = json!(run.training_curve());
    value["tokens"] = run.usage().sampled_tokens.into();
    value
}

/// An episode that a query names by stage and id.
struct Named {
    table: Arc<EpisodeTable>,
    row: usize,
}

impl Named {
    fn new(site: &Site, query: &Query) -> Result<Self> {
        let (stage, id) = (query.required("stage")?, query.required("id")?);
        Self::find(site, query.required("run")?, (stage, id), query.parsed("row")?)
    }

    /// The episode in this row, if it has this id; otherwise the first with this id.
    fn find(site: &Site, run: &str, (stage, id): (&str, &str), row: Option<usize>) -> Result<Self> {
        let episodes = site.loaded(run)?;
        let gone = || {
            WebError::NotFound(format!(
                "stage \"{stage}\" has no episode \"{id}\", or it is no longer in the cache"
            ))
        };
        let table = episodes.table(stage).map(Arc::clone).ok_or_else(gone)?;
        // Two policies with equal weights have episodes with equal ids.
        let is_there = |row: &usize| table.episodes.get(*row).is_some_and(|episode| episode.summary.id == id);
        let row = row.filter(is_there).or_else(|| Some(table.episode(id)?.0)).ok_or_else(gone)?;
        Ok(Self { table, row })
    }

    fn episode(&self) -> &IndexedEpisode {
        &self.table.episodes[self.row]
    }
}

fn filter(query: &Query) -> Result<Filter, WebError> {
    Ok(Filter {
        stage: query.owned("stage"),
        iteration: query.parsed("iteration")?,
        split: query.owned("split"),
        family: query.owned("family"),
        scenario: query.owned("scenario"),
        policy: query.owned("policy"),
        end: query.owned("end"),
        tool: query.owned("tool"),
        outcome: query.parsed("outcome")?,
        signal: query.owned("signal"),
        least_reward: query.parsed("least")?,
        most_reward: query.parsed("most")?,
        text: query.owned("text"),
    })
}

fn page(query: &Query) -> Result<PageSpec, WebError> {
    Ok(PageSpec {
        sort: query.parsed("sort")?,
        descending: query.text("order") == Some("descending"),
        offset: query.parsed("offset")?.unwrap_or(0),
        limit: query.parsed("limit")?.unwrap_or(50).min(MOST_ROWS),
    })
}

/// A change of a label, as the page sends it: of the verdict, the note or both. Another page may have changed the other.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NewLabel {
    run: String,
    stage: String,
    id: String,
    #[serde(default, deserialize_with = "given")]
    right: Option<Option<bool>>,
    note: Option<String>,
}

fn given<'d, D: Deserializer<'d>>(from: D) -> Result<Option<Option<bool>>, D::Error> {
    Option::deserialize(from).map(Some)
}

fn label(site: &Site, body: &[u8]) -> Result<String> {
    let wrong = |cause: serde_json::Error| WebError::BadRequest(format!("the request is no label: {cause}"));
    let NewLabel { run, stage, id, right, note } = serde_json::from_slice(body).map_err(wrong)?;
    let named = Named::find(site, &run, (&stage, &id), None)?;
    let summary = &named.episode().summary;
    let task = named.table.scenarios.get(&summary.scenario_id).map(|scenario| scenario.task.clone());
    let blank = Label {
        trajectory_id: id,
        stage,
        scenario_id: summary.scenario_id.clone(),
        family: summary.family.clone(),
        task: task.unwrap_or_default(),
        answer: summary.answer.clone(),
        right: None,
        note: None,
    };
    let (labels, label) = labels::change(site.store(&run)?, &run, blank, |label| {
        label.right = right.unwrap_or(label.right);
        label.note = note.or_else(|| label.note.take()).filter(|note| !note.trim().is_empty());
    })?;
    text(&json!({ "labels": labels.len(), "label": label }))
}
