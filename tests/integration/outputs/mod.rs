//! What there is of a finished run: policies to export, chat with and serve; reports, pages, trackers, earlier runs.

mod chat;
mod episodes;
mod export;
mod report;
mod runs;
mod serve;
mod track;
mod ui;
