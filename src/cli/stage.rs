//! `mcprl stage`: lists stage kinds, shows their cards, and copies cards to be changed.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::{Outcome, locations::Locations};
use crate::{
    error::{Diagnostic, Failure, Result, did_you_mean},
    stage::{Card, StageError, card::Determinism, embedded},
    ui::{OutputFormat, Printer, section},
};

#[derive(Subcommand)]
pub enum Stage {
    /// List the stage kinds.
    List {
        #[command(flatten)]
        locations: Locations,
    },
    /// Show the inputs, outputs and parameters of a kind.
    Show(Named),
    /// Copy a built-in kind's card and prompts to `stages/<kind>/` for editing.
    Eject(Named),
}

#[derive(Args)]
pub struct Named {
    /// A stage kind, as `mcprl stage list` names it.
    kind: String,
    #[command(flatten)]
    locations: Locations,
}

#[derive(Debug, thiserror::Error, Diagnostic)]
#[diagnostic(area = "cli", class = usage)]
enum StageCommandError {
    #[error("unknown stage kind \"{kind}\"")]
    #[diagnostic(code = "unknown_kind")]
    #[hint("did you mean \"{near}\"?" if let Some(near) = near)]
    #[hint = "`mcprl stage list` lists all kinds"]
    Unknown { kind: String, near: Option<String> },
    #[error("{0} exists already")]
    #[hint = "remove it first to start from the built-in card again"]
    Exists(PathBuf),
}

impl Stage {
    pub fn execute(self, printer: Printer) -> Result<Outcome> {
        match self {
            Self::List { locations } => list(printer, &locations),
            Self::Show(named) => named.show(printer),
            Self::Eject(named) => named.eject(printer),
        }
    }
}

fn list(printer: Printer, locations: &Locations) -> Result<Outcome> {
    let cards = locations.cards(None);
    let (mut found, mut broken) = (Vec::new(), Vec::new());
    for kind in cards.kinds() {
        match cards.get(&kind) {
            Ok(card) => found.extend(card),
            Err(cause) => broken.push(Failure::from(cause)),
        }
    }
    match printer.format {
        OutputFormat::Json => printer.json(&found),
        OutputFormat::Human => {
            for card in &found {
                printer.data(&format!("{:<12} {}", card.kind, card.about));
            }
        }
    }
    // The other kinds still work.
    broken.iter().for_each(|cause| printer.error(cause));
    Ok(if broken.is_empty() { Outcome::Success } else { Outcome::Failed })
}

impl Named {
    fn unknown(&self) -> StageCommandError {
        let kinds = self.locations.cards(None).kinds();
        let near = did_you_mean(&self.kind, kinds.iter().map(String::as_str)).map(str::to_owned);
        StageCommandError::Unknown { kind: self.kind.clone(), near }
    }

    fn show(&self, printer: Printer) -> Result<Outcome> {
        let card = self.locations.cards(None).get(&self.kind)?.ok_or_else(|| self.unknown())?;
        printer.show(&card, || describe(&card));
        Ok(Outcome::Success)
    }

    fn eject(&self, printer: Printer) -> Result<Outcome> {
        let built_in = embedded(&self.kind).ok_or_else(|| self.unknown())?;
        let stages = self.locations.given_stages().unwrap_or_else(|| "stages".into());
        let folder = stages.join(&self.kind);
        if folder.exists() {
            return Err(StageCommandError::Exists(folder).into());
        }
        let writing = |source| StageError::Write { path: folder.clone(), source };
        std::fs::create_dir_all(&folder).map_err(writing)?;
        for (name, text) in built_in.files.iter().chain([&("card.toml", built_in.card)]) {
            std::fs::write(folder.join(name), text).map_err(writing)?;
        }
        printer.say(&format!("wrote {}; this card is used from now on", folder.display()));
        Ok(Outcome::Success)
    }
}

fn determinism(class: Determinism) -> &'static str {
    match class {
        Determinism::Pure => "pure: the same inputs and parameters give the same outputs",
        Determinism::Seeded => "seeded: the same inputs, parameters and seed give the same outputs",
        Determinism::Sampled => {
            "sampled: outputs are one random sample, which is cached; `--resample` draws another"
        }
        Determinism::External => {
            "external: outputs depend on an external service; `--resample` queries it again"
        }
    }
}

fn describe(card: &Card) -> String {
    let mut text = format!("{} (revision {}): {}\n", card.kind, card.revision, card.about);
    text += &format!("\n{}\n", determinism(card.determinism));
    match card.command.is_empty() {
        true => text += "built in\n",
        false => text += &format!("command: {}\n", card.command.join(" ")),
    }
    let mut section = |title: &str, rows| text += &section(title, rows, usize::MAX);
    let input = |(name, role): (&String, &crate::stage::card::Role)| {
        let many = if role.many { ", several by name" } else { "" };
        let optional = if role.optional { ", optional" } else { "" };
        (format!("{name}: {}{many}{optional}", role.artifact), role.about.clone())
    };
    section("inputs", card.inputs.iter().map(input).collect());
    let param = |(name, param): (&String, &crate::stage::card::Param)| {
        let given = match &param.default {
            Some(default) => format!(" = {default}"),
            None if param.optional => ", optional".into(),
            None => ", required".into(),
        };
        let unit = param.unit.as_ref().map(|unit| format!(" [{unit}]")).unwrap_or_default();
        let choices = if param.choices.is_empty() {
            String::new()
        } else {
            format!(" ({})", param.choices.join(" | "))
        };
        (format!("{name}{given}"), format!("{}{unit}{choices}", param.about))
    };
    section("parameters", card.params.iter().map(param).collect());
    let output = |(name, port): (&String, &crate::stage::card::Port)| {
        (format!("{name}: {} in {}", port.artifact, port.path), port.about.clone())
    };
    section("outputs", card.outputs.iter().map(output).collect());
    section("metrics", card.metrics.iter().map(|(name, about)| (name.clone(), about.clone())).collect());
    section("files", card.files.iter().map(|(name, file)| (name.clone(), file.clone())).collect());
    text
}
