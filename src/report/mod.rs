//! Reports: what the models of a run say, as a document in HTML, Markdown or SVG.
//!
//! The same run gives the same bytes: a report has no path, no time of its own, and nothing that depends on the machine that
//! writes it. Texts of servers and models are hostile, and [`escape`] is the only way into a format. Nothing here reads the
//! store or prints.

pub mod answer;
mod compare;
pub mod document;
pub mod escape;
mod html;
mod markdown;
mod parts;
pub mod plot;
mod replicates;
mod run;
mod server;
mod sweep;

#[cfg(test)]
mod tests;

pub use compare::{Comparable, NotComparable, comparison};
pub use html::page as html_page;
pub use markdown::page as markdown_page;
pub use replicates::{Replicated, Replicates, replicates};
pub use run::{curve_plot, ending, report, verdict_plot};
pub use server::{server_document, server_report};
pub use sweep::sweeps;

/// What a text says about the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Tone {
    #[default]
    Plain,
    Good,
    Bad,
    Faint,
}
