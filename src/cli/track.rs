//! `mcprl track`: sends a run to experiment trackers.

use std::time::Duration;

use clap::Args;
use reqwest::Url;
use serde_json::json;

use super::{Outcome, locations::Locations, target::Target};
use crate::{
    error::{Result, did_you_mean},
    exec::history,
    plan::{self, MlflowSpec, OtlpSpec, TrackSpec, url_mistake},
    track::{self, LogReader, TrackError},
    ui::{OutputFormat, Printer},
};

#[derive(Args)]
pub struct Track {
    /// The run's id, as `mcprl runs` lists it, or `latest`; the folder of a run also works.
    #[arg(value_name = "RUN")]
    run: String,
    /// A tracker: `tensorboard`, `tensorboard=DIR`, `wandb`, `wandb=online`, `mlflow=URI`, `trackio`,
    /// `trackio=PROJECT` or `otlp=URL`. May be given several times [default: those of the run file].
    #[arg(long, value_name = "TRACKER")]
    to: Vec<String>,
    #[command(flatten)]
    locations: Locations,
}

/// How long an upload may take.
const PATIENCE: Duration = Duration::from_secs(1800);

const TRACKERS: [&str; 5] = ["tensorboard", "wandb", "mlflow", "trackio", "otlp"];

impl Track {
    pub fn execute(self, printer: Printer) -> Result<Outcome> {
        let Target { store, run, .. } = Target::new(&self.locations, &self.run)?;
        let run = history::run(&store, &run)?.id;
        let own = match history::spec(&store, &run) {
            Some(spec) => plan::track_spec(&spec.source()?, &spec.overrides)?,
            None => TrackSpec::default(),
        };
        let spec = if self.to.is_empty() { own } else { given(&own, &self.to)? };
        let mut sinks = track::sinks(&spec, &store, &run, PATIENCE);
        if sinks.is_empty() {
            return Err(TrackError::NoTracker { run }.into());
        }
        let problems = track::update(&mut sinks, &mut LogReader::new(&store, &run, spec.examples))?;
        let mut all_well = true;
        let mut sent = Vec::new();
        for (sink, problems) in sinks.iter().zip(problems) {
            match printer.format {
                _ if !problems.is_empty() => all_well = false,
                OutputFormat::Json => {
                    sent.push(json!({ "tracker": sink.name(), "location": sink.location() }));
                }
                OutputFormat::Human => printer.data(&format!("{:<12} {}", sink.name(), sink.location())),
            }
            for error in problems {
                printer.error(&crate::error::Failure::from(error).at(sink.name()));
            }
        }
        if printer.format == OutputFormat::Json {
            printer.json(&json!({ "run": run, "trackers": sent }));
        }
        Ok(if all_well { Outcome::Success } else { Outcome::Failed })
    }
}

/// The trackers that `--to` names, each with the settings of the run file where it has some.
fn given(own: &TrackSpec, to: &[String]) -> Result<TrackSpec, TrackError> {
    let mut spec = TrackSpec { examples: own.examples, ..TrackSpec::default() };
    for text in to {
        let (name, value) =
            text.split_once('=').map_or((text.as_str(), None), |(name, value)| (name, Some(value)));
        let wrong = |reason: &str| {
            let near = did_you_mean(name, TRACKERS).filter(|near| *near != name);
            // An address may have a secret.
            let shown = if text.contains(['@', '?']) { name } else { text };
            TrackError::UnknownTracker { text: shown.to_owned(), reason: reason.to_owned(), near }
        };
        let url = |value: Option<&str>| {
            let url = value.ok_or_else(|| wrong("it needs a URL"))?;
            url_mistake(url).map_or(Ok(url.to_owned()), |should| {
                Err(wrong(&format!("its URL should be one that {should}")))
            })
        };
        match name {
            "tensorboard" => {
                let mut settings = own.tensorboard.clone().unwrap_or_default();
                if let Some(path) = value {
                    settings.path = Some(std::path::absolute(path).unwrap_or_else(|_| path.into()));
                }
                spec.tensorboard = Some(settings);
            }
            "wandb" => {
                let mut settings = own.wandb.clone().unwrap_or_default();
                settings.online = match value {
                    None => settings.online,
                    Some("online") => true,
                    Some("offline") => false,
                    Some(_) => return Err(wrong("its mode is `offline` or `online`")),
                };
                spec.wandb = Some(settings);
            }
            "mlflow" if value.is_none() && own.mlflow.is_some() => spec.mlflow.clone_from(&own.mlflow),
            "mlflow" => {
                let at = MlflowSpec::new(&url(value)?);
                let settings = own.mlflow.clone().unwrap_or_else(|| at.clone());
                let bearer_env = settings.bearer_env.filter(|_| is_same_origin(&settings.uri, &at.uri));
                spec.mlflow = Some(MlflowSpec { experiment: settings.experiment, bearer_env, ..at });
            }
            "trackio" => {
                let mut settings = own.trackio.clone().unwrap_or_default();
                settings.project = value.map_or(settings.project, str::to_owned);
                spec.trackio = Some(settings);
            }
            "otlp" if value.is_none() && own.otlp.is_some() => spec.otlp.clone_from(&own.otlp),
            "otlp" => spec.otlp = Some(elsewhere(own.otlp.as_ref(), &url(value)?)),
            _ => return Err(wrong(&format!("the trackers are {}", TRACKERS.join(", ")))),
        }
    }
    Ok(spec)
}

/// The run file's settings with another URL. Headers are for the origin that they were written for.
fn elsewhere(own: Option<&OtlpSpec>, url: &str) -> OtlpSpec {
    let at = OtlpSpec::new(url);
    let Some(own) = own else { return at };
    let headers = if is_same_origin(&own.url, url) { own.headers.clone() } else { at.headers };
    OtlpSpec { url: at.url, headers, ..own.clone() }
}

fn is_same_origin(one: &str, other: &str) -> bool {
    let origin = |url: &str| Url::parse(url).ok().map(|url| url.origin());
    origin(one).is_some() && origin(one) == origin(other)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::plan::OtlpEpisodes;

    fn own() -> TrackSpec {
        let headers = BTreeMap::from([("Authorization".to_owned(), "Bearer ${TOKEN}".to_owned())]);
        let otlp = OtlpSpec {
            headers,
            episodes: OtlpEpisodes::Exam,
            content: false,
            ..OtlpSpec::new("https://a.b/one")
        };
        let mlflow = MlflowSpec {
            experiment: "mine".into(),
            bearer_env: Some("TOKEN".into()),
            ..MlflowSpec::new("https://a.b/one")
        };
        TrackSpec { otlp: Some(otlp), mlflow: Some(mlflow), ..TrackSpec::default() }
    }

    #[test]
    fn another_address_has_the_settings_of_the_run_file_and_gets_no_secret_of_the_first() {
        for (url, is_same) in [("https://a.b/two", true), ("https://c.d/two", false)] {
            let to = [format!("otlp={url}"), format!("mlflow={url}")];
            let TrackSpec { otlp, mlflow, .. } = given(&own(), &to).unwrap();
            let (otlp, mlflow) = (otlp.unwrap(), mlflow.unwrap());
            assert_eq!((&*otlp.url, &*mlflow.uri), (url, url));
            assert!(!otlp.content, "content = false");
            assert_eq!((otlp.episodes, &*mlflow.experiment), (OtlpEpisodes::Exam, "mine"));
            assert_eq!((!otlp.headers.is_empty(), mlflow.bearer_env.is_some()), (is_same, is_same), "{url}");
        }
        assert!(
            given(&TrackSpec::default(), &["otlp=http://127.0.0.1:1".into()]).unwrap().otlp.unwrap().content
        );
    }
}
