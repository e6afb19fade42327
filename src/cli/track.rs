//! `mcprl track`: sends a run to experiment trackers.

use std::time::Duration;

use clap::Args;
use serde_json::json;

use super::{Outcome, locations::Locations, target::Target};
use crate::{
    error::{Failure, Result, did_you_mean},
    exec::history,
    plan::{self, TrackSpec},
    track::{self, LogReader, TrackError},
    ui::{OutputFormat, Printer},
};

#[derive(Args)]
pub struct Track {
    /// The run's id, as `mcprl runs` lists it, or `latest`; the folder of a run also works.
    #[arg(value_name = "RUN")]
    run: String,
    /// A tracker: `tensorboard`, `tensorboard=DIR`, `wandb`, `wandb=online`, `trackio` or `trackio=PROJECT`.
    /// May be given several times [default: those of the run file].
    #[arg(long, value_name = "TRACKER")]
    to: Vec<String>,
    #[command(flatten)]
    locations: Locations,
}

/// How long an upload may take.
const PATIENCE: Duration = Duration::from_secs(1800);

const TRACKERS: [&str; 3] = ["tensorboard", "wandb", "trackio"];

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
        for (sink, problem) in sinks.iter().zip(problems) {
            match (problem, printer.format) {
                (Some(error), _) => {
                    all_well = false;
                    printer.error(&Failure::from(error).at(sink.name()));
                }
                (None, OutputFormat::Json) => {
                    sent.push(json!({ "tracker": sink.name(), "location": sink.location() }));
                }
                (None, OutputFormat::Human) => {
                    printer.data(&format!("{:<12} {}", sink.name(), sink.location()));
                }
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
            "trackio" => {
                let mut settings = own.trackio.clone().unwrap_or_default();
                settings.project = value.map_or(settings.project, str::to_owned);
                spec.trackio = Some(settings);
            }
            _ => return Err(wrong(&format!("the trackers are {}", TRACKERS.join(", ")))),
        }
    }
    Ok(spec)
}
